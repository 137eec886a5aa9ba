"""The papers' own tables as data: every number as printed, with its source, beside what arithmetic gives.

    table = load("lra-v1")
    row = table.row("Sinkhorn Trans.")
    row.printed_average, row.average(), row.average_is_wrong        # 52.78, 51.582, True

    speeds = measured("lra-training-speed")
    speeds.row("Performer").value("speed_4k"), speeds.ratio("Performer", "speed_4k"), speeds.flags()

Scores are as the papers print them, accuracies in percent. FAIL and missing entries stay what they are; nothing is
filled in.
"""

import json
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any

from longspan.core.errors import UnknownName, did_you_mean
from longspan.published.leaderboard import FIVE, PublishedRow, PublishedTable, read_leaderboard
from longspan.published.measurement import Flag, MeasuredRow, MeasuredTable, read_measurement
from longspan.published.settings import scores_of

__all__ = ["FIVE", "Flag", "MeasuredRow", "MeasuredTable", "PublishedRow", "PublishedTable"]
__all__ += ["for_columns", "for_suite", "for_tasks", "load", "measured", "names"]

FILES = {
    "leaderboard": {"lra-v0": "lra_v0.json", "lra-v1": "lra_v1.json"},
    "later": {"lra-later": "lra_later.json"},
    "measured": {
        "lra-training-speed": "lra_training_speed.json",
        "lra-generalisation": "lra_generalisation.json",
        "lra-inference-speed": "lra_inference_speed.json",
        "lra-convergence": "lra_convergence.json",
        "lra-references": "lra_references.json",
        "cab-forecasting": "cab_forecasting.json",
        "cab-ns": "cab_ns.json",
        "cab-cs": "cab_cs.json",
        "cab-nc": "cab_nc.json",
        "cab-cc": "cab_cc.json",
        "cab-task-scores": "cab_task_scores.json",
        "cab-benefit": "cab_benefit.json",
        "cab-efficiency-lengths": "cab_efficiency_lengths.json",
        "cab-training-hours": "cab_training_hours.json",
    },
    "figure": {
        "cab-extrapolation": "cab_extrapolation.json",
        "cab-pattern-correlation": "cab_pattern_correlation.json",
        "cab-task-correlation": "cab_task_correlation.json",
    },
}


def names(kind: str = "leaderboard") -> list[str]:
    """The tables of a kind: `leaderboard`, `later` (scores that do not compare), `measured` or `figure` (read off)."""
    if kind not in FILES:
        raise UnknownName(f"No kind of published table is called {kind!r}.{did_you_mean(kind, FILES)}")
    return list(FILES[kind])


def for_suite(suite: str) -> dict[str, str]:
    """The tables of scores that a board of the suite can show, by their short names.

    >>> for_suite("lra")
    {'v0': 'lra-v0', 'v1': 'lra-v1', 'later': 'lra-later'}
    """
    tables = (load(name) for name in (*names(), *names("later")))
    return {table.name.removeprefix(f"{suite}-"): table.name for table in tables if table.suite == suite}


def for_tasks(tasks: Collection[str], metric: str) -> list[PublishedTable]:
    """The printed scores of single tasks, for boards that no suite describes: a table for each pattern.

    >>> [table.row("ABC").scores for table in for_tasks(["forecasting_etth1"], "mse")]
    [{'forecasting_etth1': 1.332}]
    >>> [table.name for table in for_tasks(["tts_transformer"], "mcd")]
    ['cab-ns', 'cab-cs', 'cab-cc']
    """
    return for_columns({task: f"{task}_{metric}" for task in tasks})


def for_columns(columns: Mapping[str, str]) -> list[PublishedTable]:
    """Tables that have all of these columns, with the scores under the names that a board gives them."""
    tables = (scores_of(measured(name), columns) for name in names("measured"))
    return [table for table in tables if table]


@cache
def load(name: str) -> PublishedTable:
    """A table of scores: `lra-v0` (Tables 1 and 7), `lra-v1` (Table 6) or `lra-later` (records of later papers)."""
    return read_leaderboard(_content(name, {**FILES["leaderboard"], **FILES["later"]}))


@cache
def measured(name: str) -> MeasuredTable:
    """A table of measurements, of those that `names("measured")` and `names("figure")` list."""
    return read_measurement(_content(name, {**FILES["measured"], **FILES["figure"]}))


def _content(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    if name not in files:
        raise UnknownName(f"No published table named {name!r}.{did_you_mean(name, files)}")
    return json.loads(resources.files(__name__).joinpath(files[name]).read_text(encoding="utf-8"))
