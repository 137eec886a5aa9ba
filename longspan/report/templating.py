"""The Jinja environment of the report: what its templates may call."""

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan import suites
from longspan.analysis import efficiency_table, lra_efficiency
from longspan.core.printable import printable, shown
from longspan.core.readable_json import finite
from longspan.report import attention_maps, mathml, printed
from longspan.report.fairness import verdicts_on
from longspan.report.look import base_name
from longspan.results import board_table, render
from longspan.results.board_notes import STANDIN_NOTE
from longspan.results.board_types import Board, BoardCell, Row
from longspan.results.card import Card
from longspan.results.device import device_of
from longspan.results.variant import data_of, in_words


def environment(site: Mapping[str, Any]):
    """The templates, with what all of them may use."""
    import jinja2
    from markupsafe import Markup

    env = jinja2.Environment(
        loader=jinja2.PackageLoader("longspan.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_without_control_characters,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(
        site=site,
        paper_link=paper_link,
        base_name=base_name,
        task_title=lambda name: site["task_titles"].get(name, suites.heading(name)),
        look_of=lambda mechanism: site["look"][shown(mechanism)],
        device_of=device_of,
        score_of=_score_of,
        cell_hint=_cell_hint,
        has_spread=_has_spread,
        score_text=render.score_text,
        paper_text=board_table.paper_text,
        unit_of=board_table.unit_of,
        deviation_text=board_table.deviation_text,
        difference_text=board_table.difference_text,
        score_words=_score_words,
        meter=_meter,
        seeds=render.seeds_text,
        board_notes=_board_notes,
        own_notes=_own_notes,
        own_view=_own_view,
        board_title=lambda view: _board_title(view, site["task_titles"]),
        promise_words=_promise_words,
        map_scale=attention_maps.scale(),
        board_spread=board_table.spread_text,
        verdicts_on=verdicts_on,
        other_data=lambda card: in_words(data_of(card)),
        speed_text=efficiency_table.speed_text,
        memory_text=efficiency_table.memory_text,
        length_text=efficiency_table.length_text,
        speed_notes=efficiency_table.footnotes,
        speed_hint=_speed_hint,
        spread_text=printed.spread_text,
        free_title=board_table.FREE_TITLE,
        free_note=board_table.FREE_NOTE,
    )
    env.filters.update(
        shown=lambda value: shown(str(value)),
        percent=render.percent,
        amount=render.count_text,
        rate=render.rate_text,
        power=lambda cost: str(cost).replace("^2", "²").replace("^3", "³"),
        options=options_of,
        script_json=lambda value: Markup(script_json(value)),
        markup=Markup,
        code=lambda words: Markup(_with_code(printable(words))),
        formula=_formula,
    )
    return env


def _without_control_characters(value: Any) -> Any:
    """The value of a template expression, with the line breaks of formulas but without other control characters."""
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def options_of(mechanism: str) -> str:
    """What distinguishes a row from others with its title: `features=64`, or the path of a plug-in."""
    if ":" in mechanism.split("(", 1)[0]:
        return shown(mechanism)
    return shown(mechanism.partition("(")[2].removesuffix(")"))


def _score_of(card: Card) -> str:
    score = card["score"]
    return (render.percent if score.get("unit", "percent") == "percent" else render.plain)(score["value"])


def _cell_hint(view: Board, cell: BoardCell, column: str) -> str:
    """The tooltip of a score."""
    words = [f"{cell.seeds} seed{'' if cell.seeds == 1 else 's'}"]
    if cell.interval:
        low, high = (render.score_text(view, end, column) for end in cell.interval)
        words.append(f"95 % interval {low} to {high}")
    elif view.suite.measure(column).metric == "accuracy" and cell.count and cell.value is not None:
        error = 1.96 * math.sqrt(cell.value * (1 - cell.value) / cell.count)
        words.append(f"±{board_table.deviation_text(view, error, column)} by the sampling of the test set (95 %)")
    words.append(f"{cell.count:,} test examples")
    if cell.chance is not None:
        words.append(f"chance {render.score_text(view, cell.chance, column)}")
    return ", ".join(words)


def _score_words(view: Board, column: str) -> str:
    """What the numbers of a column mean."""
    measure = view.suite.measure(column)
    unit = " in percent" if measure.unit == "percent" else "" if measure.higher_is_better else ", lower is better"
    settings = f", of {len(measure.settings)} settings" if len(measure.settings) > 1 else ""
    return f"test {measure.metric}{unit}, mean over seeds{settings}"


def _has_spread(rows: Iterable[Row]) -> bool:
    """Whether any score has a spread, so that all must leave room for one."""
    return any(cell.std is not None for row in rows for cell in row.cells.values())


def _meter(view: Board, rows: Iterable[Row], task: str, cell: BoardCell) -> int:
    """How far a score goes from chance to the best of its column in the same table, in percent.

    Where chance is not known, from 0, or from the worst of the column where lower is better.
    """
    sign = 1 if view.suite.measure(task).higher_is_better else -1
    values = [sign * value for row in rows if (value := row.cells[task].value) is not None]
    unknown = 0.0 if sign > 0 else min(values, default=0.0)
    floor = unknown if cell.chance is None else sign * cell.chance
    span = max(values, default=floor) - floor
    reach = sign * (cell.value or 0.0) - floor
    return round(100 * min(max(reach / span, 0.0), 1.0)) if span > 0 else 0


def _board_notes(view: Board) -> list[str]:
    """What stands below a board: printed errors, its own notes, what `vs` means. The page says the rules once."""
    flags = [f"{board_table.PRINTED_ERROR} {flag}" for flag in (view.paper.flags if view.paper else ())]
    own = (note for note in view.notes if note != STANDIN_NOTE)
    return [*flags, *own, *board_table.difference_notes(view), *board_table.broken_notes(view)]


def _own_notes(view: Board) -> list[str]:
    """The same without the notes about published rows."""
    own = (note for note in view.notes if note != STANDIN_NOTE and not note.startswith("Published"))
    return [*own, *board_table.broken_notes(view)]


def _own_view(view: Board) -> Board:
    """The board without published rows, and without columns and averages that no run has filled."""
    rows = (*view.rows, *view.free, *view.fidelity)
    filled = [name for name in view.suite.columns if any(row.cells[name].status != "missing" for row in rows)]
    averages = [one for one in view.suite.averages if any(row.averages[one.name].value is not None for row in rows)]
    suite = replace(
        view.suite,
        tasks=view.suite.tasks if view.suite.measures else tuple(filled),
        measures=tuple(one for one in view.suite.measures if one.name in filled),
        averages=tuple(averages),
    )
    empty = [view.suite.measure(name).title for name in view.suite.columns if name not in filled]
    lacking = [f"Not run: {', '.join(empty)}."] if empty else []
    unneeded = tuple(f"{one.title}:" for one in view.suite.averages if one not in averages)
    notes = [note for note in view.notes if not note.startswith(unneeded)] if unneeded else view.notes
    kept = replace(view, suite=suite, paper=None, published=(), notes=(*lacking, *notes))
    return kept if filled else view


def _board_title(view: Board, titles: Mapping[str, str]) -> str:
    """The title of a suite; of a list of tasks, their titles."""
    if view.suite.name in suites.SUITES or view.suite.measures:
        return shown(view.suite.title)
    return shown(", ".join(titles.get(task, suites.heading(task)) for task in view.suite.tasks))


def _promise_words(table: Mapping[str, Any], broken: Sequence[str]) -> str:
    """A summary of the collapsed table of promises."""
    statuses = [found["status"] for column in table["columns"] for found in column["by_promise"].values()]
    kept, applied = statuses.count("kept"), len(statuses) - statuses.count("not applicable")
    places = len(table["columns"])
    words = f"{kept:,} of {applied:,} promises kept, in {places} combination{'' if places == 1 else 's'} of pattern, "
    return f"{words}device and precision" + (f"; broken: {', '.join(broken)}" if broken else "")


def _with_code(words: str) -> str:
    """Escaped text in which anything between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words, quote=False))


def _formula(docstring: str) -> list[tuple[str, Any]]:
    """Paragraphs of words and lines of formulas, these typeset."""
    from markupsafe import Markup

    return [
        (
            kind,
            content
            if isinstance(content, str)
            else [[Markup(mathml.typeset(printable(one))) for one in line] for line in content],
        )
        for kind, content in mathml.paragraphs(docstring)
    ]


def _speed_hint(cell: lra_efficiency.SpeedCell) -> str:
    """The tooltip of a speed."""
    words = [cell.doubts[0], cell.reason or ""]
    if cell.quartiles:
        words.append("half of the steps at {} to {} per second".format(*map(render.rate_text, cell.quartiles)))
    if cell.compute_steps_per_second is not None:
        words.append(f"compute alone {render.rate_text(cell.compute_steps_per_second)} steps/s")
    if cell.examples_per_second is not None:
        words.append(f"{render.rate_text(cell.examples_per_second)} examples/s")
    return ", ".join(word for word in words if word)


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no character in it can begin or end a tag."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def paper_link(paper: str) -> str | None:
    """Where a paper can be read: arXiv numbers and web addresses become links, anything else stays text."""
    if number := re.fullmatch(r"arXiv:(\d{4}\.\d{4,5})(v\d+)?", paper):
        return f"https://arxiv.org/abs/{number[1]}"
    return paper if re.fullmatch(r"https?://[^\s\"'<>]+", paper) else None
