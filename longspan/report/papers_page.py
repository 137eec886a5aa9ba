"""The tables of docs/papers.md: every table and figure of a paper, ours beside theirs, and what is wrong in print."""

from collections.abc import Iterator

from longspan import published
from longspan.analysis import Evidence, correlation
from longspan.analysis.finding import escaped, table
from longspan.core.errors import UsageError, did_you_mean
from longspan.published.contradictions import contradictions
from longspan.report.artefact_sources import Desk, Shown
from longspan.report.artefacts import ARTEFACTS, PAPERS, Artefact, stands_alone, why_without
from longspan.report.printed import leaderboard, measurements

SHOWN = 2  # pairs in the overview table
FIGURES = ("Figure 3a", "Figure 4")  # how an analysis begins what it says about CAB's figures


def artefacts(evidence: Evidence, paper: str) -> str:
    """A line for each table and figure, with the first numbers of theirs and ours; then all numbers of each."""
    _known(paper)
    made = [(artefact, artefact.show(Desk(evidence))) for artefact in ARTEFACTS if artefact.paper == paper]
    heads = ("in the paper", "what", "command", "theirs", "ours")
    parts = [_lines(heads, [_line(artefact, shown) for artefact, shown in made])]
    for artefact, shown in made:
        if shown.pairs:
            parts.append(_all_numbers(artefact, shown))
        elif stands_alone(artefact, shown):
            parts.append(_own_numbers(artefact, shown))
    return "\n\n".join(parts)


def _line(artefact: Artefact, shown: Shown) -> list[str]:
    first = shown.pairs[:SHOWN]
    more = len(shown.pairs) - len(first)
    theirs = "; ".join(f"{pair.what}: {pair.theirs}" for pair in first)
    numbers = [f"{pair.ours} ({pair.where})" if pair.where else pair.ours for pair in first]
    ours = "; ".join([*numbers, *[f"{more} more below"] * (more > 0)])
    if stands_alone(artefact, shown):
        theirs, ours = "no numbers in print", "a table below"
    said = why_without(artefact, shown) or ours
    return [artefact.number, artefact.title, f"`{artefact.command}`", escaped(theirs), escaped(said)]


def _all_numbers(artefact: Artefact, shown: Shown) -> str:
    """Every number of theirs that we have too."""
    differing = [pair for pair in shown.pairs if pair.theirs != pair.ours]
    pairs = (
        list(shown.pairs) if len(shown.pairs) < 2 * len(differing) + 12 else differing
    )  # where most agree, only those that differ are listed
    rows = [[escaped(text) for text in (pair.what, pair.theirs, pair.ours, pair.where)] for pair in pairs]
    quantity = f" ({escaped(shown.quantity)})" if shown.quantity else ""
    words = [f"### {artefact.paper}, {artefact.number}", f"{escaped(artefact.title)}{quantity}."]
    words += [_lines(("what", "theirs", "ours", "ours by"), rows)] * bool(rows)
    agree = len(shown.pairs) - len(pairs)
    return "\n\n".join([*words, *[f"{agree} more are written alike."] * bool(agree)])


def _own_numbers(artefact: Artefact, shown: Shown) -> str:
    """The tables of ours where the paper prints no numbers."""
    words = [f"### {artefact.paper}, {artefact.number}"]
    for sheet in shown.sheets:
        rows = [[escaped(text) for text in line] for line in sheet.lines]
        words += [escaped(sheet.title), _lines(sheet.heads, rows), *map(escaped, sheet.notes)]
    return "\n\n".join(words)


def misprints(evidence: Evidence, paper: str) -> str:
    """What the program finds wrong in the tables and figures of a paper, a sentence each."""
    _known(paper)
    return table(("", "what is wrong"), [(str(i + 1), text) for i, text in enumerate(dict.fromkeys(_misprints(paper)))])


def _misprints(paper: str) -> Iterator[str]:
    if paper == "CAB":
        yield from (found.text for found in contradictions())
        yield from (note for note in correlation.answer(Evidence()).notes if note.startswith(FIGURES))
    else:
        for name in published.names():
            yield from (f"{leaderboard(name).table.title}, {note}" for note in leaderboard(name).notes)
    for name in published.names("measured"):
        view = measurements(name)
        if view.table.suite == paper.lower():
            found = [(flag, cell) for flag, cell in view.notes() if flag.kind != "rounding"]
            yield from (f"{view.table.title}, {cell}: printed {flag.printed}; {flag.why}." for flag, cell in found)


def _known(paper: str) -> None:
    if paper not in PAPERS:
        raise UsageError(
            f"No paper is called {paper!r} here; there are {', '.join(PAPERS)}.{did_you_mean(paper, PAPERS)}"
        )


def _lines(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table whose cells are escaped already."""
    top = table(heads, [])
    return "\n".join([top, *("| " + " | ".join(row) + " |" for row in rows)])
