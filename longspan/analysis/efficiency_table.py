"""The table of speed and memory in the form a reader needs: texts for a terminal, Markdown, CSV or JSON.

    print(render(tables(cards), "markdown"))

All forms show the same cells; whatever came from a card is escaped for its form.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from longspan.analysis.lra_efficiency import BASELINE, PAPER, SpeedCell, SpeedRow, SpeedTable
from longspan.core.errors import UnknownName, did_you_mean
from longspan.core.readable_json import printed
from longspan.published import measured

DASH, DOUBT = "–", "?"
FORMS = ("markdown", "csv", "json")
NUMBERS = ("steps_per_second", "ratio", "compute_steps_per_second", "compute_ratio", "examples_per_second", "memory_gb")

Clock = Literal["wall", "compute"]


# ----------------------------------------------------------------------------------------------------- what a cell says


def speed_text(cell: SpeedCell, clock: Clock = "wall") -> str:
    """`8.41 (1.72x)`; published values stay as printed, with a mark where they are doubtful."""
    if cell.printed[0] or cell.status == "missing":
        return (cell.printed[0] or DASH) + (DOUBT if cell.doubts[0] else "")
    if cell.status != "ok":
        return cell.status.upper()
    wall = clock == "wall"
    speed = cell.steps_per_second if wall else cell.compute_steps_per_second
    ratio = cell.ratio if wall else cell.compute_ratio
    if speed is None:
        return DASH
    return _three_figures(speed) + (f" ({ratio:.2f}x)" if ratio is not None else "")


def memory_text(cell: SpeedCell) -> str:
    if cell.printed[1]:
        return cell.printed[1] + (DOUBT if cell.doubts[1] else "")
    if cell.status in ("oom", "fail"):
        return cell.status.upper()
    if cell.memory_gb is None:
        return DASH
    return f"{cell.memory_gb:.2f}" if cell.memory_gb >= 0.1 else _three_figures(cell.memory_gb)


def _three_figures(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def length_text(length: int) -> str:
    """
    >>> length_text(4000), length_text(512)
    ('4K', '512')
    """
    return f"{length // 1000}K" if length % 1000 == 0 else str(length)


def names_of(view: SpeedTable) -> list[str]:
    """The name of each row: its title, with the options where the title alone is ambiguous."""
    titles = [row.title for row in view.rows if row.source == "own"]
    return [_name(row, alone=titles.count(row.title) < 2) for row in view.rows]


def _name(row: SpeedRow, alone: bool) -> str:
    if row.source == "published":
        return f"  {row.title}, published"
    return row.title if alone and "(" not in row.mechanism else f"{row.title} [{row.mechanism}]"


def grid(view: SpeedTable, *, clock: Clock = "wall", memory: bool = True, speed: bool = True) -> list[list[str]]:
    """The table as texts, headings first: the model, steps per second by length, gigabytes by length."""
    heading = ["Model"]
    heading += [f"{length_text(n)} steps/s" for n in view.lengths] if speed else []
    heading += [f"{length_text(n)} GB" for n in view.lengths] if memory else []
    lines = [heading]
    for name, row in zip(names_of(view), view.rows, strict=True):
        line = [name]
        line += [speed_text(row.cells[n], clock) for n in view.lengths] if speed else []
        line += [memory_text(row.cells[n]) for n in view.lengths] if memory else []
        lines.append(line)
    return lines


def footnotes(view: SpeedTable, clock: Clock = "wall") -> list[str]:
    """How to read the table, and what it could not show."""
    clocks = {
        "wall": "by the wall clock, with the input pipeline",
        "compute": f"of compute alone on a fixed batch, by {view.setting('compute_clock')}",
    }
    notes = [f"Steps per second {clocks[clock]}. In brackets: times {BASELINE} at the same length."]
    if view.settings.get("memory"):
        notes.append(f"Memory is the most held in a step, by {view.setting('memory')}, in GB of 10^9 bytes.")
    if isinstance(sizes := view.settings.get("model"), dict):
        shown = (f"{name} {sizes[name]}" for name in ("layers", "heads", "dim", "mlp") if name in sizes)
        notes.append(f"The network: {', '.join(shown)}.")
    if any(row.source == "published" for row in view.rows):
        paper = measured(PAPER[view.mode][0])
        notes.append(f"Published ({paper.source}): {paper.note} Compare ratios, not speeds or bytes.")
    for row in view.rows:
        for length, cell in row.cells.items():
            where = f"{row.title} at {length_text(length)}"
            if cell.reason:
                notes.append(f"{where}: {cell.reason}.")
            doubtful = zip(cell.printed, cell.doubts, strict=True)
            notes += [f"{where}, printed {text}{DOUBT}: {why}." for text, why in doubtful if why]
    return notes


# ------------------------------------------------------------------------------------------------------------ the forms


def render(views: Sequence[SpeedTable], form: str = "markdown", *, clock: Clock = "wall") -> str:
    """Tables as text in one of `FORMS`; CSV and JSON hold every number by both clocks at full precision."""
    if form not in FORMS:
        raise UnknownName(f"No form {form!r} for this table.{did_you_mean(form, FORMS)}")
    if form == "markdown":
        return "\n".join(_markdown(view, clock) for view in views)
    if form == "csv":
        return _csv(views)
    return printed([as_data(view) for view in views]) + "\n"


def _markdown(view: SpeedTable, clock: Clock) -> str:
    def escape(text: str) -> str:
        return re.sub(r"([\\`*_{}\[\]<>|#~!])", r"\\\1", " ".join(text.split()))

    heading, *lines = grid(view, clock=clock)
    out = [f"## {escape(view.title)}", "", _line(map(escape, heading)), _line([":---", *["---:"] * (len(heading) - 1)])]
    out += [_line(map(escape, line)) for line in lines]
    return "\n".join([*out, "", *(f"- {escape(note)}" for note in footnotes(view, clock))]) + "\n"


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def as_data(view: SpeedTable) -> dict[str, Any]:
    """The table as plain values, for JSON."""
    return {
        "mode": view.mode,
        "title": view.title,
        "machine": view.machine,
        "settings": dict(view.settings),
        "rows": [
            {"source": row.source, "mechanism": row.mechanism, "title": row.title, "parameters": row.parameters}
            | {"cells": [{"length": length} | asdict(cell) for length, cell in row.cells.items()]}
            for row in view.rows
        ],
        "notes": footnotes(view),
    }


def _csv(views: Sequence[SpeedTable]) -> str:
    """One line per mechanism, mode and length: made for a data frame, not for the eye."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head = ("machine", "mode", "source", "mechanism", "title", "length", "status", "reason")
    spread = [f"{name}_{end}" for name in ("quartiles", "compute_quartiles") for end in ("low", "high")]
    writer.writerow([*head, *NUMBERS, *spread, "doubts"])
    for view in views:
        for row in view.rows:
            for length, cell in row.cells.items():
                words = [view.machine, view.mode, row.source, row.mechanism, row.title, length]
                ends = [*(cell.quartiles or (None, None)), *(cell.compute_quartiles or (None, None))]
                doubts = "; ".join(why for why in cell.doubts if why)
                line = [*words, cell.status, cell.reason, *(getattr(cell, name) for name in NUMBERS), *ends, doubts]
                writer.writerow([_plain(entry) for entry in line])
    return buffer.getvalue()


def _plain(entry: Any) -> Any:
    """A spreadsheet must not take a name for a formula."""
    return f"'{entry}" if isinstance(entry, str) and entry.startswith(("=", "+", "-", "@", "\t")) else entry
