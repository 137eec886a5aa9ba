"""What the commands share. Each is a thin layer over public functions, imported only when it is called.

Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 data is missing, 4 a run failed, 128 + n stopped by signal n
(130: Ctrl-C, 143: SIGTERM).
An error is one sentence on stderr; `--debug`, anywhere on the line, shows the traceback instead.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from longspan.core import errors, readable_json, signals
from longspan.core.errors import UsageError, shortened
from longspan.core.printable import make_streams_plain, plain_streams

ORDER = (
    *(
        "list",
        "show",
        "check",
        "data",
        "run",
        "runs",
        "plan",
        "params",
        "measure",
        "measure lra",
        "crossover",
        "advise",
    ),
    *("probe", "analyze", "board", "paper", "report", "tables", "verify", "share", "new", "doctor"),
)
INTERRUPTED = 130

# -------------------------------------------------------------------------------------------------- errors as sentences


class Commands(TyperGroup):
    """The group of all commands; every failure ends with one sentence and the right exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Some commands have two words."""
        if (name := " ".join(args[:2])) in self.commands:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # typer would end without a word
            raise typer.Abort from error

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **settings: Any) -> Any:
        with plain_streams():
            self._main(list(sys.argv[1:] if args is None else args), **settings)

    def _main(self, words: list[str], **settings: Any) -> None:
        self.debug = "--debug" in words
        settings["standalone_mode"] = False
        try:
            code = super().main([word for word in words if word != "--debug"], "longspan", **settings)
        except (Exception, KeyboardInterrupt) as error:
            if self.debug:
                raise
            command = f"longspan {words[0]}" if words and words[0] in self.commands else "longspan"
            sentence, code = explain(error, command)
            say(sentence, error=True)
        sys.exit(code if isinstance(code, int) else 0)


class SeveralMechanisms(TyperCommand):
    """A command whose `-a` takes several mechanisms in a row: `-a softmax linear` is `-a softmax -a linear`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in ATTENTION_FLAGS:
            raise UsageError("No task was named before -a; write it like longspan run listops -a softmax linear.")
        return super().parse_args(ctx, list(spread(args, ATTENTION_FLAGS)))


ATTENTION_FLAGS = ("-a", "--attention")


class SeveralValues(TyperCommand):
    """A command whose options take several values in a row: `--lengths 256 512`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(spread(args, (*ATTENTION_FLAGS, *SEVERAL_FLAGS))))


SEVERAL_FLAGS = ("--lengths", "--mode", "--variant", "--pattern", "--trust")


def spread(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Repeat a flag before each of its values."""
    flag, values = None, 0
    for word in words:
        if word in flags:
            flag, values = word, 0
        elif word.startswith("-"):
            flag = None
        elif flag is not None:
            values += 1
            if values > 1:
                yield flag
        yield word


def explain(error: BaseException, command: str = "longspan") -> tuple[str, int]:
    """What to tell the user about a failure of this command, and the exit code."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "Stopped.", INTERRUPTED
    if (tell := getattr(error, "format_message", None)) is not None:  # what typer raises on a malformed command line
        command = getattr(getattr(error, "ctx", None), "command_path", command)
        return f"{tell().replace('Value error, ', '').rstrip('.')}. See {command} --help.", 2
    return errors.explain(error)


@contextlib.contextmanager
def stoppable(saved: str) -> Iterator[None]:
    """A signal ends the block with a sentence that says what is saved, and the exit code that schedulers expect."""
    try:
        with signals.raised():
            yield
    except signals.Stopped as stop:
        by = "" if stop.number == signal.SIGINT else f" by {signal.Signals(stop.number).name}"
        say(f"Stopped{by}. {saved}", error=True)
        raise typer.Exit(128 + stop.number) from None


def say(sentence: str, *, error: bool = False) -> None:
    from longspan.cli.tables import say

    say(" ".join(sentence.split()), error=error)


def print_json(content: Any) -> None:
    print(readable_json.printed(content))


# --------------------------------------------------------------------------------- arguments that several commands have

Kind = StrEnum("Kind", ["attentions", "tasks", "backbones", "datasets", "suites", "protocols"])
Format = StrEnum("Format", ["terminal", "markdown", "md", "csv", "latex", "json", "html"])
Dtype = StrEnum("Dtype", ["float32", "bfloat16", "float64"])
Startable = StrEnum("Startable", ["attention", "task", "backbone"])
Mode = StrEnum("Mode", ["train", "inference", "both"])
Work = StrEnum("Work", ["forward", "train", "decode"])
Variant = StrEnum("Variant", ["eager", "graph", "compiled"])
Module = StrEnum("Module", ["core", "layer", "block"])
MeasurePreset = StrEnum("MeasurePreset", ["cab"])
Clock = StrEnum("Clock", ["wall", "compute"])
TableFormat = StrEnum("TableFormat", ["terminal", "markdown", "md", "csv", "json"])


def _folder(place: str | Path) -> Path:
    """The folder itself, or for an address such as s3://bucket/x the local folder that mirrors it."""
    from longspan.core.mirror import local

    return local(place)


Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", parser=_folder, help="Folder of runs, cards and reports, or s3://bucket/x."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Pattern = Annotated[str | None, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC or the full name.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC or the full name; several as NS+CS or repeated."),
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Change one setting; may be repeated.")]
Cards = Annotated[
    list[Path] | None,
    typer.Option(
        "--cards", metavar="DIR", parser=_folder, help="Read cards here, not in OUT/cards and results; may be repeated."
    ),
]
Protocol = Annotated[str, typer.Option("--protocol", metavar="P", help="The set of rules.")]
Tier = Annotated[str, typer.Option("--tier", metavar="T", help="smoke, lite or full.")]

Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="T", help="Time for all cells together, such as 25m; the rest is left for later."),
]
Share = Annotated[
    int, typer.Option("--share", metavar="K", min=1, max=64, help="Cells that share the device; for scores only.")
]
Weights = Annotated[
    bool, typer.Option("--weights/--no-weights", help="Keep the trained weights beside the card, for probes and use.")
]

Launcher = Annotated[str, typer.Option("--launcher", metavar="L", help="Where cells run: local, ray or slurm.")]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="A", help="Address of a Ray cluster; one is started here if left out."),
]
Cpus = Annotated[
    int | None, typer.Option("--cpus", metavar="N", min=1, help="Cores per cell under ray and slurm; 1 if left out.")
]
SlurmSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set-slurm", metavar="K=V", help="An sbatch option, as partition=gpu; time is in minutes; may be repeated."
    ),
]
CellsPerJob = Annotated[
    int | None, typer.Option("--cells-per-job", metavar="N", min=1, help="Cells per Slurm job; 1 if left out.")
]

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
data_app = typer.Typer(rich_markup_mode=None, context_settings=CONTEXT)
app.add_typer(data_app, name="data")
share_app = typer.Typer(rich_markup_mode=None, context_settings=CONTEXT)
app.add_typer(share_app, name="share")


def main() -> None:
    """The console script."""
    # Otherwise idle torch threads spin and slow one another down on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    make_streams_plain()  # for good: the traceback of --debug is printed after the command
    app()


@app.callback(invoke_without_command=True)
def longspan(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may be anywhere on the line.")] = False,
) -> None:
    """The arena for long-sequence attention.

    \b
    longspan check mine.py:Mine                     is it right?
    longspan run listops -a mine.py:Mine softmax    how good is it?
    longspan measure mine.py:Mine softmax           how fast, how big?
    longspan board starter                          against whom?
    longspan advise --pattern CS --length 16384     which one should I use?
    longspan report --serve                         all of it as a site
    """
    if version:
        import longspan

        print(longspan.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def overrides(
    changes: Sequence[str] | None, *, flag: str = "--set", example: str = "recipe.steps=500"
) -> dict[str, Any]:
    """`recipe.steps=500` as {"recipe.steps": 500}; a value that is not a number, bool, None or tuple stays a string."""
    from longspan.core.spec import literal

    found: dict[str, Any] = {}
    for change in changes or ():
        name, equals, text = (part.strip() for part in change.partition("="))
        if not (name and equals and text):
            raise UsageError(f"{flag} takes name=value, got {shortened(change)!r}; write it like {example}.")
        if name in found:
            raise UsageError(f"{flag} {shortened(name)} is given twice; keep one of them.")
        try:
            found[name] = literal(text)
        except ValueError:
            found[name] = text
    return found


LAUNCHER_OPTIONS = {
    "address": ("ray",),
    "cpus": ("ray", "slurm"),
    "set_slurm": ("slurm",),
    "cells_per_job": ("slurm",),
}


def launcher_options(launcher: str, **given: Any) -> dict[str, Any]:
    """The launcher-specific options that were given; one that the chosen launcher lacks is refused."""
    options = {name: value for name, value in given.items() if value}
    for name in options:
        if launcher not in (those := LAUNCHER_OPTIONS[name]):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for --launcher {' or '.join(those)}, and it is {launcher}; leave it out.")
    if (words := options.pop("set_slurm", None)) is not None:
        options["settings"] = overrides(words, flag="--set-slurm", example="partition=gpu")
    return options


def catalogue(kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """The shipped catalogue if it is up to date; else a new one, which imports torch."""
    from longspan.results.catalogue import shipped

    if (content := shipped(kinds)) is None:
        from longspan.api import catalogue

        content = catalogue(kinds)
    return content


class ProgressBar:
    """A progress bar on stderr; a line from time to time if stderr is not a terminal."""

    EVERY = 15.0  # seconds between two lines

    def __init__(self, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from longspan.cli import tables

        console = tables.console(error=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.bar.add_task("", total=total)
        self.done, self.total = -1, total
        self.began = self.said = time.monotonic()

    def __enter__(self) -> Callable[[str], None]:
        self.bar.start()
        return self.advance

    def advance(self, what: str) -> None:
        self.done += 1
        self.bar.update(self.task, description=what, completed=self.done)
        if self.bar.disable and time.monotonic() - self.said >= self.EVERY:
            self.said = time.monotonic()
            say(f"{self.done} of {self.total} done after {self._spent()}; now {what}", error=True)

    def _spent(self) -> str:
        from longspan.cli.tables import duration

        return duration(time.monotonic() - self.began)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
