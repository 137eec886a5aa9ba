"""Tasks as columns of scores by mechanism, with what a run of each costs: ours of every pattern, and CAB's.

    for column in own_columns(evidence.runs):
        column.title, column.scores["softmax"], column.hours

A column is of one task, pattern, protocol, tier and kind of data, so that its scores compare; two columns need only
mechanisms in common. Options are left off a mechanism's name where a column has it in one form alone: CAB gives
Performer different features on different tasks.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longspan import published, suites
from longspan.analysis.score_tables import is_ranked, published_tables
from longspan.core.printable import shown
from longspan.published.index_constants import index_constants
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.collect import pattern_order
from longspan.results.variant import data_of, in_words

SECONDS = 3600
HOURS = {  # for each task of CAB's index, the columns of its training hours in CAB's table
    "tts": ("tts_fastspeech2", "tts_transformer"),
    "sum": ("summarization",),
    "sr": ("super_resolution",),
    "mlm": ("mlm",),
    "lm": ("lm",),
    "pcc": ("point_cloud_completion",),
    "lstf": ("ett", "ecl", "weather"),
}
ONE_BACKBONE = ("cs_tts", "cc_tts")  # FastSpeech 2 has noncausal self attention alone


@dataclass(frozen=True)
class TaskColumn:
    """Scores by mechanism, more is better; `hours` of one run, None where they are not known."""

    title: str
    scores: Mapping[str, float]
    hours: float | None = None


def own_columns(runs: Iterable[Card]) -> list[TaskColumn]:
    """One for each task, pattern, protocol, tier and kind of data of runs that are ranked."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in runs:
        if is_ranked(card):
            place = (*pattern_order(card["pattern"]), card["pattern"], card["task"], data_of(card))
            groups[(*place, card["protocol"], card["tier"])].append(card)
    several = len({key[-2] for key in groups}) > 1
    return [_own(cards, several) for _, cards in sorted(groups.items())]


def _own(cards: list[Card], with_protocol: bool) -> TaskColumn:
    card = cards[0]
    known = index_constants().patterns.get(card["pattern"])
    words = [card["protocol"]] if with_protocol else []
    words += [card["tier"], in_words(data_of(card))]
    code = known.code if known else card["pattern"]
    title = f"{code}-{suites.heading(card['task'])} ({', '.join(filter(None, words))})"
    seeds: dict[str, list[Card]] = defaultdict(list)
    for one in cards:
        seeds[row_mechanism(one)].append(one)
    forms = Counter(name.partition("(")[0] for name in seeds)
    scores = {}
    for name, own in seeds.items():
        base = name.partition("(")[0]
        sign = 1 if own[0]["score"]["higher_is_better"] else -1
        mean = sign * statistics.fmean(one["score"]["value"] for one in own)
        scores[shown(base if forms[base] == 1 else name)] = mean
    return TaskColumn(shown(title), scores, _hours(seeds))


def _hours(seeds: Mapping[str, list[Card]]) -> float | None:
    """Hours of softmax where it was run, else of the median mechanism; runs that shared their device are left out."""
    found = {}
    for name, own in seeds.items():
        timings = [one["timing"] for one in own]
        seconds = [one["wall_seconds"] for one in timings if one["wall_seconds"] and not one.get("shared")]
        if seconds:
            found[name] = statistics.median(seconds) / SECONDS
    return found.get("softmax", statistics.median(found.values()) if found else None)


def cab_columns() -> list[TaskColumn]:
    """The tasks of CAB's Table 6 with the GPU hours of its Table 15; FlashAttention computes what vanilla does."""
    (hours,) = published.measured("cab-training-hours").rows
    found = []
    for table in published_tables():
        for task, title in table.tasks.items():
            if task in published.FIVE:
                continue
            parts = HOURS[task.partition("_")[2]]
            cost = sum(hours.value(part) for part in (parts[1:] if task in ONE_BACKBONE else parts))
            rows = {name: own[task] for name, own in table.scores.items() if task in own and name != "FlashAttention"}
            found.append(TaskColumn(title, rows, cost))
    return found
