"""`plan` says which cells a board lacks and how long they take here, and runs them while a budget lasts."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import (
    ATTENTION_FLAGS,
    Address,
    Budget,
    Cards,
    CellsPerJob,
    Cpus,
    Json,
    Launcher,
    Out,
    Patterns,
    Protocol,
    SeveralValues,
    Share,
    SlurmSettings,
    Weights,
    app,
    catalogue,
    launcher_options,
    print_json,
    say,
    stoppable,
)
from longspan.core.errors import UNEXPECTED, UsageError

SHOWN = 20  # missing cells shown without --all


@app.command(cls=SeveralValues)
def plan(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite, or one task.")],
    mechanisms: Annotated[
        list[str] | None, typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="All ranked ones if left out.")
    ] = None,
    pattern: Patterns = None,
    protocol: Protocol = "longspan",
    tier: Annotated[str, typer.Option("--tier", metavar="T", help="smoke, lite or full.")] = "full",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N-1.")] = 1,
    run: Annotated[bool, typer.Option("--run", help="Run them, the most informative per minute first.")] = False,
    budget: Budget = None,
    share: Share = 1,
    weights: Weights = True,
    launcher: Launcher = "local",
    address: Address = None,
    cpus: Cpus = None,
    set_slurm: SlurmSettings = None,
    cells_per_job: CellsPerJob = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto.")] = "auto",
    on: Annotated[
        str | None, typer.Option("--on", metavar="NAME", help="Use times of another device with cards, such as H200.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", min=1, help="Estimate them on a cluster of N nodes.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="GPUs per node; default 1.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="P", min=0, help="Price of a GPU-hour, in any currency.")
    ] = None,
    real: Annotated[bool, typer.Option("--real", help="Refuse stand-in data, even in the smoke tier.")] = False,
    everything: Annotated[bool, typer.Option("--all", help=f"Show all of them, not only {SHOWN}.")] = False,
    as_json: Json = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Show which cells of a board are missing and how long each takes here; --run runs them until --budget is spent.

    Times come from cards of runs that had this device to themselves. A cell without a card is guessed from the other
    mechanisms of its task and from how much slower than softmax its mechanism is elsewhere; guesses are marked. The
    first seed of a cell is worth 1, the second 1/2, the third 1/6, and softmax twice that; the cells worth most per
    minute come first. Near the end of a budget, cells that still fit are run; one that does not end in time is saved,
    and the same command resumes it, here or, after longspan runs --export and --import, elsewhere. With --share K, K
    cells share the GPU: their scores are the same as without sharing, but their cards are marked and no board shows
    their speed. --nodes and --gpus simulate them on a cluster of GPUs like the one of the cards: hours, cost at
    --price, memory, and which cells need several GPUs.

    \b
    Examples:
      longspan plan lra
      longspan plan lra --seeds 3 --on H200 --all
      longspan plan cab --seeds 3 --on H200 --nodes 8 --gpus 8 --price 2.5
      longspan plan lra --run --budget 25m --share 4
      longspan plan listops -a softmax linear --tier smoke --run
    """
    from longspan import analysis
    from longspan.analysis.cluster_estimate import estimate
    from longspan.analysis.expected_memory import Needs
    from longspan.analysis.expected_time import Times
    from longspan.analysis.plan import missing
    from longspan.core.spec import Spec
    from longspan.results import collect
    from longspan.results.shipped import shipped_cards

    if not run and (budget is not None or share > 1 or not weights):
        raise UsageError("--budget, --share and --no-weights are for --run; without it nothing is run.")
    if run and as_json:
        raise UsageError("--json prints the plan and nothing else; leave out --run, or --json.")
    own = evidence = analysis.gather(collect.card_folders(cards, out))
    devices = _devices(own)
    if on is not None and not cards and not _matching(on, devices):
        # cards that come with the package say how long a cell takes, not that it is done
        evidence = analysis.gather([], others=shipped_cards())
        devices = sorted({*devices, *_devices(evidence)})
    here = _device(on, device, devices)
    known = catalogue(("attentions", "tasks"))
    versions = {entry["name"]: entry["version"] for entry in known["tasks"]}
    times = Times(evidence.runs, evidence.measurements, here, versions)
    found = missing(
        own.runs,
        known,
        suite,
        times,
        mechanisms=[str(Spec.parse(name)) for name in mechanisms] if mechanisms else None,
        pattern="+".join(pattern) if pattern else None,
        protocol=protocol,
        tier=tier,
        seeds=seeds,
        begun=_begun(out),
    )
    cluster = None
    if nodes or gpus or price is not None:
        size = {"nodes": nodes or 1, "gpus": gpus or 1}
        cluster = estimate(found.cells, Needs(evidence.runs, here), **size, price=price)
    if as_json:
        plain = {"device": here, "present": found.present, "missing": [_plain(one) for one in found.cells]}
        print_json(plain if cluster is None else plain | {"cluster": _plain_cluster(cluster)})
    else:
        _show(suite, here, found, len(found.cells) if everything else SHOWN, devices)
    if cluster is not None and not as_json:
        _show_cluster(cluster, here, nodes or 1, gpus or 1, price)
    if run and found.cells:
        debug = getattr(context.find_root().command, "debug", False)
        how = {"out": str(out), "device": device, "real": real, "weights": weights, "debug": debug}
        special = {"address": address, "cpus": cpus, "set_slurm": set_slurm, "cells_per_job": cells_per_job}
        _run(found.cells, launcher, share, budget, how | launcher_options(launcher, **special))
    elif not as_json and found.cells:
        say("The same command with --run --budget 25m runs them; --share 4 lets four at a time share a GPU.")


def _device(on: str | None, device: str, devices: Sequence[str]) -> str:
    """The name of this machine's device, or of the one that --on names."""
    from longspan.core import environment, meter

    if on is None:
        return (meter.gpu_name() if device != "cpu" else None) or environment.cpu_name()
    matching = _matching(on, devices)
    if len(matching) != 1:
        raise UsageError(f"--on {on} names {len(matching)} devices; cards are of: {', '.join(devices) or 'none'}.")
    return matching[0]


def _devices(evidence: Any) -> list[str]:
    from longspan.results.device import device_of

    return sorted({device_of(card) for card in (*evidence.runs, *evidence.set_aside)})


def _matching(on: str, devices: Sequence[str]) -> list[str]:
    return [name for name in devices if on.casefold() in name.casefold()]


def _begun(out: Path) -> dict[tuple, float]:
    """The finished share of each unfinished run."""
    from longspan.analysis.plan import cell_key

    if not any((out / "runs").glob("*/cell.json")):
        return {}
    from longspan import runs

    return {
        cell_key(one.cell): min(1.0, one.step / one.steps)
        for one in runs.unfinished(out)
        if one.cell is not None and not one.cell.overrides and one.steps
    }


def _plain(one: Any) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(one.cell).items() if name != "overrides"},
        "pattern": one.pattern,
        "information": one.information,
        "seconds": one.seconds,
        "source": one.expected.source,
        "guess": one.expected.guess,
        "done": one.done,
    }


def _show(suite: str, device: str, found: Any, most: int, devices: Sequence[str]) -> None:
    """A line for each task, then the cells in the order in which they would be run."""
    from longspan.cli import tables

    screen = tables.console()
    screen.print(tables.plan_tasks_table(found.present, found.cells, f"{suite} on {device}"))
    if found.cells:
        screen.print(tables.plan_cells_table(found.cells[:most]))
    if (more := len(found.cells) - most) > 0:
        say(f"{more} more; --all shows them.")
    for note in found.notes:
        say(note)
    unknown = Counter(one.cell.task for one in found.cells if one.expected.seconds is None)
    if unknown:
        others = ", ".join(name for name in devices if name != device)
        hint = f" Cards of other devices: {others} (--on)." if others else ""
        say(f"How long {', '.join(unknown)} takes here is not known before a first run.{hint}")


def _plain_cluster(found: Any) -> dict[str, Any]:
    names = ("cells", "hours", "gpu_hours", "busy", "cost", "cost_of_all", "unknown", "guesses", "capacity")
    spread = [
        {"task": one.one.cell.task, "mechanism": one.one.cell.mechanism, "pattern": one.one.pattern}
        | {"seed": one.one.cell.seed, "bytes": one.need.bytes, "source": one.need.source}
        | {"gpus": one.gpus, "parallel": one.parallel}
        for one in found.spread
    ]
    largest = None if found.largest is None else found.largest[1].bytes
    return {name: getattr(found, name) for name in names} | {"largest_bytes": largest, "spread": spread}


def _show_cluster(found: Any, device: str, nodes: int, gpus: int, price: float | None) -> None:
    """Hours, cost, memory, and what needs several GPUs."""
    from longspan.cli import tables

    where = f"{nodes} x {gpus} {device}"
    guesses = f", {found.guesses} of them by guessed times" if found.guesses else ""
    say(
        f"On {where}: {found.cells} cells{guesses}, {tables.duration(3600 * found.hours)} until the last one ends, "
        f"{found.gpu_hours:,.1f} GPU-hours ({found.busy:.0%} of the GPUs busy)."
    )
    if price is not None:
        say(
            f"At {price:g} for a GPU-hour: {found.cost:,.0f} for the hours that cells have, "
            f"{found.cost_of_all:,.0f} if all GPUs are paid for until the end."
        )
    if found.unknown:
        say(f"{found.unknown} cells are left out, since nobody knows how long they take.")
    if found.largest is not None:
        one, need = found.largest
        of = "" if found.capacity is None else f" of {tables.size(found.capacity)}"
        say(f"The largest takes {tables.size(need.bytes)}{of}: {one.cell.task} {one.cell.mechanism} ({need.source}).")
    if found.spread:
        tables.console().print(tables.spread_table(found.spread))
    elif found.capacity is not None:
        say("None is known to need more than one GPU.")


def _run(cells: Sequence[Any], launcher: str, share: int, budget: str | None, how: dict[str, Any]) -> None:
    from longspan.analysis.plan import Queue
    from longspan.cli import tables
    from longspan.cli.run import needs
    from longspan.cli.run_cells import run_cells, say_what_is_left
    from longspan.cli.watch import live_table
    from longspan.launchers import Budget, Limits, open_launcher
    from longspan.launchers.matrix import noted

    needs("torch")
    dropped: dict[str, int] = defaultdict(int)
    by_cell = {id(one.cell): one for one in cells}
    with (
        stoppable("The state is saved; the same command goes on."),
        open_launcher(launcher, Limits.parse(None, None), Budget.parse(budget), share=share, **how) as opened,
    ):
        queue = Queue(cells, opened.slowdown)
        opened.plan([one.cell for one in cells])

        def take(left: float | None) -> Any:
            one = queue.take(left)
            return None if one is None else one.cell

        def about(cell: Any) -> str:
            one = by_cell[id(cell)]
            if one.seconds is None:
                return ""
            guess = ", a guess" if one.expected.guess else ""
            return f" · about {tables.duration(one.seconds * queue.slowdown_of(one))}{guess}"

        def ended(cell: Any, outcome: Any) -> None:
            if outcome.code == 3:  # its data are missing, also for the other cells of its task
                dropped[cell.task] += len(queue.drop(cell.task))

        asked = [one.cell for one in cells]
        place = Path(how["out"])
        with noted(place, launcher, asked) as journal, live_table(place) if opened.several else nullcontext():
            ran = run_cells(opened, take, asked, journal, about=about, ended=ended)
    if cards := ran.cards:
        tables.console().print(tables.cards_table(cards))
    for task, count in dropped.items():
        if count:
            say(f"{count} more cells of {task} were left out, since its data are not here.", error=True)
    say_what_is_left(ran, len(queue.left))
    if ran.codes:
        say(f"{len(ran.codes)} cells failed.", error=True)
        raise typer.Exit(ran.codes[0] if len(set(ran.codes)) == 1 else UNEXPECTED)
