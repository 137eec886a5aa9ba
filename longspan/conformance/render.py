"""A report as a table for the terminal: what each promise says, and what was found; and the promises themselves."""

from typing import TYPE_CHECKING

from longspan.conformance.promises import FIRST, PROMISES
from longspan.conformance.report import Report

if TYPE_CHECKING:
    from rich.table import Table

MARKS = {"kept": ("kept", "green"), "broken": ("BROKEN", "bold red"), "not applicable": ("-", "dim")}


def table(report: Report) -> "Table":
    """The table of one report; `rich.print(table(report))` shows it."""
    from rich.table import Table
    from rich.text import Text

    broken = len(report.broken)
    verdict = "all promises kept" if report.ok else f"{broken} promise{'s' if broken > 1 else ''} broken"
    title = f"{report.mechanism} as {report.pattern} ({report.device}, {report.dtype}, {report.profile}): {verdict}"
    shown = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    shown.add_column("promise", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("what it says, and what was found", overflow="fold")
    sentences = {promise.name: promise.sentence for promise in (FIRST, *PROMISES)}
    for result in report.results:
        mark, style = MARKS[result.status]
        says = Text(sentences[result.promise] + "\n", style="dim").append(result.detail, style="not dim")
        shown.add_row(Text(result.promise), Text(mark, style=style), says)
    return shown


def explanation() -> "Table":
    """What every promise says, in a sentence."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("promise", no_wrap=True)
    shown.add_column("what it says", overflow="fold")
    for promise in (FIRST, *PROMISES):
        shown.add_row(Text(promise.name), Text(promise.sentence))
    return shown
