"""The command line: thin verbs over public functions, each imported only when its verb is called.

Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 data is missing, 4 a run failed, 130 stopped by Ctrl-C.
An error is one sentence on stderr; `--debug`, anywhere on the line, shows the traceback instead.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from longspan.core.errors import (
    CheckFailed,
    DataMissing,
    LongspanError,
    RunFailed,
    StorageError,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from longspan.conformance import Report

INTERRUPTED = 130
UNEXPECTED = 4

# -------------------------------------------------------------------------------------------------- errors as sentences


class Verbs(TyperGroup):
    """The group of all verbs, which ends every failure with one sentence and the right exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **settings: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        self.debug = "--debug" in words
        settings["standalone_mode"] = False
        try:
            code = super().main([word for word in words if word != "--debug"], "longspan", **settings)
        except (Exception, KeyboardInterrupt) as error:
            if self.debug:
                raise
            sentence, code = explain(error)
            _say(sentence, error=True)
        sys.exit(code if isinstance(code, int) else 0)


class SeveralMechanisms(TyperCommand):
    """A verb whose `-a` takes several mechanisms in a row: `-a softmax linear` is `-a softmax -a linear`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in ATTENTION_FLAGS:
            raise UsageError("No task was named before -a; write it like longspan run listops -a softmax linear.")
        return super().parse_args(ctx, list(_spread(args, ATTENTION_FLAGS)))


ATTENTION_FLAGS = ("-a", "--attention")


class SeveralMeasured(TyperCommand):
    """A verb whose `-a` and `--lengths` take several words in a row."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_spread(args, (*ATTENTION_FLAGS, "--lengths"))))


def _spread(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
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


def explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user about a failure, and the exit code."""
    if isinstance(error, LongspanError):
        return str(error), error.exit_code
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "Stopped.", INTERRUPTED
    if (tell := getattr(error, "format_message", None)) is not None:  # what typer raises on a malformed command line
        command = getattr(getattr(error, "ctx", None), "command_path", "longspan")
        return f"{tell().replace('Value error, ', '').rstrip('.')}. See {command} --help.", 2
    if isinstance(error, ModuleNotFoundError):
        return f"This verb needs the package {error.name!r}, which is not installed; see longspan doctor.", 2
    if isinstance(error, OSError):
        return f"Cannot use {error.filename or 'a file'} ({error.strerror or error}); check the disk and the folder.", 4
    return f"Unexpected {type(error).__name__}: {error} (--debug shows where; please report it).", UNEXPECTED


def _say(sentence: str, *, error: bool = False) -> None:
    from longspan.terminal import say

    say(" ".join(sentence.split()), error=error)


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False))


# --------------------------------------------------------------------------------------------------- words of the verbs

Kind = StrEnum("Kind", ["attentions", "tasks", "backbones", "datasets", "suites", "protocols"])
Format = StrEnum("Format", ["terminal", "markdown", "md", "csv", "latex", "json", "html"])
Dtype = StrEnum("Dtype", ["float32", "bfloat16"])
Launcher = StrEnum("Launcher", ["local"])
Startable = StrEnum("Startable", ["attention"])
Procedure = StrEnum("Procedure", ["lra"])
Mode = StrEnum("Mode", ["train", "inference", "both"])
Clock = StrEnum("Clock", ["wall", "compute"])
TableFormat = StrEnum("TableFormat", ["terminal", "markdown", "md", "csv", "json"])

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of runs, cards, conformance and report.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Pattern = Annotated[str | None, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC or the full name.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="Change one setting; may be repeated.")]
Cards = Annotated[
    list[Path] | None,
    typer.Option("--cards", metavar="DIR", help="Read cards here, not in OUT/cards and results; may be repeated."),
]
Protocol = Annotated[str, typer.Option("--protocol", metavar="P", help="The rules.")]
Tier = Annotated[str, typer.Option("--tier", metavar="T", help="smoke, lite or full.")]

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)
data_app = typer.Typer(rich_markup_mode=None, context_settings=CONTEXT)


def main() -> None:
    """The console script."""
    app()


@app.callback(invoke_without_command=True)
def longspan(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
) -> None:
    """The arena for long-sequence attention.

    \b
    longspan check mine.py:Mine                     is it right?
    longspan run listops -a mine.py:Mine softmax    how good is it?
    longspan board starter                          against whom?
    longspan report --serve                         the same as a site
    """
    if version:
        import longspan

        print(longspan.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _overrides(changes: Sequence[str] | None) -> dict[str, Any]:
    """`recipe.steps=500` as {"recipe.steps": 500}; what is no literal is a word."""
    found: dict[str, Any] = {}
    for change in changes or ():
        name, equals, text = (part.strip() for part in change.partition("="))
        if not (name and equals and text):
            raise UsageError(f"--set takes name=value, got {change!r}; write it like recipe.steps=500.")
        if name in found:
            raise UsageError(f"--set {name} is given twice; keep one of them.")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found[name] = text
    return found


# -------------------------------------------------------------------------------------------------------- list and show


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything when left out.")] = None,
    as_json: Json = False,
) -> None:
    """List what there is, with one line each.

    \b
    Examples:
      longspan list attentions
      longspan list --json > catalogue.json     the catalogue that reports are built from
    """
    from longspan import catalogue, terminal

    content = catalogue.catalogue((str(kind),) if kind else None)
    if as_json:
        _print_json(content)
    else:
        for name in catalogue.KINDS:
            if name in content:
                for table in terminal.list_tables(name, content[name]):
                    terminal.console().print(table)
    for problem in content["problems"]:
        _say(problem["sentence"], error=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An attention (with options, or a file of yours), task, dataset...")],
    samples: Annotated[int | None, typer.Option("--samples", metavar="N", min=1, help="Show N fresh examples.")] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Draw the samples into a PNG file.")] = None,
    changes: Changes = None,
) -> None:
    """Show one of them whole: formula, options, patterns, paper, cost; rules; examples.

    \b
    Examples:
      longspan show "performer(features=64)"
      longspan show listops --samples 3
      longspan show pathfinder --samples 8 -o x.png --set size=64
      longspan show image --samples 8 -o x.png
    """
    from longspan import catalogue, terminal

    if (output or changes) and not samples:
        raise UsageError("-o and --set belong to --samples N, which was not given; add it.")
    if not samples:
        for kind, entry in catalogue.find(name).items():
            terminal.print_entry(kind, entry, terminal.console())
        return
    from longspan.corpora import examples_of

    dataset, data = examples_of(name, _overrides(changes))
    if output is not None:
        dataset.draw_samples(data, samples, output)
        _say(f"{samples} samples of {name} are in {output}.")
        return
    for sample in dataset.samples(data, samples):
        if not isinstance(sample.content, str):
            raise UsageError(f"{name} holds images, which a terminal cannot show; add -o FILE.png to draw them.")
        print(f"{sample.label}\t{sample.content}")


# -------------------------------------------------------------------------------------------------------------- check


@app.command()
def check(
    mechanisms: Annotated[list[str] | None, typer.Argument(metavar="MECH...", help="Names, or file.py:Class.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every built-in and installed mechanism.")] = False,
    pattern: Pattern = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="bfloat16 means autocast, as in training.")] = Dtype.float32,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds a pattern: fewer lengths and draws.")] = False,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Prove or refute what a mechanism claims, in every pattern it declares.

    Results are kept in OUT/conformance, where `report` finds them. Exit code 1 when a promise is broken.

    \b
    Examples:
      longspan check my_attention.py:Mine
      longspan check --all --quick
      longspan check "performer(features=64)" --pattern CS --device cuda --dtype bfloat16
    """
    from longspan import conformance, terminal, verdicts

    asked = _to_check(mechanisms or [], every, pattern)
    profile = "quick" if quick else "full"
    reports: list[Report] = []
    with _Progress(len(asked)) as advance:
        for mechanism, one in asked:
            advance(f"{mechanism} as {one}")
            reports += conformance.check(mechanism, [one], device=device, dtype=str(dtype), profile=profile)
    try:
        verdicts.save(out / "conformance", reports)
    except StorageError as error:  # the answer counts, even where it cannot be kept
        _say(f"The result was not kept: {error}", error=True)
    if as_json:
        _print_json([report.to_json() for report in reports])
    elif len(reports) == 1:
        terminal.console().print(conformance.table(reports[0]))
    else:
        terminal.print_conformance([report.to_json() for report in reports], terminal.console())
    broken = [
        f"{report.mechanism} as {report.pattern} breaks {', '.join(repr(f.promise) for f in report.broken)}"
        for report in reports
        if not report.ok
    ]
    if broken:
        raise CheckFailed("; ".join(broken) + ".")


def _to_check(specs: list[str], every: bool, pattern: str | None) -> list[tuple[Any, Any]]:
    """Pairs of mechanism and pattern; with --all, a pattern only narrows, and twins of released code, which repeat
    its faults, are left out: name one to see which."""
    from longspan import attentions

    if not specs and not every:
        raise UsageError("No mechanism was named to check; name one, as in longspan check softmax, or ask for --all.")
    wanted = attentions.Pattern.parse(pattern) if pattern else None
    pairs = []
    for spec in specs:
        mechanism = attentions.get(spec)
        pairs += [(mechanism, one) for one in ([wanted] if wanted else mechanism.meta.patterns)]
    for mechanism in map(attentions.get, attentions.names() if every else ()):
        if not mechanism.meta.fidelity:
            pairs += [(mechanism, one) for one in mechanism.meta.patterns if wanted in (None, one)]
    return pairs


class _Progress:
    """A bar on stderr while many things are done one after another; nothing where stderr is no terminal."""

    def __init__(self, total: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from longspan import terminal

        console = terminal.console(error=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.bar.add_task("", total=total)
        self.done = -1

    def __enter__(self) -> Callable[[str], None]:
        self.bar.start()
        return self.advance

    def advance(self, what: str) -> None:
        self.done += 1
        self.bar.update(self.task, description=what, completed=self.done)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


# --------------------------------------------------------------------------------------------------------------- data

Dataset = Annotated[str, typer.Argument(metavar="NAME", help="A dataset, as `longspan list datasets` shows it.")]
AnyDataset = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A dataset; all when left out.")]


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """Put data on disk, look at it, check it. It lies in $LONGSPAN_DATA, else in out/data.

    \b
    Examples:
      longspan data status
      longspan data prepare listops --tier smoke
      longspan data prepare listops --official
      longspan data import pathfinder ~/lra_release/pathfinder32
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@data_app.command("prepare")
def data_prepare(
    name: Dataset,
    protocol: Protocol = "longspan",
    tier: Tier = "full",
    changes: Changes = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="All cores when left out.")] = None,
    official: Annotated[
        bool, typer.Option("--official", help="Download the published files also where they can be generated.")
    ] = False,
    mirror: Annotated[
        str | None,
        typer.Option("--from-mirror", metavar="URL", help="Folder on a server with the same files ($LONGSPAN_MIRROR)."),
    ] = None,
) -> None:
    """Generate or download a dataset; a second call only checks it, an interrupted one goes on.

    Downloads are verified and lie in downloads/ beside the data; the archive of the Long Range Arena (8.2 GB) is read
    as it arrives and not kept.

    \b
    Examples:
      longspan data prepare pathfinder --tier full
      longspan data prepare listops --official
      longspan data prepare imdb --from-mirror http://mirror.example/data
    """
    from longspan import corpora
    from longspan.core import remote

    dataset, data = corpora.settings(name, protocol, tier, _overrides(changes))
    with remote.mirrored(mirror):
        splits = dataset.prepare_official(data) if official else dataset.prepare(data, workers=workers)
    _say(f"{name} ({splits.variant}) is ready in {dataset.status(data).folder}: {_counted(splits.counts)}.")


@data_app.command("import")
def data_import(
    name: Dataset,
    path: Annotated[Path, typer.Argument(help="A folder with the official files, or the archive as published.")],
    protocol: Protocol = "longspan",
    tier: Tier = "full",
    changes: Changes = None,
) -> None:
    """Convert files that you have, unpacked or not; runs prefer them to generated data from then on.

    \b
    Examples:
      longspan data import listops ~/lra_release/listops-1000
      longspan data import pathfinder ~/Downloads/lra_release.gz
      longspan data import pathfinder ~/lra_release --set split=seed42
    """
    from longspan import corpora

    dataset, data = corpora.settings(name, protocol, tier, _overrides(changes))
    if not path.exists():
        raise DataMissing(f"{name} was to be read from {path}, where nothing is; get it from {dataset.meta.source}.")
    _say(f"{name} is imported: {_counted(dataset.import_from(path, data).counts)}.")


@data_app.command("status")
def data_status(name: AnyDataset = None, as_json: Json = False) -> None:
    """Show what is on disk, for every setting that a task uses.

    \b
    Example:
      longspan data status listops
    """
    from longspan import corpora, terminal

    found = [(use.dataset.status(use.data), use.users) for use in corpora.in_use(name)]
    if as_json:
        _print_json([vars(status) | {"folder": str(status.folder), "for": users} for status, users in found])
    else:
        terminal.console().print(terminal.data_table(found))


@data_app.command("verify")
def data_verify(name: AnyDataset = None) -> None:
    """Hash every byte on disk and compare with the manifest. Exit code 1 on damage, 3 when nothing is there.

    \b
    Example:
      longspan data verify listops
    """
    from longspan import corpora

    uses = [use for use in corpora.in_use(name) if use.dataset.status(use.data).ready]
    if not uses:
        raise DataMissing(
            f"Nothing of {name or 'any dataset'} is on disk to verify; longspan data prepare puts it there."
        )
    problems = []
    with _Progress(len(uses)) as advance:
        for use in uses:
            advance(str(use.dataset.status(use.data).folder))
            problems += use.dataset.verify(use.data)
    if problems:
        raise CheckFailed(" ".join(problems))
    _say(f"All hashes agree in {len(uses)} {'folder' if len(uses) == 1 else 'folders'}.")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in counts.items())


# --------------------------------------------------------------------------------------------------------------- runs


@app.command(cls=SeveralMechanisms)
def run(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="TASK|SUITE...", help="Tasks or suites, before -a.")],
    mechanisms: Annotated[
        list[str], typer.Option(*ATTENTION_FLAGS, metavar="MECH...", help="Names, or file.py:Class.")
    ],
    pattern: Pattern = None,
    protocol: Protocol = "longspan",
    tier: Tier = "smoke",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Seeds 0 to N-1.")] = 1,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or the better: auto.")] = "auto",
    devices: Annotated[int, typer.Option("--devices", metavar="N", min=1, help="Processes that share a run.")] = 1,
    launcher: Annotated[Launcher, typer.Option("--launcher", help="Where runs are started.")] = Launcher.local,
    real: Annotated[bool, typer.Option("--real", help="Refuse stand-in data, also in the smoke tier.")] = False,
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")] = False,
    out: Out = Path("out"),
) -> None:
    """Train and score mechanisms on tasks. What is finished is not run again; what was interrupted goes on.

    One cell is a task, a mechanism, a pattern and a seed. A cell that fails does not stop the others; the exit code is
    4 when one failed. --set takes a run off the official board.

    \b
    Examples:
      longspan run starter -a softmax linear --tier smoke
      longspan run listops -a my_attention.py:Mine --seeds 3 --tier full
      longspan run listops -a softmax --tier full --set recipe.steps=500 --dry-run
    """
    from longspan import runs, terminal
    from longspan.estimate import estimate

    cells = list(
        runs.cells(
            _task_names(names),
            list(dict.fromkeys(mechanisms)),
            pattern=pattern,
            protocol=protocol,
            tier=tier,
            seeds=seeds,
            overrides=_overrides(changes),
        )
    )
    for cell in cells:
        runs.Plan.of(cell)  # refuses a wrong word before the first cell is run
    device = runs.choose_device(device)
    if dry_run:
        terminal.console().print(terminal.estimates_table([(c, estimate(c, device=device)) for c in cells], device))
        return
    cards, codes = [], []
    for number, cell in enumerate(cells, start=1):
        if len(cells) > 1:
            _say(f"[{number}/{len(cells)}] {cell.task} · {cell.mechanism} · seed {cell.seed}", error=True)
        try:
            cards.append(runs.run(cell, out=out, device=device, devices=devices, real=real))
        except KeyboardInterrupt:
            _say("Stopped. The state is saved; the same command goes on from there.", error=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:  # whatever it is, the other cells still deserve their run
            if getattr(context.find_root().command, "debug", False):
                raise
            sentence, code = explain(error)
            _say(sentence, error=True)
            codes.append(code)
    if cards:
        terminal.console().print(terminal.cards_table(cards))
        if note := _standin_note(cards):
            _say(note)
        word = _board_of({card["task"] for card in cards})
        _say(f"Cards are in {out / 'cards'}; see them with longspan board {word}, or longspan report.")
    if codes:
        if len(cells) > 1:
            _say(f"{len(codes)} of {len(cells)} cells failed.", error=True)
        raise typer.Exit(codes[0] if len(set(codes)) == 1 else UNEXPECTED)


def _standin_note(cards: Sequence[dict[str, Any]]) -> str | None:
    """What a reader of scores must know where some were reached on made-up data."""
    made_up = [(card["task"], card["dataset"]["name"]) for card in cards if card["dataset"]["variant"] == "standin"]
    if not made_up:
        return None
    tasks, corpora = (list(dict.fromkeys(names)) for names in zip(*made_up, strict=True))
    return (
        f"Made-up stand-in data: {', '.join(tasks)}. Those scores say only that the code runs. For the real data: "
        f"longspan data prepare {' or '.join(corpora)}; --real refuses stand-ins."
    )


def _task_names(names: Sequence[str]) -> list[str]:
    """Tasks, with suites replaced by theirs."""
    from longspan import suites, tasks

    found = []
    for name in names:
        if name in suites.names():
            absent = [task for task in suites.get(name).tasks if task not in tasks.names()]
            if absent:
                rest = " ".join(task for task in suites.get(name).tasks if task not in absent)
                raise UsageError(f"{name} needs {', '.join(absent)}, not in this version; name the others: {rest}.")
            found += suites.get(name).tasks
        elif name in tasks.names() or ":" in name:
            found.append(name)
        else:
            raise UsageError(f"No task or suite named {name!r}.{did_you_mean(name, [*tasks.names(), *suites.names()])}")
    return list(dict.fromkeys(found))


def _board_of(tasks: set[str]) -> str:
    """The word under which `board` shows these tasks: the only one, else the smallest suite that has them all."""
    from longspan import suites

    if len(tasks) == 1:
        return next(iter(tasks))
    holding = [suite for suite in suites.SUITES.values() if tasks <= set(suite.tasks)]
    return min(holding, key=lambda suite: len(suite.tasks)).name if holding else sorted(tasks)[0]


@app.command("runs")
def runs_(
    clean: Annotated[bool, typer.Option("--clean", help="Remove them.")] = False,
    out: Out = Path("out"),
) -> None:
    """Show unfinished runs, which `run` with the same words takes up again.

    \b
    Example:
      longspan runs --clean
    """
    from longspan import runs, terminal

    if clean:
        removed = runs.clean(out)
        _say(f"Removed: {', '.join(path.name for path in removed)}." if removed else "There is nothing to remove.")
    elif found := runs.unfinished(out):
        terminal.console().print(terminal.unfinished_table(found))
    else:
        _say(f"No unfinished runs in {out / 'runs'}.")


@app.command()
def params(protocol: Protocol = "longspan", tier: Tier = "full", as_json: Json = False) -> None:
    """Count the parameters of every task's network with every mechanism, against softmax.

    \b
    Example:
      longspan params --tier smoke
    """
    from longspan import api, terminal

    rows = api.params(protocol, tier)
    if as_json:
        _print_json(rows)
    else:
        terminal.console().print(terminal.parameters_table(rows))


# ------------------------------------------------------------------------------------------------------------- measure


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
    with _Progress(len(asked) * len(setup.lengths) * len(setup.modes)) as advance:
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


# --------------------------------------------------------------------------------------------------------------- probe


@app.command()
def probe(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="span, rollout, embeddings, transfer or gap.")],
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards of runs with their weights.")],
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="N", min=1, help="Examples; what the question usually takes.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which examples are drawn.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or the better: auto.")] = "auto",
    attention: Annotated[
        str | None, typer.Option("--attention", metavar="MECH", help="Where a plug-in lies now: path/mine.py:Mine.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Also draw it: HTML, PDF and PNG.")] = None,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Put a question to trained models and keep each answer as a card in OUT/cards/probes.

    \b
    span        how far from a token lies what it attends to?
    rollout     which pixels of an image does the answer come from?
    embeddings  which intensities and which positions look alike?
    transfer    does a model trained on Pathfinder answer Path-X?
    gap         how much better is the model on what it was trained on?

    \b
    Examples:
      longspan probe span out/cards/listops/*.json --samples 200
      longspan probe rollout out/cards/pathfinder/pathfinder-softmax-....json -o figures
    """
    from longspan import analysis, inquiry, terminal
    from longspan.results import card as card_module

    made = {}
    with _Progress(len(cards)) as advance:
        for path in cards:
            advance(f"{question} of {path.name}")
            answer, where = inquiry.ask(
                question, path, samples=samples, seed=seed, out=out, device=device, attention=attention
            )
            made[where] = answer
    runs = [card_module.read(path, "run") for path in cards]
    folders = {answer["sha256"]: where.parent for where, answer in made.items()}
    finding = analysis.answer(question, analysis.Evidence(runs, list(made.values()), folders=folders))
    if as_json:
        _print_json(list(made.values()))
    else:
        terminal.print_finding(finding, terminal.console())
        for where in made:
            _say(f"The answer is {where}.")
    if output is not None:
        _draw(finding, output)


def _draw(finding: Any, folder: Path) -> None:
    from longspan.report.answer import write

    for path in write(finding, folder):
        _say(f"Drawn: {path}.", error=True)


# ------------------------------------------------------------------------------------------- the reading half: no torch


@app.command()
def board(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite, or one task.")],
    protocol: Annotated[str | None, typer.Option("--protocol", metavar="P", help="Only this one.")] = None,
    tier: Annotated[str | None, typer.Option("--tier", metavar="T", help="Only this one.")] = None,
    pattern: Pattern = None,
    published: Annotated[
        str | None, typer.Option("--published", metavar="TABLE", help="Published rows: v0, v1, later or none.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.terminal,
    snapshot: Annotated[str | None, typer.Option("--snapshot", metavar="NAME", help="Freeze it under a name.")] = None,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Rank mechanisms from cards; protocols, tiers and kinds of data never share a board.

    Without --protocol or --tier there is a board for each that has cards. Full boards of lra show the published
    leaderboard, version 1 (v1); v0 is that of the first paper, later are records that follow other rules.
    Snapshots lie in OUT/snapshots.

    \b
    Examples:
      longspan board starter --tier smoke
      longspan board lra --protocol longspan --tier full --format md
      longspan board lra --published v0
    """
    from longspan import gallery, terminal
    from longspan.results.board import freeze
    from longspan.results.render import render_all

    folders = gallery.card_folders(cards, out)
    found = gallery.cards_in(folders)
    for problem in found.problems:
        _say(f"Left out: {problem.sentence}", error=True)
    asked_for = {"protocol": protocol, "tier": tier, "pattern": pattern, "published": published}
    views = list(gallery.boards(found.cards, suite, **asked_for))
    if not views:
        where = ", ".join(map(str, folders)) or out / "cards"
        asked = f"{suite} ({protocol or 'any protocol'}, {tier or 'any tier'}, {pattern or 'any pattern'})"
        raise DataMissing(f"No cards of {asked} in {where}; make some with longspan run {suite} -a softmax.")
    if snapshot is not None:
        if len(views) != 1:
            raise UsageError(f"A snapshot freezes one board, but {len(views)} match; add --protocol and --tier.")
        _say(f"The snapshot is {freeze(views[0], snapshot, out / 'snapshots')}.", error=True)
    screen = terminal.console()
    print(render_all(views, str(form), width=screen.width, colour=screen.is_terminal).rstrip("\n"))


@app.command()
def analyze(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUESTION]", help="tradeoff, span, gap, convergence, rollout, embeddings, transfer; else all."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Draw it: HTML, PDF and PNG.")] = None,
    as_json: Json = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Answer the papers' questions from cards, beside what the papers printed.

    \b
    tradeoff     what does accuracy cost in time and memory?         runs, measurements
    span         how far must attention reach, task by task?         probes
    gap          how much better on what it was trained on?          probes
    convergence  steps to 30 and 35 % on Image                       runs
    rollout      which pixels does an answer come from?              probes
    embeddings   which intensities and positions look alike?         probes
    transfer     do Pathfinder models answer Path-X?                 probes

    \b
    Examples:
      longspan analyze tradeoff -o figures
      longspan analyze gap --json
    """
    from longspan import analysis, gallery, terminal

    folders = gallery.card_folders(cards, out)
    evidence = analysis.gather(folders)
    for problem in evidence.problems:
        _say(f"Left out: {problem.sentence}", error=True)
    found = [analysis.answer(question, evidence)] if question else analysis.answers(evidence)
    if as_json:
        contents = [finding.to_json() for finding in found]
        _print_json(contents[0] if question else contents)
    else:
        for finding in found:
            terminal.print_finding(finding, terminal.console())
    if output is not None:
        for finding in found:
            _draw(finding, output)


@app.command()
def report(
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Where it goes, if not OUT/report.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show it at a local address until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port for --serve.")] = 8000,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Build a static site from cards: boards, curves, cost, a page per mechanism. It opens from disk, offline.

    \b
    Examples:
      longspan report
      longspan report -o site --serve
    """
    from longspan import analysis, gallery, verdicts
    from longspan.report.build import build

    folders = gallery.card_folders(cards, out)
    found, evidence = gallery.cards_in(folders), analysis.gather(folders)
    conformance, unreadable = verdicts.load([out / "conformance", Path("results")])
    problems = [*found.problems, *unreadable]
    site = output or out / "report"
    told = {"catalogue": _catalogue(out), "conformance": conformance, "problems": problems, "evidence": evidence}
    index = build(found.cards, site, **told)
    for problem in problems:
        _say(f"Left out: {problem.sentence}", error=True)
    _say(f"The report is {index}: {len(found.cards)} card{'' if len(found.cards) == 1 else 's'}.")
    if serve:
        _serve(index.parent, port)


def _catalogue(out: Path) -> dict[str, Any] | None:
    """Written anew where everything it needs is installed, else the one written last, if any."""
    from longspan import catalogue

    path = out / "catalogue.json"
    try:
        return catalogue.write(path)
    except ModuleNotFoundError as error:
        _say(f"Without {error.name} the catalogue cannot be renewed; the last one is used if there is one.", error=True)
    return catalogue.read(path) if path.exists() else None


def _serve(site: Path, port: int) -> None:
    import functools
    import http.server

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """A page view needs no line."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Quiet, directory=str(site))) as server:
        _say(f"Serving at http://127.0.0.1:{server.server_port} until Ctrl-C.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            _say("Stopped.", error=True)


@app.command()
def verify(cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Card files.")]) -> None:
    """Check cards without training again: schema, hash, files, and the score recomputed from the predictions.

    \b
    Example:
      longspan verify out/cards/listops/*.json
    """
    from longspan import terminal
    from longspan.results import card

    broken = []
    for path in cards:
        findings = card.verify(path)
        rows = [(finding.check, finding.status, finding.detail) for finding in findings]
        terminal.console().print(terminal.table(("check", "status", "detail"), rows, title=str(path)))
        broken += [finding.detail for finding in findings if finding.status == "broken"]
    if broken:
        raise CheckFailed("; ".join(broken))


# ------------------------------------------------------------------------------------------------------ new and doctor


@app.command()
def new(
    kind: Annotated[Startable, typer.Argument(help="What to start.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The file is NAME.py, in this folder.")],
) -> None:
    """Write a starting file that already passes `check`.

    \b
    Example:
      longspan new attention mine
    """
    from longspan import scaffold

    path = scaffold.new_attention(name)
    _say(f"{path} is written. Try: longspan check {path}:{scaffold.class_name(name)}")


@app.command()
def doctor(out: Out = Path("out")) -> None:
    """Show what this machine has and lacks, and what to do. Exit code 1 when something required is broken.

    \b
    Example:
      longspan doctor
    """
    from longspan import doctor as examination
    from longspan import terminal

    findings = examination.examine(out)
    rows = [(finding.name, finding.status, finding.found, finding.advice) for finding in findings]
    terminal.console().print(terminal.table(("what", "status", "found", "what to do"), rows))
    broken = [finding.name for finding in findings if finding.status == "broken"]
    if broken:
        raise CheckFailed(f"Required and not working: {', '.join(broken)}; see what to do above.")


app.add_typer(data_app, name="data")
