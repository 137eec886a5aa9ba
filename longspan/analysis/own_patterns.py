"""How good mechanisms are in our runs, by pattern, as columns to correlate: an index of CAB's tasks, and one of LRA's.

The index of a pattern is that of `own_index.py`; the same mechanisms may have several, by protocol, tier and constants.
That of Long Range Arena is made the same way: the mean z-score over its tasks, with the mean and the sample standard
deviation of the mechanisms that have them all, of which there must be at least five.
"""

import statistics
from collections.abc import Sequence

from longspan import suites
from longspan.analysis.own_index import MIN_POOL, own_rows
from longspan.analysis.score_tables import own_tables
from longspan.analysis.task_columns import TaskColumn
from longspan.published.index_constants import index_constants
from longspan.results.card import Card

ARENA = {*suites.get("lra").tasks, *suites.get("lra").tasks_under("lra-paper")}


def own_patterns(runs: Sequence[Card]) -> list[TaskColumn]:
    """Long Range Arena first, then the patterns in CAB's order."""
    found = _arena(runs)
    rows, _ = own_rows(runs)
    for pool in dict.fromkeys(row.pool for row in rows):
        own = {row.mechanism.partition("(")[0]: row.index for row in rows if row.pool == pool}
        pattern, origin, constants = pool
        found.append(TaskColumn(f"{index_constants().patterns[pattern].code} ({origin}, {constants})", own))
    return found


def _arena(runs: Sequence[Card]) -> list[TaskColumn]:
    found = []
    for table in own_tables(runs):
        tasks = [task for task in table.tasks if task in ARENA]
        complete = {name: own for name, own in table.scores.items() if tasks and all(task in own for task in tasks)}
        if len(complete) < MIN_POOL:
            continue
        z = dict.fromkeys(complete, 0.0)
        for task in tasks:
            values = [own[task] for own in complete.values()]
            mean, std = statistics.fmean(values), statistics.stdev(values)
            for name, own in complete.items():
                z[name] += (own[task] - mean) / std / len(tasks) if std > 0 else 0.0
        found.append(TaskColumn(f"LRA ({table.origin}, {len(tasks)} tasks)", z))
    return found
