"""The cells of a row: from the cards of one task over its seeds, the best of several tasks, or a mean of settings."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longspan.core.printable import shown
from longspan.results.board_types import BoardCell
from longspan.results.card import Card
from longspan.results.chance import is_above
from longspan.results.scoring import score_by
from longspan.suites import Suite

RESAMPLES = 4000


def best_of(cards: list[Card], suite: Suite, column: str, tasks: tuple[str, ...]) -> BoardCell:
    """The cell of one task, or the best of several, with the tasks that were not run."""
    found = {task: cell_of([card for card in cards if card["task"] == task], suite, column) for task in tasks}
    if len(tasks) == 1:
        cell = found[tasks[0]]
        return replace(cell, lacking=tasks) if cell.status == "missing" and tasks[0] != column else cell
    sign = 1 if suite.measure(column).higher_is_better else -1
    good = {task: sign * cell.value for task, cell in found.items() if cell.status == "ok" and cell.value is not None}
    failed = [task for task, cell in found.items() if cell.status == "fail"]
    best = max(good, key=good.__getitem__) if good else failed[0] if failed else tasks[0]
    lacking = tuple(task for task, cell in found.items() if cell.status == "missing")
    return replace(found[best], best=best if good else None, lacking=lacking)


def mean_of_settings(cards: list[Card], suite: Suite, column: str, tasks: tuple[str, ...]) -> BoardCell:
    """The cell of a metric: of one task, or its mean over several settings if all of them were run."""
    found = {task: cell_of([card for card in cards if card["task"] == task], suite, column) for task in tasks}
    if len(tasks) == 1:
        return found[tasks[0]]
    lacking = tuple(task for task, cell in found.items() if cell.status == "missing")
    cells = [cell for cell in found.values() if cell.status != "missing"]
    if lacking:
        return BoardCell("missing", lacking=lacking if cells else ())
    sizes, speeds = [cell.parameters for cell in cells], [cell.steps_per_second for cell in cells]
    cost = {
        "parameters": round(statistics.fmean(size for size in sizes if size is not None)) if sizes else None,
        "steps_per_second": geometric_mean(speeds),
        "ratio": max((cell.ratio for cell in cells if cell.ratio is not None), default=None),
        "failed": max(cell.failed for cell in cells),
    }
    if bad := [f"{task}: {cell.reason}" for task, cell in found.items() if cell.status == "fail"]:
        return BoardCell("fail", reason="; ".join(bad), **cost)
    by_seed: dict[int, list[float]] = defaultdict(list)
    for card in cards:
        if card["task"] in tasks and card["status"] == "ok":
            by_seed[card["seed"]].append(score_by(card, suite.measure(column).metric)["value"])  # type: ignore[index]
    means = [statistics.fmean(values) for values in by_seed.values() if len(values) == len(tasks)]
    return BoardCell(
        "ok",
        value=statistics.fmean(cell.value for cell in cells if cell.value is not None),
        std=statistics.stdev(means) if len(means) > 1 else None,
        interval=bootstrap_interval(means),
        seeds=min(cell.seeds for cell in cells),
        count=min(cell.count for cell in cells if cell.count is not None),
        **cost,
    )


def cell_of(cards: list[Card], suite: Suite, column: str) -> BoardCell:
    if not cards:
        return BoardCell("missing")
    measure = suite.measure(column)
    good = [card for card in cards if card["status"] == "ok"]
    cost = {
        "steps_per_second": geometric_mean([_speed(card) for card in good]),
        "parameters": cards[-1]["parameters"]["total"],
        "ratio": cards[-1]["parameters"]["ratio"],
    }
    failed = len(cards) - len(good)
    if not good:
        return BoardCell("fail", failed=failed, reason=shown(cards[-1]["reason"] or "the run failed"), **cost)
    scores = [score_by(card, measure.metric) or card["score"] if suite.measures else card["score"] for card in good]
    values = [score["value"] for score in scores]
    value, count = statistics.fmean(values), min(score["count"] for score in scores)
    chances = [score["chance"] for score in scores]
    chance = statistics.fmean(chances) if None not in chances else None
    above = is_above(value, chance, count, measure)
    left = [score["value"] for score in scores if is_above(score["value"], chance, count, measure)]
    cell = BoardCell(
        "ok",
        value=value,
        std=statistics.stdev(values) if len(values) > 1 else None,
        interval=bootstrap_interval(values),
        seeds=len(values),
        failed=failed,
        count=count,
        chance=chance,
        above_chance=above,
        left_chance=None if above is None else len(left),
        left_mean=statistics.fmean(left) if left else None,
        **cost,
    )
    if column in suite.fail_at_chance and above is False:
        return replace(cell, status="fail", reason=f"not above chance ({100 * value:.2f} % of {count} examples)")
    return cell


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % percentile interval of the mean under resampling of seeds, deterministic; None below two seeds."""
    if len(values) < 2:
        return None
    draws = np.random.default_rng(0).choice(np.asarray(values, dtype=float), size=(RESAMPLES, len(values)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _speed(card: Card) -> float | None:
    """Steps per second; None if other work shared the device, since the number then says little."""
    return None if card["timing"].get("shared") else card["timing"]["steps_per_second"]


def geometric_mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value]
    return statistics.geometric_mean(numbers) if numbers and len(numbers) == len(values) else None
