"""Tables of the papers that are about settings, sizes and constants: theirs and ours in one sheet, no cards needed."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from longspan.published.index_audit import index_checks
from longspan.published.index_constants import index_constants
from longspan.published.sizes import sizes
from longspan.published.task_settings import task_settings
from longspan.report.beside import Pair
from longspan.report.sheet import Sheet
from longspan.results import catalogue
from longspan.results.catalogue import Entry

PATTERNS = {"noncausal_self": "NS", "causal_self": "CS", "noncausal_cross": "NC", "causal_cross": "CC"}
PROTOCOL = "cab-2023"


@cache
def entries(kind: str) -> dict[str, Entry]:
    """The shipped catalogue's entries of one kind, by name."""
    return {entry["name"]: entry for entry in catalogue.read(catalogue.SHIPPED)[kind]}


def settings(number: str) -> tuple[Sheet, list[Pair]]:
    """A table of settings as printed, with ours below each cell where it differs."""
    table = task_settings(number)
    tasks = entries("tasks")
    lines, pairs = [], []
    for row in table.rows:
        ours = {column: table.ours(row, column, tasks[row.task]) for column in table.columns}
        lines += [(row.title, "printed", *row.printed.values()), ("", PROTOCOL, *ours.values())]
        pairs += [Pair(f"{row.title}, {one}", PROTOCOL, row.printed[one], ours[one]) for one in table.columns]
    heads = ("Task", "From", *table.columns)
    return Sheet(table.title, heads, tuple(lines), frozenset(range(len(heads)))), pairs


def constants(number: str) -> tuple[Sheet, list[Pair]]:
    """Means and deviations of the index: as printed, as released, and recomputed over the pool that the paper names."""
    pattern = next(one for one in index_constants().patterns.values() if one.constants == number)
    lines, pairs = [], []
    for measure in pattern.measures:
        printed = measure.printed or ("–", "–")
        used, own = (measure.scales[name] for name in (PROTOCOL, "longspan"))
        lines.append((measure.title, *printed, f"{used.mean:g}", f"{used.std:g}", f"{own.mean:g}", f"{own.std:g}"))
        pairs.append(Pair(measure.title, "recomputed", " ± ".join(printed), f"{own.mean:g} ± {own.std:g}"))
    heads = ("Metric", "Printed mean", "std", "Released mean", "std", "Recomputed mean", "std")
    return Sheet(f"Constants of the compositional index, {pattern.code}", heads, tuple(lines)), pairs


def task_scores() -> tuple[Sheet, list[Pair]]:
    """Every printed index and task score, recomputed from the scores."""
    found = index_checks()
    checked = {(check.pattern, check.row, check.task): check for check in found}
    lines, pairs = [], []
    for check in checked.values():
        task = "CI" if check.task is None else index_constants().tasks[check.task]
        code = index_constants().patterns[check.pattern].code
        again = f"{check.from_sources:+.3f}"
        lines.append(
            (code, check.row, task, check.printed, f"{check.from_print:+.3f}", again, check.why or "as printed")
        )
        pairs.append(Pair(f"{code}, {check.row}, {task}", "counted again", check.printed, again))
    heads = ("Pattern", "Mechanism", "Task", "Printed", "From the print", "From all sources", "Verdict")
    return Sheet("Task scores and indices, counted again", heads, tuple(lines), frozenset({0, 1, 2, 6})), pairs


def parameters(number: str) -> tuple[Sheet, list[Pair]]:
    """Parameters of CAB's networks: printed in millions, and those that are counted here, exactly."""
    own = [size for size in sizes() if size.source.endswith(f", {number}")]
    tasks = list(dict.fromkeys(size.task for size in own))
    by_row: dict[str, dict[str, Any]] = {}
    for size in own:
        by_row.setdefault(size.title, {})[size.task] = size
    lines = [(title, *_counts(found, tasks)) for title, found in by_row.items()]
    heads = ("Mechanism", *(head for task in tasks for head in (f"{task}, printed", "counted")))
    pairs = [Pair(f"{size.title}, {size.task}", "counted", f"{size.printed} M", f"{size.derived:,}") for size in own]
    return Sheet(f"Parameters in millions as printed, and counted, {PROTOCOL}", heads, tuple(lines)), pairs


def _counts(found: Mapping[str, Any], tasks: Iterable[str]) -> Iterable[str]:
    for task in tasks:
        size = found.get(task)
        yield from ("–", "–") if size is None else (size.printed, f"{size.derived:,}")
