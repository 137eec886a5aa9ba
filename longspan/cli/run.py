"""`run` trains and scores, `params` counts parameters."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import (
    ATTENTION_FLAGS,
    Address,
    Budget,
    CellsPerJob,
    Changes,
    Cpus,
    Json,
    Launcher,
    Out,
    Patterns,
    Protocol,
    SeveralMechanisms,
    SeveralValues,
    Share,
    SlurmSettings,
    Tier,
    Weights,
    app,
    launcher_options,
    overrides,
    print_json,
    say,
    stoppable,
)
from longspan.cli.completion import attentions, places
from longspan.cli.matrix_file import Part, read_matrix
from longspan.core.cell import Cell, cells
from longspan.core.errors import UNEXPECTED, UnsupportedPattern, UsageError, did_you_mean


@app.command(cls=SeveralMechanisms)
def run(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK|SUITE|FILE.toml...", help="Tasks or suites, before -a; or a matrix.", autocompletion=places
        ),
    ],
    mechanisms: Annotated[
        list[str] | None,
        typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="Names, or file.py:Class.", autocompletion=attentions),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="B", help="file.py:Class, a network in place of the task's own."),
    ] = None,
    pattern: Patterns = None,
    protocol: Protocol = "longspan",
    tier: Tier = "smoke",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N-1.")] = 1,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto.")] = "auto",
    devices: Annotated[int, typer.Option("--devices", metavar="N", min=1, help="Processes per run.")] = 1,
    parallel: Annotated[
        str | None,
        typer.Option("--parallel", metavar="HOW", help="How --devices share a run: ddp, fsdp or context."),
    ] = None,
    real: Annotated[bool, typer.Option("--real", help="Refuse stand-in data, even in the smoke tier.")] = False,
    changes: Changes = None,
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", metavar="T", help="Per cell, as 90s, 30m or 2h; a day for plug-ins if left out."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="M", help="Per cell, as 16G; 90 % of the machine's if left out."),
    ] = None,
    budget: Budget = None,
    share: Share = 1,
    weights: Weights = True,
    launcher: Launcher = "local",
    address: Address = None,
    cpus: Cpus = None,
    set_slurm: SlurmSettings = None,
    cells_per_job: CellsPerJob = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")] = False,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Train and score mechanisms on tasks. Finished runs are not repeated, interrupted ones are resumed.

    A cell is a task, a mechanism, a pattern and a seed. Slots of other patterns keep the mechanism of the protocol;
    --pattern NS+CS replaces two patterns at once. Suite cab is run pattern by pattern, each mechanism in those it can
    run in; --pattern chooses one. Under cab-2023 a mechanism named without options gets CAB's options. A cell with a
    plug-in has a process of its own; one that fails, hangs or dies leaves a card that says why and does not stop the
    others, and the exit code is 4. Ctrl-C, SIGTERM and SIGUSR1 save the state first. --set takes a run off the official
    board. When --budget is spent, the current cell is saved and no other is started; the same command resumes. With
    --share the cells that run at once share the device, and their cards have no speed. Several GPUs are used at once;
    --launcher ray or slurm runs cells on many machines, and longspan runs --watch shows their progress. --devices 4
    trains one cell on four GPUs, which split the rows of a batch; with --parallel fsdp also the weights and the moments
    of the optimiser, with --parallel context the tokens of each row (lm with softmax, linear or dpfp). --backbone
    replaces the network of a task; the two together are a task of their own on boards.
    A FILE.toml names tasks, mechanisms and seeds of a whole matrix, so that one file stands for one table of numbers.

    \b
    Examples:
      longspan run starter -a softmax linear --tier smoke
      longspan run listops -a my_attention.py:Mine --seeds 3 --tier full
      longspan run listops -a softmax --tier full --set recipe.steps=500 --dry-run
      longspan run image -a softmax linear local --tier full --seeds 3 --share 3 --budget 25m
      longspan run cab -a softmax abc --pattern CC
      longspan run listops -a softmax linear --backbone my_network.py:MyNetwork
      longspan run matrix.toml --json
      longspan run lra -a softmax --tier full --launcher slurm --set-slurm partition=gpu --out /shared/out
    """
    from longspan.cli import tables
    from longspan.cli.run_cells import run_cells, say_what_is_left
    from longspan.cli.watch import live_table
    from longspan.core.mirror import address_of
    from longspan.launchers import Budget, Limits, open_launcher
    from longspan.launchers.matrix import noted

    needs("torch")
    given = {"pattern": "+".join(pattern) if pattern else None, "protocol": protocol, "tier": tier, "seeds": seeds}
    given |= {"backbone": backbone}
    parts = _parts(context, names, mechanisms, given | {"overrides": overrides(changes)})
    asked = list({repr(cell): cell for part in parts for cell in _cells(part)}.values())
    if not asked:
        wanted = dict.fromkeys(name for part in parts for name in part.mechanisms)
        where = dict.fromkeys(name for part in parts for name in part.tasks)
        raise UnsupportedPattern(f"{', '.join(wanted)} can run in no pattern of {', '.join(where)}; name another.")
    limits = Limits.parse(time_limit, memory_limit)
    if dry_run:
        _estimate(asked, device, as_json)
        return
    debug = getattr(context.find_root().command, "debug", False)
    how = {"out": str(out), "device": device, "devices": devices, "parallel": parallel}
    how |= {"real": real, "weights": weights}
    own = {"address": address, "cpus": cpus, "set_slurm": set_slurm, "cells_per_job": cells_per_job}
    how |= launcher_options(launcher, **own)
    waiting = list(asked)
    with (
        stoppable("The state is saved; the same command resumes the run."),
        open_launcher(launcher, limits, Budget.parse(budget), share=share, debug=debug, **how) as opened,
    ):
        opened.plan(asked)
        with noted(out, launcher, asked) as journal, live_table(out) if opened.several else nullcontext():
            ran = run_cells(opened, lambda left: waiting.pop(0) if waiting else None, asked, journal)
    if as_json:
        print_json(ran.to_json(waiting))
    elif cards := ran.cards:
        tables.console().print(tables.cards_table(cards))
        if note := _standin_note(cards):
            say(note)
        word = _board_of({card["task"] for card in cards}, cards[0]["protocol"])
        place = address_of(out / "cards") or out / "cards"
        where = "" if out == Path("out") else f" --cards {place}"
        say(f"Cards are in {place}; see them with longspan board {word}{where}, or longspan report{where}.")
    say_what_is_left(ran, len(waiting), error=as_json)
    if ran.codes:
        if len(asked) > 1:
            say(f"{len(ran.codes)} of {len(asked)} cells failed.", error=True)
        raise typer.Exit(ran.codes[0] if len(set(ran.codes)) == 1 else UNEXPECTED)


def _parts(context: typer.Context, names: list[str], mechanisms: list[str] | None, given: dict[str, Any]) -> list[Part]:
    """What the command line asks for, or the parts of the file that it names."""
    if not any(name.endswith(".toml") for name in names):
        if not mechanisms:
            raise UsageError("No mechanism was named; write it like longspan run listops -a softmax linear.")
        return [Part(tuple(names), tuple(dict.fromkeys(mechanisms)), **given)]
    if len(names) > 1 or mechanisms:
        raise UsageError("A matrix names its tasks and mechanisms itself; leave out other tasks and -a.")
    typed = [name for name in (*given, "changes") if _was_typed(context, name)]
    if typed:
        flags = ", ".join(f"--{'set' if name == 'changes' else name}" for name in typed)
        raise UsageError(f"{flags} was given beside {names[0]}, which says that itself; change the file.")
    return read_matrix(Path(names[0]))


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _cells(part: Part) -> Iterator[Cell]:
    wanted = list(part.mechanisms)
    for task, one in _places(part.tasks, part.protocol, part.pattern):
        fitting = wanted if one == part.pattern else _fitting(wanted, one)
        rules: dict[str, Any] = {"protocol": part.protocol, "tier": part.tier, "seeds": part.seeds}
        name = task if part.backbone is None else f"{task}@{part.backbone}"
        yield from cells([name], fitting, pattern=one, overrides=part.overrides, **rules)


def _estimate(cells: Sequence[Any], device: str, as_json: bool = False) -> None:
    from longspan import runs
    from longspan.cli import tables
    from longspan.core.environment import choose_device
    from longspan.runs.estimate import estimate

    for cell in cells:
        runs.RunPlan.of(cell)  # refuses a wrong argument before the first estimate
    device = choose_device(device)
    guesses = [(cell, estimate(cell, device=device)) for cell in cells]
    if as_json:
        print_json([asdict(cell) | {"estimate": asdict(guess)} for cell, guess in guesses])
    else:
        tables.console().print(tables.estimates_table(guesses, device))


def needs(package: str) -> None:
    """Fail at once if a package is missing, not later in a worker."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _standin_note(cards: Sequence[dict[str, Any]]) -> str | None:
    """A warning if scores come from stand-in data."""
    made_up = [(card["task"], card["dataset"]["name"]) for card in cards if card["dataset"]["variant"] == "standin"]
    if not made_up:
        return None
    tasks, names = (list(dict.fromkeys(column)) for column in zip(*made_up, strict=True))
    return (
        f"Stand-in data: {', '.join(tasks)}. These scores only show that the code runs. For the real data: "
        f"longspan data prepare {' or '.join(names)}; --real refuses stand-ins."
    )


def _places(names: Sequence[str], protocol: str, pattern: str | None) -> list[tuple[str, str | None]]:
    """Tasks with the pattern to fill, each suite expanded to its tasks under the protocol; none is imported."""
    from longspan import suites
    from longspan.results import catalogue
    from longspan.results.collect import pattern_name

    known = {path.stem for path in (catalogue.PACKAGE / "tasks").glob("*.py")}
    known |= {point.name for point in entry_points(group="longspan.tasks")}
    found: list[tuple[str, str | None]] = []
    for name in names:
        if name in suites.names():
            suite = suites.get(name)
            places = suite.places(protocol, pattern_name(pattern) if pattern and suite.patterns else pattern)
            absent = [task for task, _ in places if task not in known]
            if absent:
                rest = " ".join(task for task, _ in places if task not in absent)
                raise UsageError(f"{name} needs {', '.join(absent)}, not in this version; name the rest: {rest}.")
            found += [(task, pattern or one) for task, one in places]
        elif name in known or ":" in name:
            found.append((name, pattern))
        else:
            tasks = [entry["name"] for entry in catalogue.read(catalogue.SHIPPED)["tasks"]]
            raise UsageError(f"No task or suite named {name!r}.{did_you_mean(name, [*tasks, *suites.names()])}")
    return list(dict.fromkeys(found))


def _fitting(mechanisms: Sequence[str], pattern: str | None) -> list[str]:
    """Those that can run in a pattern that a suite needs; plug-ins are kept, as only their own runs can tell."""
    from longspan.results import catalogue

    entries = {entry["name"]: entry["patterns"] for entry in catalogue.read(catalogue.SHIPPED)["attentions"]}
    declared = {name: entries.get(name.partition("(")[0].strip()) for name in mechanisms}
    return [name for name, patterns in declared.items() if patterns is None or pattern in patterns]


def _board_of(tasks: set[str], protocol: str) -> str:
    """What `board` shows these tasks under: the task if there is one, else the smallest suite that has them all."""
    from longspan import suites

    if len(tasks) == 1:
        return next(iter(tasks))
    holding = [suite for suite in suites.SUITES.values() if tasks <= set(suite.tasks_under(protocol))]
    return min(holding, key=lambda suite: len(suite.tasks)).name if holding else sorted(tasks)[0]


@app.command(cls=SeveralValues)
def params(
    names: Annotated[list[str] | None, typer.Argument(metavar="TASK...", help="Tasks; all if left out.")] = None,
    mechanisms: Annotated[
        list[str] | None, typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="Names; all if left out.")
    ] = None,
    pattern: Patterns = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="P", help="longspan if left out; published counts have their own."),
    ] = None,
    tier: Tier = "full",
    as_json: Json = False,
) -> None:
    """Count the parameters of each task's network with each mechanism, compared with softmax in the same slots.

    Patterns of a network are replaced one at a time; --pattern chooses one, or several at once. Published
    counts are shown alongside.

    \b
    Examples:
      longspan params --tier smoke
      longspan params listops text -a softmax "performer(features=64)" s4d --json
    """
    from longspan import api
    from longspan.cli import tables

    asked = "+".join(pattern) if pattern else None
    rows = api.params(names, mechanisms, pattern=asked, protocol=protocol, tier=tier)
    if as_json:
        print_json(rows)
    else:
        tables.console().print(tables.parameters_table(rows))
