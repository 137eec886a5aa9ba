"""A board in the form a reader needs: terminal, Markdown, CSV, LaTeX, JSON or HTML.

All forms show the same cells, which come from `board_table.py`. Whatever came from a card is escaped for its
form.
"""

import csv
import html as html_module
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from longspan.core.errors import UnknownName, did_you_mean
from longspan.core.printable import shown
from longspan.core.readable_json import printed
from longspan.results.board_table import (
    NAME,
    Part,
    count_text,
    footnotes,
    paper_text,
    parts,
    percent,
    plain,
    rate_text,
    score_text,
    seeds_text,
)
from longspan.results.board_types import Board
from longspan.results.latex import escaped
from longspan.results.published_rows import SUMMARY, ColumnSpread
from longspan.results.snapshot import as_data
from longspan.results.terminal_board import draw

__all__ = ["FORMS", "count_text", "percent", "plain", "rate_text", "render", "render_all", "score_text", "seeds_text"]

NUMBERS = ("value", "std", "seeds", "failed", "count", "chance", "above_chance", "left_chance", "left_mean", "leading")
NUMBERS += ("steps_per_second", "parameters", "ratio")


def render(view: Board, form: str = "terminal", *, width: int = 120, colour: bool = False) -> str:
    """The board as text in one of the forms of `FORMS`; `md` is short for markdown."""
    return render_all([view], form, width=width, colour=colour)


def render_all(views: Sequence[Board], form: str = "terminal", *, width: int = 120, colour: bool = False) -> str:
    """Several boards as one text: one table for a data frame, one page, one list, or one below the other."""
    form = ALIASES.get(form, form)
    if form not in FORMS:
        raise UnknownName(f"No board format {form!r}.{did_you_mean(form, FORMS)}")
    if form == "terminal":
        return "\n".join(draw(view, width, colour) for view in views)
    return FORMS[form](views)


def _markdown(views: Sequence[Board]) -> str:
    return "\n".join(map(_markdown_board, views))


def _markdown_board(view: Board) -> str:
    def escape(text: str) -> str:
        return re.sub(r"([\\`*_{}\[\]<>|#~!])", r"\\\1", shown(text))

    def cells(texts: Sequence[str]) -> str:
        return "| " + " | ".join(escape(text) for text in texts) + " |"

    out = []
    for part in parts(view):
        out += [f"## {escape(part.title)}", "", cells(part.columns)]
        out.append("|" + "|".join(":---" if name == NAME else "---:" for name in part.columns) + "|")
        at = part.columns.index(NAME)
        for section in part.sections:
            if section.heading:
                words = [f"*{escape(section.heading)}*" if i == at else "" for i in range(len(part.columns))]
                out.append("| " + " | ".join(words) + " |")
            out += [cells(line.texts) for line in section.lines]
        out.append("")
    return "\n".join([*out, *(f"- {escape(note)}" for note in footnotes(view))]) + "\n"


def _csv(views: Sequence[Board]) -> str:
    """One line per cell with every number at full precision: made for a data frame, not for reading.

    Scores are fractions or plain numbers, as on the cards. `printed` is what a paper prints, `note` what is wrong with
    it or differs from the rules.
    """

    def plain(text: Any) -> Any:  # a spreadsheet must not read a name as a formula
        if not isinstance(text, str):
            return text
        return shown(f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text)

    buffer = io.StringIO()
    head = ["suite", "protocol", "tier", "section", "mechanism", "title", "pattern", "conformance", "column", "status"]
    writer = csv.DictWriter(
        buffer, [*head, *NUMBERS, "low", "high", "difference", "printed", "note"], lineterminator="\n"
    )
    writer.writeheader()
    for view in views:
        where = {"suite": view.suite.name, "protocol": view.protocol, "tier": view.tier}
        for entry in (*_own_entries(view), *_paper_entries(view)):
            writer.writerow({key: plain(value) for key, value in (where | entry).items()})
    return buffer.getvalue()


def _own_entries(view: Board) -> Iterator[dict[str, Any]]:
    for section in ("rows", "free", "fidelity"):
        for row in getattr(view, section):
            start = {"section": section, "mechanism": row.mechanism, "title": row.title, "pattern": row.pattern}
            start |= {"conformance": row.conformance.status}
            for task, cell in row.cells.items():
                low, high = cell.interval or (None, None)
                numbers = {name: getattr(cell, name) for name in NUMBERS}
                entry = {"column": task, "status": cell.status, **numbers, "low": low, "high": high}
                yield start | entry | {"difference": row.differences.get(task)}
            for name, mean in row.averages.items():
                status = "ok" if mean.value is not None else "missing"
                entry = {"column": name, "status": status, "value": mean.value, "leading": mean.leading}
                yield start | entry | {"difference": row.differences.get(name)}
    for column, spread in view.summary.items():
        yield {"section": "summary", "title": SUMMARY, "column": column, "status": "ok", **_numbers(spread)}


def _paper_entries(view: Board) -> Iterator[dict[str, Any]]:
    if view.paper is None:
        return
    section = "published" if view.paper.comparable else "later"
    flags = {flag.partition(":")[0]: flag for flag in view.paper.flags}
    for row in view.published:
        start = {"section": section, "title": row.title, "note": "; ".join(row.deviations)}
        for task, score in row.scores.items():
            number, printed = None if isinstance(score, str) else score, paper_text(view, row, task)
            status = "ok" if number is not None else str(score).lower()
            yield start | {"column": task, "status": status, "value": number, "printed": printed}
        for index, (name, value) in enumerate(row.averages.items()):
            entry = {"column": name, "status": "missing" if value is None else "ok", "value": value}
            if row.printed_average is not None and index == (0 if row.printed_over == 5 else 1):
                entry |= {"printed": score_text(view, row.printed_average, name)}
                entry |= {"note": flags.get(row.title, "")} if row.average_is_wrong else {}
            yield start | entry
    for column, spread in view.paper.summary.items():
        entry = {"section": f"{section} summary", "title": SUMMARY, "column": column}
        if isinstance(spread, str):
            yield entry | {"status": spread.lower(), "printed": spread}
        else:
            note = flags[SUMMARY] if spread.is_wrong else ""
            yield entry | {"status": "ok", **_numbers(spread), "printed": spread.printed, "note": note}


def _numbers(spread: ColumnSpread) -> dict[str, float]:
    return {"value": spread.mean, "std": spread.std}


def _latex(views: Sequence[Board]) -> str:
    return "\n".join(map(_latex_board, views))


def _latex_board(view: Board) -> str:
    """A `tabular` per table, for booktabs; the notes follow as comments."""

    out = []
    for part in parts(view):
        out += [
            f"% {shown(part.title)}",
            r"\begin{tabular}{" + "".join("l" if name == NAME else "r" for name in part.columns) + "}",
            r"\toprule",
            " & ".join(escaped(name) for name in part.columns) + r" \\",
        ]
        for section in part.sections:
            out.append(r"\midrule")
            if section.heading:
                out.append(rf"\multicolumn{{{len(part.columns)}}}{{l}}{{\emph{{{escaped(section.heading)}}}}} \\")
            out += [" & ".join(escaped(text) for text in line.texts) + r" \\" for line in section.lines]
        out += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*out, *(f"% {shown(note)}" for note in footnotes(view))]) + "\n"


def _json(views: Sequence[Board]) -> str:
    """An object, or a list of them where there is not exactly one."""
    contents = [as_data(view) for view in views]
    whole = contents[0] if len(contents) == 1 else contents
    return printed(whole) + "\n"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
padding: 0 1rem }} .scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .35rem .7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap }}
th[scope=row], th[scope=rowgroup], .name {{ text-align: left }} th[scope=row] {{ font-weight: inherit }}
.difference {{ font-style: italic; opacity: .75 }} .summary {{ font-style: italic }}
li {{ opacity: .8; font-size: .875rem }}
</style></head><body>
{boards}
</body></html>
"""


def _html(views: Sequence[Board]) -> str:
    """A self-contained page. The report builds its own, richer table from the same board."""
    title = _escape(", ".join(view.title for view in views) or "Board")
    return _PAGE.format(title=title, boards="\n".join(map(_html_board, views)))


def _escape(text: str) -> str:
    return html_module.escape(shown(text))


def _html_board(view: Board) -> str:
    def cell(part: Part, index: int, text: str) -> str:
        if part.columns[index] == NAME:
            return f'<th scope="row">{_escape(text)}</th>'
        return f"<td>{_escape(text)}</td>"

    tables = []
    for number, part in enumerate(parts(view)):
        head = "".join(
            f'<th scope="col"{" class=name" if name == NAME else ""}>{_escape(name)}</th>' for name in part.columns
        )
        body = []
        for section in part.sections:
            if section.heading:
                span = f'<th colspan="{len(part.columns)}" scope="rowgroup">'
                body.append(f"<tr>{span}{_escape(section.heading)}</th></tr>")
            for line in section.lines:
                cells = "".join(cell(part, index, text) for index, text in enumerate(line.texts))
                body.append(f'<tr class="{line.kind}">{cells}</tr>')
        title = f"<h2>{_escape(part.title)}</h2>" if number or part.title != view.title else ""
        inside = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        tables.append(f'{title}<div class="scroll">{inside}</div>')
    notes = "".join(f"<li>{_escape(note)}</li>" for note in footnotes(view))
    return "\n".join([f"<h1>{_escape(view.title)}</h1>", *tables, f"<ul>{notes}</ul>"])


ALIASES = {"md": "markdown"}
FORMS = {"terminal": None, "markdown": _markdown, "csv": _csv, "latex": _latex, "json": _json, "html": _html}
