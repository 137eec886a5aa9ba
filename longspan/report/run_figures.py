"""Figures of the runs of one task: who solves it, learning curves, costs."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.core.printable import shown
from longspan.report import board_figures, figure_json
from longspan.report.groups import BoardGroup, once
from longspan.report.look import Look, family_of
from longspan.report.marks import Axis, Figure, FigureView, LineMark, Mark, PointsMark, ReferenceMark
from longspan.results import board_table, render
from longspan.results.board_types import Row


def curves(groups: Sequence[BoardGroup], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    """Learning curves of every task and pattern of these groups."""
    figures = []
    for group in once(groups):
        for task in group.board.suite.tasks_under(group.protocol):
            of_task = [card for card in group.cards if card["task"] == task and not card["overrides"]]
            for pattern in sorted({card["pattern"] for card in of_task}):
                own = [card for card in of_task if card["pattern"] == pattern]
                if figure := board_figures.learning(own, look):
                    item = {"task": task, "group": group, "pattern": pattern}
                    figures.append(item | {"figure": figure_json.render(figure, family_of)})
    return figures


def costs(group: BoardGroup, task: str, look: Mapping[str, Look]) -> dict[str, Any] | None:
    """Score against speed and parameters; None where fewer than two have both."""
    figure = board_figures.cost(group.board, task, look)
    views = [view for view in figure.views if _points(view) > 1] if figure else []
    return figure_json.render(Figure(views), family_of) if views else None


def _points(view: FigureView) -> int:
    return sum(isinstance(mark, PointsMark) for mark in view.marks)


def scores(group: BoardGroup, task: str, look: Mapping[str, Look]) -> dict[str, Any] | None:
    """A row for each of two or more mechanisms, the best first, with its spread over seeds; chance as a line."""
    view = group.board
    ranked = rows_of(group, task)
    if len(ranked) < 2:
        return None
    measure = view.suite.measure(task)
    scale = 100.0 if measure.unit == "percent" else 1.0
    marks: list[Mark] = []
    for place, row in enumerate(ranked):
        cell, own = row.cells[task], look[row.mechanism]
        value = scale * (cell.value or 0.0)
        spread = f" ± {board_table.deviation_text(view, cell.std, task)}" if cell.std is not None else ""
        seeds = f"{cell.seeds} seed{'' if cell.seeds == 1 else 's'}"
        hover = [f"{render.score_text(view, cell.value or 0.0, task)}{spread}, {seeds}"]
        if cell.std is not None:
            ends = [value - scale * cell.std, value + scale * cell.std]
            marks.append(LineMark(x=ends, y=[place, place], colour=own.colour, width=3.0, group=row.mechanism))
        marks.append(
            PointsMark(x=[value], y=[place], size=12, group=row.mechanism, name=row_name(row), hover=hover, **own.point)
        )
    chance = next((row.cells[task].chance for row in ranked if row.cells[task].chance), None)
    if chance is not None:
        marks.append(ReferenceMark("x", scale * chance, "chance" if scale > 1 else "baseline"))
    better = "higher" if measure.higher_is_better else "lower"
    x = Axis(f"test {board_figures.metric_name(measure.metric)}{', %' if scale > 1 else ''} ({better} is better)")
    names = [row_name(row) for row in ranked]
    return figure_json.render(Figure([FigureView("", marks, x, Axis(rows=names))]), family_of)


def rows_of(group: BoardGroup, task: str) -> list[Row]:
    """The rows that have a score on a task, the best first."""
    view = group.board
    if task not in view.suite.columns:
        return []
    sign = -1 if view.suite.measure(task).higher_is_better else 1
    found = [row for row in (*view.rows, *view.free, *view.fidelity) if row.cells[task].status == "ok"]
    return sorted(found, key=lambda row: sign * (row.cells[task].value or 0.0))


def row_name(row: Row) -> str:
    """The title, with the options where a row has some."""
    options = row.mechanism.partition("(")[2].removesuffix(")")
    return shown(f"{row.title}, {options}" if options and ":" not in row.mechanism else row.title)
