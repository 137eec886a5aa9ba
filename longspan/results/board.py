"""A board: a row per mechanism and a column per task, from cards of one protocol, tier, pattern and kind of data.

    view = board(store.cards(), suites.get("lra"), protocol="longspan", tier="full", published="lra-v1")
    print(render(view, "markdown"))                                     # results/render.py
    freeze(view, "2026-spring", folder)                                 # results/snapshot.py, never changes

This file selects and combines the cards; `board_columns.py`, `board_cells.py` and `board_rows.py` make the parts of a
table from them, `chance.py` and `ranking.py` judge these, `board_notes.py` says what a reader must know.

The rules, which every rendering repeats:

- A cell is the mean over seeds, with the sample standard deviation and a 95 % bootstrap interval.
- FAIL: every seed failed; or, on a task the suite names (Path-X), the mean is not above chance.
- Above chance: above the majority-class rate of that test set by three standard errors of a guess at that rate. A score
  that is not a rate, such as a perplexity, is only compared with its baseline.
- Left chance: of several seeds, those that are individually above chance. Where some are not, as on Pathfinder, the
  mean says little; the number of seeds that left chance and the mean over them are shown beside it.
- All tasks of a board are scored alike, except those that a suite names, which are in no average, and except where a
  suite has a column for each of several metrics (CAB). Lower-is-better scores rank in ascending order, and only
  fractions are shown in percent.
- A column that is a mean of settings needs all of them; its spread is over the seeds they have in common.
- An index is the mean z-score over each task's metrics, and then over the tasks, with constants that a paper published.
  A failed run counts as missing, and a row that lacks a task has no index. It exists only for full runs on real data.
- Leading: above chance, and no row of the column is better by more than two standard errors of the difference, which
  combine the spread over seeds and the sampling of the test set. This replaces bold type for a lucky best.
- An average exists over complete task sets only.
- Where the suite says so (Text under the protocols of the paper), a column shows the best of several tasks and which
  one it is; it is complete when all of them were run.
- A row has one code of a mechanism (for a plug-in its source; for a built-in its version and outputs) and one
  precision, and each of its cells is from one data set. A column is one version of a task under one set of settings.
  Those that the package has are shown, else the newest, a card dated in the future counting as the oldest; the others,
  and overrides, declared or not, are listed below with what differs (`alike.py`, `official.py`), so that no average
  mixes them. The device and the number of devices may differ.
- A row says whether exactly its code passed `longspan check` (`row_conformance.py`): one that breaks a promise is not
  ranked, leads no column and is in no summary; one that was not checked says so.
- The free track and bug-compatible twins (fidelity) stand apart and are never ranked with the others.
- Published scores are shown as printed, their averages and spreads recomputed, and printed errors flagged. They stand
  beside the fixed track only.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan import suites
from longspan.core.errors import UsageError
from longspan.core.printable import shown
from longspan.results.age import by_age, is_future
from longspan.results.alike import alike
from longspan.results.board_columns import Columns, by_row, common_columns, is_on_board, row_key
from longspan.results.board_notes import make_notes
from longspan.results.board_rows import make_rows, with_counterpart
from longspan.results.board_types import USUAL_PATTERN, Board, OffBoard
from longspan.results.card import Card
from longspan.results.official import undeclared
from longspan.results.published_rows import paper_of, paper_rows, published_table
from longspan.results.ranking import spreads_of
from longspan.results.row_conformance import Checks
from longspan.results.scoring import metrics_of
from longspan.results.store import newest
from longspan.results.variant import REAL, STANDIN, kind_of
from longspan.suites import Suite


def board(
    cards: Iterable[Card],
    suite: Suite | str | Sequence[str],
    protocol: str,
    tier: str,
    pattern: str | None = None,
    *,
    data: str = REAL,
    published: str | None = None,
    conformance: Iterable[Mapping[str, Any]] = (),
) -> Board:
    """The board of a suite (by name or as a list of tasks) for one protocol and tier.

    A mechanism does a different job in another slot of a network, so cards of several patterns need a `pattern`.

    `data="standin"`, or the name of a known substitute, gives the board of that kind of data. Kinds are never mixed,
    except that a board of stand-ins also shows the generated tasks of the suite, which have no stand-ins.
    `published="lra-v1"` adds the rows of a paper, as published. `conformance` are results of `longspan check`
    (`results/conformance.py` loads them).
    """
    cards, checks = list(cards), Checks(conformance)
    suite = _suite(suite, cards)
    chosen = newest(_chosen(cards, suite, protocol, tier, pattern, kind_of(data)))
    pattern = _only_pattern(chosen, suite) if pattern is None and not suite.slots else pattern
    suite = suite.under(pattern or USUAL_PATTERN)
    if suite.measures and (tier, kind_of(data)) != ("full", REAL):
        suite = replace(suite, averages=())
    table = published_table(published, suite)
    columns = Columns(suite, protocol)
    chosen = [card for card in chosen if card["task"] in {*suite.tasks, *columns.of}]
    if table and pattern not in (None, table.pattern):
        table = None  # the paper ran other slots
    official = [(card, _reason_to_stay_off(card, suite, columns)) for card in chosen]
    several = bool(suite.slots) or data == STANDIN
    kept, others = alike((card for card, reason in official if reason is None), several_patterns=several)
    off = [_off(card, reason) for card, reason in (*((c, r) for c, r in official if r is not None), *others)]
    passed = {key: checks.of(own) for key, own in by_row(kept, suite).items()}
    sound = [card for card in kept if passed[row_key(card, suite)].status != "broken"]
    common = common_columns(sound or kept, columns)
    sections = {
        name: make_rows(own, columns, common, passed, rank=name != "fidelity")
        for name, own in _sections(kept, suite).items()
    }
    beside = paper_rows(table, suite)
    for name in ("rows", "fidelity"):  # the rules forbid it for the free track
        sections[name] = tuple(with_counterpart(row, table, beside) for row in sections[name])
    return Board(
        suite=suite,
        protocol=protocol,
        tier=tier,
        pattern=pattern,
        data=kind_of(data),
        published=beside,
        off=tuple(off),
        notes=tuple(make_notes(kept, passed, columns, common, data, table, f"{protocol}, {tier}")),
        common=common,
        summary=spreads_of(sections["rows"], suite),
        paper=paper_of(table, beside, suite),
        **sections,
    )


def _chosen(
    cards: Sequence[Card], suite: Suite, protocol: str, tier: str, pattern: str | None, data: str
) -> Iterator[Card]:
    tasks = {*suite.tasks, *suite.tasks_under(protocol)}
    for card in cards:
        if (
            card["task"] in tasks
            and (card["protocol"], card["tier"]) == (protocol, tier)
            and pattern in (None, card["pattern"])
            and suite.slots.get(card["task"], card["pattern"]) == card["pattern"]
            and is_on_board(card, suite, data)
        ):
            yield card


def _sections(cards: Sequence[Card], suite: Suite) -> dict[str, list[Card]]:
    """The cards of the fixed track, of the free one, and of bug-compatible twins."""
    oversized = {row_key(card, suite) for card in cards if card["parameters"]["within_rule"] is False}
    sections: dict[str, list[Card]] = {"rows": [], "free": [], "fidelity": []}
    for card in cards:
        if card["fidelity"]:
            sections["fidelity"].append(card)
        elif card["track"] == "free" or row_key(card, suite) in oversized:
            sections["free"].append(card)
        else:
            sections["rows"].append(card)
    return sections


def _only_pattern(cards: Sequence[Card], suite: Suite) -> str | None:
    """The pattern that all cards have; None where there is no card."""
    patterns = sorted({card["pattern"] for card in cards})
    if len(patterns) > 1:
        raise UsageError(
            f"One board of {suite.name} was asked for runs of several patterns ({shown(', '.join(patterns))}), which "
            "do not compare; make a board of each with pattern."
        )
    return patterns[0] if patterns else None


def _suite(suite: Suite | str | Sequence[str], cards: Sequence[Card]) -> Suite:
    if isinstance(suite, Suite):
        return suite
    if isinstance(suite, str):
        return suites.get(suite)
    alike, *others = suites_of(suite, cards)
    if others:
        ways = "; ".join(f"{', '.join(one.tasks)} by {one.metric}" for one in (alike, *others))
        raise UsageError(f"One board was asked for tasks that are scored differently ({ways}); make a board of each.")
    return alike


def suites_of(tasks: Sequence[str], cards: Iterable[Card]) -> list[Suite]:
    """The tasks as unnamed suites, one for each way of scoring that their newest cards have."""
    scoring: dict[str, tuple] = {}
    for card in sorted(by_age(cards), key=lambda card: (not is_future(card), card["task_version"])):
        if score := card["score"]:
            scoring[card["task"]] = shown(score["name"]), score["higher_is_better"], score.get("unit", "percent")
    alike: dict[tuple, list[str]] = defaultdict(list)
    for task in tasks:
        alike[scoring.get(task) or suites.usual_score(task)].append(task)
    return [suites.of_tasks(names, *way) for way, names in alike.items()]


def _reason_to_stay_off(card: Card, suite: Suite, columns: Columns) -> str | None:
    if card["task"] not in columns.of:
        behind = columns.behind[card["task"]]
        return f"the column shows {'the best of ' if len(behind) > 1 else ''}{', '.join(behind)}"
    if card["overrides"]:
        return "settings were overridden: " + ", ".join(f"{key}={value}" for key, value in card["overrides"].items())
    if (changed := undeclared(card)) is not None:
        return f"settings were changed without saying so: {changed}"
    if card["score"] and suite.measures:
        asked = {measure.metric for measure in suite.measures if card["task"] in measure.settings}
        lacking = sorted(asked - metrics_of(card))
        return f"without {', '.join(lacking)}" if lacking else None
    metric = suite.measure(columns.of[card["task"]]).metric
    if card["score"] and shown(card["score"]["name"]) != metric:
        return f"scored by {card['score']['name']}, the suite by {metric}"
    return None


def _off(card: Card, reason: str) -> OffBoard:
    value = card["score"]["value"] if card["score"] else None
    return OffBoard(shown(card["mechanism"]), shown(card["title"]), card["task"], card["seed"], value, shown(reason))
