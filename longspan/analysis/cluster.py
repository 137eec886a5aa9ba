"""How long would many cells take on many GPUs? A simulation of what the launchers do.

    simulate([Job(3600.0), Job(7200.0, gpus=8)], nodes=8, gpus=8).makespan

Cells queue in the order of the plan. Whenever GPUs are free, the first cell that fits on a node starts: a cell that
needs several GPUs gets them on one node, and smaller cells behind it go first while it does not fit. One driver
dispatches at most `per_second` cells, and every cell takes `start_seconds` before it trains.
"""

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.core.errors import UsageError


@dataclass(frozen=True)
class Job:
    """A cell: seconds from its first step to its card, and the GPUs it holds meanwhile."""

    seconds: float
    gpus: int = 1


@dataclass(frozen=True)
class Schedule:
    """When each cell starts, on which node, and when the last one ends; `busy` is the GPU-seconds held by cells."""

    starts: tuple[float, ...]
    nodes: tuple[int, ...]
    makespan: float
    busy: float

    def utilisation(self, gpus: int) -> float:
        """The share of the time of `gpus` GPUs in all that cells hold."""
        return self.busy / (self.makespan * gpus) if self.makespan else 0.0


def simulate(
    jobs: Sequence[Job], nodes: int, gpus: int, *, start_seconds: float = 0.0, per_second: float = float("inf")
) -> Schedule:
    """Simulate the jobs on `nodes` nodes of `gpus` GPUs each."""
    if nodes < 1 or gpus < 1:
        raise UsageError(f"A cluster has at least 1 node of 1 GPU, got {nodes} of {gpus}.")
    if wide := next((job for job in jobs if job.gpus > gpus), None):
        raise UsageError(f"A cell needs {wide.gpus} GPUs of one node, which has {gpus}; give larger nodes.")
    waiting: dict[int, deque[int]] = defaultdict(deque)  # by number of GPUs, in the order of the plan
    for number, job in enumerate(jobs):
        waiting[job.gpus].append(number)
    free = _Free(nodes, gpus)
    starts, places = [0.0] * len(jobs), [0] * len(jobs)
    running: list[tuple[float, int]] = []
    now = handed_out = busy = makespan = 0.0
    while any(waiting.values()) or running:
        while (number := _next(waiting, free.most)) is not None:
            job = jobs[number]
            handed_out = max(now, handed_out) + 1 / per_second
            starts[number], places[number] = handed_out, free.take(job.gpus)
            end = handed_out + start_seconds + job.seconds
            busy += (end - handed_out) * job.gpus
            heapq.heappush(running, (end, number))
        now, number = heapq.heappop(running)
        makespan = now
        free.give_back(places[number], jobs[number].gpus)
    return Schedule(tuple(starts), tuple(places), makespan, busy)


def _next(waiting: dict[int, deque[int]], most: int) -> int | None:
    """Pop the first job that fits."""
    fitting = [queue for wanted, queue in waiting.items() if queue and wanted <= most]
    return min(fitting, key=lambda queue: queue[0]).popleft() if fitting else None


class _Free:
    """Nodes by the number of their free GPUs; a cell gets the fullest node that has room, so that others stay whole."""

    def __init__(self, nodes: int, gpus: int):
        self.free = [gpus] * nodes
        self.by_count: list[list[int]] = [[] for _ in range(gpus + 1)]
        self.by_count[gpus] = list(range(nodes))

    @property
    def most(self) -> int:
        for count in reversed(range(1, len(self.by_count))):
            if self._first(count) is not None:
                return count
        return 0

    def take(self, wanted: int) -> int:
        for count in itertools.count(wanted):
            if (node := self._first(count)) is not None:
                heapq.heappop(self.by_count[count])
                self._put(node, count - wanted)
                return node
        raise AssertionError("no node has room")

    def give_back(self, node: int, count: int) -> None:
        self._put(node, self.free[node] + count)

    def _put(self, node: int, count: int) -> None:
        self.free[node] = count
        heapq.heappush(self.by_count[count], node)

    def _first(self, count: int) -> int | None:
        """A node with exactly so many free GPUs; stale heap entries are dropped on the way."""
        heap = self.by_count[count]
        while heap and self.free[heap[0]] != count:
            heapq.heappop(heap)
        return heap[0] if heap else None
