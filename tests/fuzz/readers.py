"""Every command that reads cards, run on a folder of them as a user would, and what went wrong.

faults = [fault for words in commands(store, paths) for fault in faults_of(words)]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from longspan import analysis, suites
from longspan.cli import app

MARKED = ("scores listops smoke", "scores image full", "changed listops smoke", "board starter longspan smoke")
MARKED += ("differences listops image", "metrics listops smoke loss", "language lm smoke 256", "times 512")
MARKED += ("forecasting forecasting_etth1", "finding convergence published")
FORMATS = ("terminal", "markdown", "csv", "latex", "json", "html")
EXIT_CODES = (0, 1, 2, 3, 4)
# C0 but tab and line feed, DEL, C1, and characters that change the text direction.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile("\x1b\\[[0-9;]*m")  # the colours that rich writes


@dataclass(frozen=True)
class Fault:
    """A promise broken by a command, or by a file it wrote."""

    kind: str  # unexpected, traceback, exit code, control character
    words: str
    detail: str


def commands(store: Path, paths: list[Path], out: Path) -> Iterator[list[str]]:
    """The command lines of all readers; the report and drawings go into `out`."""
    where = ["--cards", str(store), "--out", str(out)]
    yield ["verify", *map(str, paths)]
    for name in (*suites.names(), "image", "forecasting_etth1"):
        for form in FORMATS:
            yield ["board", name, "--format", form, *where]
    yield ["board", "forecasting_etth1", "--metric", "mae", *where]
    yield ["board", "lra", "--compare", "softmax", "linear", *where]
    yield ["report", "-o", str(out / "report"), *where]
    page = out / "page.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("".join(f"<!-- cards: {words} -->\n<!-- end of cards -->\n" for words in MARKED))
    yield ["tables", str(page), *where]
    for question in analysis.QUESTIONS:
        yield ["analyze", question, *where]
    yield ["analyze", *where]
    yield ["analyze", "--json", *where]
    for form in ("terminal", "markdown", "csv", "json"):
        yield ["advise", "--pattern", "NS", "--length", "700", "--format", form, *where]
        yield ["crossover", "--format", form, *where]
    yield ["advise", "--pattern", "CS", "--length", "512", "--mode", "decode", "--memory-limit", "1", *where]
    yield [
        "advise",
        "--pattern",
        "NS",
        "--length",
        "512",
        "--mode",
        "train",
        "--exact-only",
        "--device",
        "Test",
        *where,
    ]
    yield ["crossover", "--method", "cab-2023", "--quantity", "memory", "--mode", "train", *where]


def in_terminal(words: list[str]) -> bool:
    """Whether a command writes for a terminal, so that colours and widths matter too; one of each kind is enough."""
    kinds = (["verify"], ["board", "lra"], ["analyze", "--cards"], ["advise"], ["crossover"])
    for_the_eye = "--format" not in words or "terminal" in words
    return for_the_eye and any(words[: len(kind)] == kind for kind in kinds)


def drawings(store: Path, out: Path) -> list[str]:
    """Every answer as a page and as figures for a paper."""
    return ["analyze", "-o", str(out / "figures"), "--cards", str(store), "--out", str(out)]


def faults_of(words: list[str], *, terminal: bool = False) -> Iterator[Fault]:
    """What a command does that none may do: in a pipe, or where rich is told that it writes to a terminal."""
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"} if terminal else {"COLUMNS": "140"}
    result = CliRunner().invoke(app, words, env=colours)
    asked = " ".join(words[:2]) + (" in a terminal" if terminal else "")
    if re.search(r"(?m)^Unexpected \w+:", result.output):
        yield Fault(
            "unexpected", asked, next(line for line in result.output.splitlines() if line.startswith("Unexpected"))
        )
    if "Traceback" in result.output or not (result.exception is None or isinstance(result.exception, SystemExit)):
        yield Fault("traceback", asked, repr(result.exception))
    if result.exit_code not in EXIT_CODES:
        yield Fault("exit code", asked, f"{result.exit_code}: {result.output[-200:]}")
    if result.exit_code and not result.stderr.strip():
        yield Fault("exit code", asked, f"{result.exit_code} without a word")
    output = COLOUR.sub("", result.output) if terminal else result.output
    yield from _controls(output, asked)


def faults_in_files(folder: Path) -> Iterator[Fault]:
    """Control characters in the pages of a report."""
    for path in sorted(folder.rglob("*.html")):
        yield from _controls(path.read_text(encoding="utf-8"), f"the page {path.name}")


def _controls(text: str, where: str) -> Iterator[Fault]:
    if found := CONTROL.search(text):
        around = text[max(0, found.start() - 60) : found.end() + 20]
        yield Fault("control character", where, repr(around))
