"""`measure`: time and memory of a mechanism alone, or (`measure lra`) of the network that Long Range Arena measured."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import (
    ATTENTION_FLAGS,
    Clock,
    Dtype,
    Json,
    MeasurePreset,
    Mode,
    Module,
    Out,
    ProgressBar,
    SeveralValues,
    TableFormat,
    Variant,
    Work,
    app,
    say,
    stoppable,
)
from longspan.cli.completion import attentions
from longspan.core.errors import CheckFailed, RunFailed, UsageError


@app.command(cls=SeveralValues)
def measure(
    mechanisms: Annotated[
        list[str] | None, typer.Argument(metavar="MECH...", help="Names, or file.py:Class.", autocompletion=attentions)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mechanism but twins of released code.")] = False,
    lengths: Annotated[
        list[int] | None,
        typer.Option("--lengths", metavar="N...", min=1, help="Powers of two from 256 if left out."),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option("--pattern", metavar="P...", help="NS, CS, NC, CC; NS if left out.")
    ] = None,
    mode: Annotated[list[Work] | None, typer.Option("--mode", help="forward and train if left out.")] = None,
    variant: Annotated[
        list[Variant] | None, typer.Option("--variant", help="If left out, eager, and on a GPU also graph.")
    ] = None,
    preset: Annotated[
        MeasurePreset | None,
        typer.Option("--preset", help="cab: the mechanisms, options and sizes of CAB's efficiency lengths."),
    ] = None,
    module: Annotated[
        Module | None, typer.Option("--module", help="The mechanism alone (if left out), its layer, or a block.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Sequences per call.")] = 4,
    heads: Annotated[int, typer.Option("--heads", metavar="N", min=1, help="Attention heads.")] = 8,
    dim: Annotated[int, typer.Option("--dim", metavar="N", min=1, help="Channels per head.")] = 64,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="If left out, bfloat16 on a GPU and float32 on a CPU.")
    ] = None,
    energy: Annotated[bool, typer.Option("--energy", help="Also measure joules, two seconds per point.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Readings per point.")] = 20,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Time limit for the readings of a point.")
    ] = 0.3,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="S", help="Seconds for everything; the next call continues.")
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", metavar="FILE...", help="Results of check --json with this code; not checked again."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured already.")] = False,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Measure time, memory and distance from the roofline of mechanisms alone, at growing lengths.

    A mechanism that breaks a promise, or is wrong at a length, is not timed. One card per mechanism and pattern is
    saved in OUT/cards/measurements. An interrupted sweep is resumed. Running out of memory is a result. The exit code
    is 1 if a mechanism was refused, 4 if one could not run. Long Range Arena's own tables: longspan measure lra.

    \b
    Examples:
      longspan measure softmax linear --lengths 1024 16384
      longspan measure my_attention.py:Mine --pattern CS --mode forward train decode
      longspan measure --all --pattern NS CS --variant eager graph compiled --budget 600
      longspan measure --preset cab
    """
    from longspan.core import environment
    from longspan.efficiency import cab, sweep
    from longspan.efficiency.setup import Setup
    from longspan.results import conformance

    asked = [*(mechanisms or ()), *(sweep.ranked() if every else ())]
    asked = cab.as_measured(asked) if preset else asked
    if not asked:
        raise UsageError(
            "No mechanism was named to measure; name one, as in longspan measure softmax, or ask for --all."
        )
    device = environment.choose_device(device)
    named = {
        "lengths": tuple(lengths) if lengths else None,
        "modes": tuple(map(str, mode)) if mode else None,
        "variants": tuple(map(str, variant)) if variant else None,
        "module": str(module) if module else None,
        "dtype": str(dtype) if dtype else None,
    }
    sizes = {"batch": batch, "heads": heads, "dim": dim, "energy": energy, "repeats": repeats, "seconds": seconds}
    chosen = (cab.SETUP if preset else {}) | {name: value for name, value in named.items() if value is not None}
    setup = Setup.usual(device, **(sizes | chosen))
    trusted = [report for path in trust or () for report in conformance.read(path)]
    pairs = sweep.pairs_of(asked, pattern or ["NS"], narrow=every)
    saved = "The measured points are saved; the same command goes on with the others."
    with stoppable(saved), ProgressBar(len(pairs) * len(setup.asked())) as advance:
        done = sweep.measure(
            pairs,
            setup,
            device=device,
            out=out,
            again=again,
            trusted=trusted,
            budget=budget,
            watch=advance,
            remark=partial(say, error=True),
        )
    _print_measurements(done.cards, _written_as(form, as_json))
    if done.left:
        say(f"The budget is spent; {done.left} points are left, and the same command continues with them.", error=True)
    _raise_failures(done.cards)


def _written_as(form: TableFormat, as_json: bool) -> TableFormat:
    """The requested format, from either option and under either name."""
    return TableFormat.json if as_json else TableFormat.markdown if form is TableFormat.md else form


def _print_measurements(cards: Sequence[Any], form: TableFormat) -> None:
    from longspan.analysis.measure_table import render, views
    from longspan.cli import tables

    if form is not TableFormat.terminal:
        print(render(cards, str(form)), end="")
        return
    screen = tables.console()
    for view in views(cards):
        heading, *lines = view.grid()
        screen.print(tables.printable(view.title), style="bold")  # not in the table, which may be narrower
        if view.possible:
            screen.print(tables.table(heading, lines, right=heading[1:]))
        for note in view.notes():
            screen.print(tables.printable(note), style="dim")


def _raise_failures(cards: Sequence[Any]) -> None:
    """Exit code 4 if a mechanism could not run, else 1 if one was refused."""
    found: dict[str, list[str]] = {"fail": [], "refused": []}
    for card in cards:
        for point in card["points"]:
            if point["status"] in found:
                found[point["status"]].append(f"{card['mechanism']} as {card['pattern']} ({point['reason']})")
    if found["fail"]:
        raise RunFailed(f"Could not run: {'; '.join(dict.fromkeys(found['fail']))}.")
    if found["refused"]:
        raise CheckFailed(f"Not timed: {'; '.join(dict.fromkeys(found['refused']))}.")


# ----------------------------------------------------------------------------------------- as Long Range Arena measured


@app.command("measure lra", cls=SeveralValues)
def measure_lra(
    mechanisms: Annotated[
        list[str] | None, typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="Names, or file.py:Class.")
    ] = None,
    lengths: Annotated[
        list[int] | None, typer.Option("--lengths", metavar="N...", min=1, help="1000 2000 3000 4000 if left out.")
    ] = None,
    mode: Annotated[Mode, typer.Option("--mode", help="Training steps, inference steps, or both.")] = Mode.both,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Sequences per step.")] = 32,
    layers: Annotated[int, typer.Option("--layers", metavar="N", min=1, help="Layers of the network.")] = 4,
    heads: Annotated[int, typer.Option("--heads", metavar="N", min=1, help="Heads per layer.")] = 8,
    dim: Annotated[int, typer.Option("--dim", metavar="N", min=1, help="Model width.")] = 128,
    mlp: Annotated[int, typer.Option("--mlp", metavar="N", min=1, help="MLP width.")] = 512,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the layers with torch.compile.")] = False,
    realistic_steps: Annotated[
        int, typer.Option("--realistic-steps", metavar="N", min=1, help="Training steps timed by wall clock.")
    ] = 50,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Steps timed on a fixed batch.")] = 20,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Time limit of each of these timings.")
    ] = 20.0,
    again: Annotated[bool, typer.Option("--again", help="Measure again what has a card already.")] = False,
    clock: Annotated[Clock, typer.Option("--clock", help="Which of the two timings the table shows.")] = Clock.wall,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Measure as Long Range Arena did: steps per second and memory of its network, beside the published rows.

    One card per mechanism is saved in OUT/cards/measurements; what has a card is not measured again. Running out of
    memory is a result. The exit code is 4 if a mechanism could not run for another reason.

    \b
    Examples:
      longspan measure lra -a linear performer linformer
      longspan measure lra -a my_attention.py:Mine --lengths 1000 2000 --mode train
      longspan measure lra -a local --batch 2 --device cpu --format markdown
    """
    from longspan.analysis import lra_efficiency
    from longspan.analysis.efficiency_table import render
    from longspan.backbones.encoder_classifier import Sizes
    from longspan.efficiency import lra

    setup = lra.LraSetup(
        lengths=tuple(lengths or lra.LRA.lengths),
        modes=lra.MODES if mode is Mode.both else (str(mode),),  # type: ignore[arg-type]
        batch=batch,
        model=Sizes(dim=dim, heads=heads, layers=layers, mlp=mlp),
        realistic_steps=realistic_steps,
        repeats=repeats,
        seconds=seconds,
        compile=compiled,
    )
    asked = list(dict.fromkeys([lra.BASELINE, *(mechanisms or ())]))
    saved = "Mechanisms that are finished have their cards; the same command goes on with the others."
    with stoppable(saved), ProgressBar(len(asked) * len(setup.lengths) * len(setup.modes)) as advance:
        cards = lra.measure(asked, setup, device=device, out=out, again=again, watch=advance)
    views = lra_efficiency.tables(cards, setup.modes)
    form = _written_as(form, as_json)
    if form is TableFormat.terminal:
        for view in views:
            _print_speeds(view, str(clock))
    else:
        print(render(views, str(form), clock="wall" if clock is Clock.wall else "compute"), end="")
    failed = {
        f"{card['mechanism']} ({point['reason']})"
        for card in cards
        for point in card["points"]
        if point["status"] == "fail"
    }
    if failed:
        raise RunFailed(f"Could not run: {'; '.join(sorted(failed))}.")


def _print_speeds(view: Any, clock: Any) -> None:
    """Speed and memory side by side if the terminal is wide enough, else one below the other."""
    from longspan.analysis.efficiency_table import footnotes, grid
    from longspan.cli import tables

    screen = tables.console()
    whole = grid(view, clock=clock)
    width = sum(max(map(len, column)) + 1 for column in zip(*whole, strict=True))
    parts = [whole] if width <= screen.width else [grid(view, clock=clock, memory=False), grid(view, speed=False)]
    for number, (heading, *lines) in enumerate(parts):
        title = view.title if number == 0 else ""
        screen.print(tables.table(heading, lines, title=title, right=heading[1:]))
    for note in footnotes(view, clock):
        screen.print(tables.printable(note), style="dim")
