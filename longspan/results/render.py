"""A board in the form a reader needs: terminal, Markdown, CSV, LaTeX, JSON or HTML.

All forms show the same cells; `cell_text` decides how one reads. Whatever came from a card is escaped for its form.
"""

import csv
import html as html_module
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longspan.core.errors import UnknownName, did_you_mean
from longspan.results.board import RULES, Board, Cell, Mean, PaperRow, Row, as_data

if TYPE_CHECKING:
    from rich.table import Table

LEADING, NOT_ABOVE_CHANCE, DASH = "●", "°", "–"
HEADINGS = {
    "rows": "",
    "free": "Free track",
    "fidelity": "Bug-compatible twins, never ranked",
    "published": "Published",
}
NUMBERS = ("value", "std", "seeds", "failed", "count", "chance", "above_chance", "leading")
NUMBERS += ("steps_per_second", "parameters", "ratio")


@dataclass(frozen=True)
class Line:
    """One row of any rendering: texts by column, in the order of `columns`."""

    section: str
    texts: tuple[str, ...]


def render(view: Board, form: str = "terminal", *, width: int = 120, colour: bool = False) -> str:
    """The board as text in one of the forms of `FORMS`."""
    if form not in FORMS:
        raise UnknownName(f"No board format {form!r}.{did_you_mean(form, FORMS)}")
    return _terminal(view, width, colour) if form == "terminal" else FORMS[form](view)


# ---------------------------------------------------------------------------------------------------- what a cell says


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def score_text(view: Board, value: float) -> str:
    return percent(value) if view.suite.metric == "accuracy" else f"{value:.4g}"


def cell_text(view: Board, cell: Cell) -> str:
    """`41.20 ± 0.41 ●`, `FAIL`, `–`; a count of seeds where some failed."""
    if cell.status == "missing":
        return DASH
    if cell.status == "fail" or cell.value is None:
        return "FAIL"
    text = score_text(view, cell.value)
    if cell.std is not None:
        text += f" ± {score_text(view, cell.std)}"
    if cell.failed:
        text += f" ({cell.seeds} of {cell.seeds + cell.failed} seeds)"
    if cell.above_chance is False:
        text += f" {NOT_ABOVE_CHANCE}"
    return f"{text} {LEADING}" if cell.leading else text


def mean_text(view: Board, mean: Mean) -> str:
    if mean.value is None:
        return DASH
    return score_text(view, mean.value) + (f" {LEADING}" if mean.leading else "")


def count_text(number: float | None) -> str:
    """`1.23 M`, `45.6 k`."""
    if number is None:
        return DASH
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def rate_text(rate: float | None) -> str:
    return DASH if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def seeds_text(row: Row) -> str:
    numbers = sorted({cell.seeds + cell.failed for cell in row.cells.values() if cell.status != "missing"})
    return DASH if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def columns(view: Board) -> list[str]:
    averages = [average.title for average in view.suite.averages]
    return ["#", "Mechanism", *view.suite.tasks, *averages, "Seeds", "Steps/s", "Parameters"]


def names_of(view: Board) -> dict[tuple[str, str], str]:
    """What each row is called: its title, with the options or the pattern where the title alone is ambiguous."""
    rows = [*view.rows, *view.free, *view.fidelity]
    titles = [row.title for row in rows]
    patterns = {row.pattern for row in rows}
    names = {}
    for row in rows:
        name = row.title
        if titles.count(row.title) > 1 or "(" in row.mechanism:
            name = f"{row.title} [{row.mechanism}]"
        names[row.mechanism, row.pattern] = f"{name}, {row.pattern}" if len(patterns) > 1 else name
    return names


def lines(view: Board) -> Iterator[Line]:
    names = names_of(view)
    for section in ("rows", "free", "fidelity"):
        for row in getattr(view, section):
            yield Line(
                section,
                (
                    "" if row.rank is None else str(row.rank),
                    names[row.mechanism, row.pattern],
                    *(cell_text(view, row.cells[task]) for task in view.suite.tasks),
                    *(mean_text(view, row.averages[average.name]) for average in view.suite.averages),
                    seeds_text(row),
                    rate_text(row.steps_per_second),
                    count_text(row.parameters),
                ),
            )
    for paper_row in view.published:
        yield Line("published", ("", *_paper_texts(view, paper_row), "", "", ""))


def _paper_texts(view: Board, row: PaperRow) -> list[str]:
    texts = [row.title]
    for task in view.suite.tasks:
        score = row.scores[task]
        texts.append(score if isinstance(score, str) else percent(score))
    for index, average in enumerate(view.suite.averages):
        value = row.averages[average.name]
        text = DASH if value is None else percent(value)
        wrong = row.average_is_wrong and index == 0
        texts.append(f"{text} (printed {percent(row.printed_average)})" if wrong else text)
    return texts


def footnotes(view: Board) -> list[str]:
    """Everything below the table: notes of this board, the rules, and what is missing, oversized or off the board."""
    without: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in (*view.rows, *view.free):
        for average in view.suite.averages[:1]:
            if row.averages[average.name].missing:
                without[row.averages[average.name].missing].append(row.title)
    missing = [
        f"No {view.suite.averages[0].title} for want of {', '.join(tasks)}: {', '.join(titles)}."
        for tasks, titles in without.items()
    ]
    off = [f"Off the board: {card.title} on {card.task}, seed {card.seed} ({card.reason})." for card in view.off]
    over = [f"{row.title}: {row.note}." for row in (*view.rows, *view.free) if row.note]
    return [*view.notes, *RULES, *over, *missing, *off]


# ----------------------------------------------------------------------------------------------------------- the forms


def table(view: Board) -> "Table":
    """The board as a rich table, for a console."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shape = Table(title=Text(view.title), box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
    for name in columns(view):
        shape.add_column(Text(name), justify="left" if name == "Mechanism" else "right", no_wrap=name != "Mechanism")
    section = "rows"
    for line in lines(view):
        if line.section != section:
            section = line.section
            shape.add_section()
            shape.add_row("", Text(HEADINGS[section], style="italic dim"))
        style = "dim" if section == "published" else ""
        shape.add_row(*(Text(text, style="bold green" if LEADING in text else style) for text in line.texts))
    return shape


def _terminal(view: Board, width: int, colour: bool) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    console.print(table(view))
    for note in footnotes(view):
        console.print(note, markup=False, style="dim" if colour else None)
    return buffer.getvalue()


def _markdown(view: Board) -> str:
    def escape(text: str) -> str:
        return re.sub(r"([\\`*_{}\[\]<>|#~!])", r"\\\1", text)

    names = columns(view)
    out = [f"## {escape(view.title)}", "", "| " + " | ".join(escape(name) for name in names) + " |"]
    out.append("|" + "|".join(":---" if name == "Mechanism" else "---:" for name in names) + "|")
    section = "rows"
    for line in lines(view):
        if line.section != section:
            section = line.section
            out.append("| | *" + escape(HEADINGS[section]) + "* |" + " |" * (len(names) - 2))
        out.append("| " + " | ".join(escape(text) for text in line.texts) + " |")
    return "\n".join([*out, "", *(f"- {escape(note)}" for note in footnotes(view))]) + "\n"


def _csv(view: Board) -> str:
    """One line per cell with every number at full precision: made for a data frame, not for the eye."""

    def plain(text: Any) -> Any:  # a spreadsheet must not take a name for a formula
        return f"'{text}" if isinstance(text, str) and text.startswith(("=", "+", "-", "@", "\t")) else text

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head = ["suite", "protocol", "tier", "section", "mechanism", "title", "pattern", "column", "status"]
    writer.writerow([*head, *NUMBERS, "low", "high"])
    where = (view.suite.name, view.protocol, view.tier)
    for section in ("rows", "free", "fidelity"):
        for row in getattr(view, section):
            start = [*where, section, row.mechanism, row.title, row.pattern]
            for task, cell in row.cells.items():
                numbers = [getattr(cell, name) for name in NUMBERS]
                line = [*start, task, cell.status, *numbers, *(cell.interval or (None, None))]
                writer.writerow([plain(entry) for entry in line])
            for name, mean in row.averages.items():
                status = "ok" if mean.value is not None else "missing"
                writer.writerow([plain(e) for e in (*start, name, status, mean.value, *[None] * (len(NUMBERS) + 1))])
    for paper_row in view.published:
        for column, score in {**paper_row.scores, **paper_row.averages}.items():
            status, value = ("ok", score) if isinstance(score, float) else (str(score or "missing").lower(), None)
            start = [*where, "published", "", paper_row.title, ""]
            writer.writerow([*start, column, status, value, *[None] * (len(NUMBERS) + 1)])
    return buffer.getvalue()


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "●": r"$^\bullet$"}
_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "±": r"$\pm$",
    "°": r"$^\circ$",
    "–": "--",
    "·": r"$\cdot$",
}


def _latex(view: Board) -> str:
    def escape(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text)

    names = columns(view)
    out = [
        f"% {view.title}".replace("\n", " "),
        r"\begin{tabular}{" + "".join("l" if name == "Mechanism" else "r" for name in names) + "}",
        r"\toprule",
        " & ".join(escape(name) for name in names) + r" \\",
        r"\midrule",
    ]
    section = "rows"
    for line in lines(view):
        if line.section != section:
            section = line.section
            heading = escape(HEADINGS[section])
            out += [r"\midrule", rf"\multicolumn{{{len(names)}}}{{l}}{{\emph{{{heading}}}}} \\"]
        out.append(" & ".join(escape(text) for text in line.texts) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in footnotes(view))]) + "\n"


def _json(view: Board) -> str:
    return json.dumps(as_data(view), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
padding: 0 1rem }} .scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .35rem .7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap }}
th:nth-child(2), td:nth-child(2) {{ text-align: left }} li {{ opacity: .8; font-size: .875rem }}
</style></head><body><h1>{title}</h1>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<ul>{notes}</ul></body></html>
"""


def _html(view: Board) -> str:
    """A page that stands alone. The report builds its own, richer table from the same board."""
    escape = html_module.escape
    body, section = [], "rows"
    width = len(columns(view))
    for line in lines(view):
        if line.section != section:
            section = line.section
            body.append(f'<tr><th colspan="{width}" scope="rowgroup">{escape(HEADINGS[section])}</th></tr>')
        body.append("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line.texts) + "</tr>")
    return _PAGE.format(
        title=escape(view.title),
        head="".join(f'<th scope="col">{escape(name)}</th>' for name in columns(view)),
        body="".join(body),
        notes="".join(f"<li>{escape(note)}</li>" for note in footnotes(view)),
    )


FORMS = {"terminal": None, "markdown": _markdown, "csv": _csv, "latex": _latex, "json": _json, "html": _html}
