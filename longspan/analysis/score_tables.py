"""Scores of mechanisms on tasks, a table for each set of rules: printed ones, and means over seeds of our runs.

for table in (*own_tables(evidence.runs), *published_tables()):
    table.origin, table.tasks, table.scores["softmax"]["listops"]

Every score is signed so that more is better. Failed runs are missing, as are those that were not made.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longspan import published, suites
from longspan.analysis.cards import name_of
from longspan.analysis.comparable import ABLATIONS
from longspan.core.printable import shown
from longspan.published.index_constants import index_constants
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.collect import pattern_order
from longspan.results.variant import STANDIN, data_of, in_words


@dataclass(frozen=True)
class ScoreTable:
    """`scores` are by mechanism, then by task; `titles` name the mechanisms, `tasks` the tasks."""

    origin: str
    tasks: Mapping[str, str]
    titles: Mapping[str, str]
    scores: Mapping[str, Mapping[str, float]]


def own_tables(runs: Iterable[Card]) -> list[ScoreTable]:
    """One for every protocol, tier and pattern; smoke runs and runs on stand-in data are not ranked and have none."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in runs:
        if is_ranked(card):
            groups[card["protocol"], card["tier"], *pattern_order(card["pattern"])].append(card)
    return [_own(cards) for _, cards in sorted(groups.items())]


def is_ranked(card: Card) -> bool:
    """Whether a run counts in a comparison: finished, by the rules, of a mechanism, not smoke, not on stand-in data."""
    ranked = card["status"] == "ok" and card["track"] == "fixed" and not (card["fidelity"] or card["overrides"])
    return ranked and card["mechanism"] not in ABLATIONS and card["tier"] != "smoke" and data_of(card) != STANDIN


def _own(cards: list[Card]) -> ScoreTable:
    seeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tasks, titles = {}, {}
    for card in cards:
        kind, sign = in_words(data_of(card)), 1 if card["score"]["higher_is_better"] else -1
        task = f"{card['task']}, {kind}" if kind else card["task"]
        tasks[task] = shown(f"{suites.heading(card['task'])}, {kind}" if kind else suites.heading(card["task"]))
        mechanism = shown(row_mechanism(card))
        titles[mechanism] = shown(card["title"]) if card.get("preset") else name_of(card)
        seeds[mechanism][task].append(sign * card["score"]["value"])
    scores = {name: {task: statistics.fmean(values) for task, values in own.items()} for name, own in seeds.items()}
    pattern = index_constants().patterns.get(cards[0]["pattern"])
    where = pattern.code if pattern else cards[0]["pattern"]
    return ScoreTable(shown(f"{cards[0]['protocol']} · {cards[0]['tier']} · {where}"), tasks, titles, scores)


def published_tables() -> list[ScoreTable]:
    """Both leaderboards of Long Range Arena, and the scores of CAB's tasks pattern by pattern."""
    found = []
    for name in published.names():
        table = published.load(name)
        rows = {row.mechanism or row.title: row for row in table.rows if row.kind == "published"}
        scores = {
            key: {t: s for t in published.FIVE if isinstance(s := row.scores[t], float)} for key, row in rows.items()
        }
        tasks = {task: suites.heading(task) for task in published.FIVE}
        titles = {key: row.title for key, row in rows.items()}
        found.append(ScoreTable(f"published ({name})", tasks, titles, scores))
    table = published.measured("cab-task-scores")
    rows = {row.mechanism or row.title: row for row in table.rows}
    for pattern in index_constants().patterns.values():
        own = [column for column in table.columns if column.quantity.replace(" ", "_") == pattern.pattern]
        scores = {k: {c.name: row.value(c.name) for c in own if c.name in row.printed} for k, row in rows.items()}
        scores = {key: values for key, values in scores.items() if values}
        tasks = {column.name: f"{pattern.code}-{column.title}" for column in own}
        titles = {key: rows[key].title for key in scores}
        found.append(ScoreTable(f"published (cab, {pattern.code})", tasks, titles, scores))
    return found
