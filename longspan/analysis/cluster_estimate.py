"""What would the missing cells of a board take on a cluster: hours, money, memory, and what has to be spread?

    estimate(plan.cells, needs, nodes=8, gpus=8, price=2.5).hours

A cell that fits on one GPU gets one. One that does not gets the fewest it fits on, and is assumed to be that many times
faster, which is optimistic. Cells of unknown duration are left out, and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.analysis.cluster import Job, simulate
from longspan.analysis.expected_memory import Need, Needs
from longspan.analysis.plan import START_SECONDS, MissingCell

CELLS_PER_SECOND = 200.0  # the least that the driver of a launcher dispatches (benchmarks/ray_throughput.py)


@dataclass(frozen=True)
class Spread:
    """A cell that does not fit on one GPU: how many it takes, by ddp or fsdp; 0 GPUs where a node is too small."""

    one: MissingCell
    need: Need
    gpus: int
    parallel: str


@dataclass(frozen=True)
class ClusterEstimate:
    """Hours until the last cell ends, GPU-hours held by cells, their price, and that of all GPUs until the end."""

    cells: int
    hours: float
    gpu_hours: float
    busy: float
    cost: float | None
    cost_of_all: float | None
    unknown: int
    guesses: int
    largest: tuple[MissingCell, Need] | None
    capacity: int | None
    spread: tuple[Spread, ...]


def estimate(
    cells: Sequence[MissingCell], needs: Needs, *, nodes: int, gpus: int, price: float | None = None
) -> ClusterEstimate:
    """Simulate the cells, in order, on `nodes` nodes of `gpus` GPUs each, like the GPU of the cards."""
    jobs, spread, unknown, guesses = [], [], 0, 0
    known: list[tuple[int, MissingCell, Need]] = []
    for one in cells:
        cell = one.cell
        need = needs.of(cell.task, cell.mechanism, one.pattern, cell.protocol, cell.tier)
        if need.bytes is not None:
            known.append((need.bytes, one, need))
        found = need.spread(needs.capacity, gpus)
        count, parallel = found or (0, "")
        if count != 1:
            spread.append(Spread(one, need, count, parallel))
        if one.seconds is None:
            unknown += 1
        elif count:
            jobs.append(Job(one.seconds / count, count))
            guesses += one.expected.guess
    schedule = simulate(jobs, nodes, gpus, start_seconds=START_SECONDS, per_second=CELLS_PER_SECOND)
    hours, used = schedule.makespan / 3600, schedule.busy / 3600
    largest = max(known, key=lambda entry: entry[0], default=None)
    return ClusterEstimate(
        cells=len(jobs),
        hours=hours,
        gpu_hours=used,
        busy=schedule.utilisation(nodes * gpus),
        cost=None if price is None else price * used,
        cost_of_all=None if price is None else price * hours * nodes * gpus,
        unknown=unknown,
        guesses=guesses,
        largest=None if largest is None else largest[1:],
        capacity=needs.capacity,
        spread=tuple(spread),
    )
