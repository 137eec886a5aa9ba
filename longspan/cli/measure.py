"""`measure`: how fast, how big?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import (
    ATTENTION_FLAGS,
    Clock,
    Json,
    Mode,
    Out,
    Procedure,
    ProgressBar,
    SeveralMeasured,
    TableFormat,
    app,
)
from longspan.core.errors import RunFailed


@app.command(cls=SeveralMeasured)
def measure(
    procedure: Annotated[Procedure, typer.Argument(help="What is measured, and how: lra is Tables 2 and 4 of LRA.")],
    mechanisms: Annotated[
        list[str] | None, typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="Names, or file.py:Class.")
    ] = None,
    lengths: Annotated[
        list[int] | None, typer.Option("--lengths", metavar="N...", min=1, help="1000 2000 3000 4000 when left out.")
    ] = None,
    mode: Annotated[Mode, typer.Option("--mode", help="Training steps, inference steps, or both.")] = Mode.both,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows in a step.")] = 32,
    layers: Annotated[int, typer.Option("--layers", metavar="N", min=1, help="Of the network.")] = 4,
    heads: Annotated[int, typer.Option("--heads", metavar="N", min=1, help="Of each layer.")] = 8,
    dim: Annotated[int, typer.Option("--dim", metavar="N", min=1, help="Channels.")] = 128,
    mlp: Annotated[int, typer.Option("--mlp", metavar="N", min=1, help="Width of the MLPs.")] = 512,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or the better: auto.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="Let torch.compile fuse the layers.")] = False,
    realistic_steps: Annotated[int, typer.Option("--realistic-steps", metavar="N", min=1, help="Wall clock.")] = 50,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Steps on a fixed batch.")] = 20,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Each clock stops after so long.")] = 20.0,
    again: Annotated[bool, typer.Option("--again", help="Measure also what has its card.")] = False,
    clock: Annotated[Clock, typer.Option("--clock", help="Whose speed the table shows.")] = Clock.wall,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Measure steps per second and memory at growing lengths, always beside softmax, and show the published rows.

    One card per mechanism lies in OUT/cards/measurements; what has its card is not measured again. Running out of
    memory is a result. The exit code is 4 when a mechanism could not run for another reason.

    \b
    Examples:
      longspan measure lra -a linear performer linformer
      longspan measure lra -a my_attention.py:Mine --lengths 1000 2000 --mode train
      longspan measure lra -a local --batch 2 --device cpu --format markdown
    """
    from longspan.analysis.efficiency import tables
    from longspan.analysis.efficiency_table import render
    from longspan.backbones.encoder_classifier import Sizes
    from longspan.efficiency import lra

    setup = lra.Setup(
        lengths=tuple(lengths or lra.LRA.lengths),
        modes=lra.MODES if mode is Mode.both else (str(mode),),  # type: ignore[arg-type]
        batch=batch,
        model=Sizes(dim=dim, heads=heads, layers=layers, mlp=mlp),
        realistic_steps=realistic_steps,
        repeats=repeats,
        seconds=seconds,
        compile=compiled,
    )
    asked = list(dict.fromkeys([lra.YARDSTICK, *(mechanisms or ())]))
    with ProgressBar(len(asked) * len(setup.lengths) * len(setup.modes)) as advance:
        cards = lra.measure(asked, setup, device=device, out=out, again=again, watch=advance)
    views = tables(cards, setup.modes)
    form = TableFormat.json if as_json else TableFormat.markdown if form is TableFormat.md else form
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
    """Speed and memory side by side where the screen is wide enough, else one below the other."""
    from longspan import terminal
    from longspan.analysis.efficiency_table import footnotes, grid

    screen = terminal.console()
    whole = grid(view, clock=clock)
    width = sum(max(map(len, column)) + 1 for column in zip(*whole, strict=True))
    parts = [whole] if width <= screen.width else [grid(view, clock=clock, memory=False), grid(view, speed=False)]
    for number, (heading, *lines) in enumerate(parts):
        title = view.title if number == 0 else ""
        screen.print(terminal.table(heading, lines, title=title, right=heading[1:]))
    for note in footnotes(view, clock):
        screen.print(terminal.printable(note), style="dim")
