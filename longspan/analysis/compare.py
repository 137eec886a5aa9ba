"""How sure is it that a beats b, task by task? A paired bootstrap over test examples and seeds, for `board --compare`.

The share of draws in which a mechanism is ahead says how sure its lead is; a winner is named where the 95 % interval
of the difference excludes 0. Scores without a contribution per example, such as a mean over categories, are resampled
over seeds alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.analysis.paired import Scores, block_note, block_of, interval, paired_draws, scores_of
from longspan.core.errors import DataMissing, UnknownName, UsageError, did_you_mean
from longspan.core.printable import shown
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.collect import pattern_order
from longspan.results.scoring import score_by
from longspan.results.variant import data_of
from longspan.suites import Suite

OPEN = "open"
NAMES = ("protocol", "tier", "pattern", "data")


def compare(evidence: Evidence, suite: Suite, one: str, other: str, *, metric: str | None = None, **asked) -> Finding:
    """The tasks of a suite that both have finished; `asked` selects protocol, tier, pattern and data, None for any."""
    if one == other:
        raise UsageError(f"Two mechanisms compare, and {one} was named twice; name another one.")
    runs = [card for card in evidence.runs if _belongs(card, suite) and _asked(card, asked)]
    known = {name for card in runs for name in (row_mechanism(card), card["mechanism"])}
    for name in (one, other):
        if runs and name not in known:
            raise UnknownName(f"No finished run of {suite.name} by {name!r}.{did_you_mean(name, sorted(known))}")
    rows, notes = [], []
    for cards in _groups(runs):
        pair = [[card for card in cards if name in (row_mechanism(card), card["mechanism"])] for name in (one, other)]
        if not all(pair):
            continue
        task = shown(cards[0]["task"])
        if len({card["dataset"]["sha256"] for card in (*pair[0], *pair[1])}) > 1:
            notes.append(f"{one} and {other} were run on other data of {task}.")
            continue
        for name in _metrics(suite, cards[0], metric):
            found, about = _line(evidence, pair, name, (one, other))
            rows += [found] if found else []
            notes += about
    if not rows:
        raise DataMissing(
            f"No task of {suite.name} has finished runs of both {one} and {other} on the same data; "
            f"run them with longspan run {suite.name} -a {one} {other}."
        )
    return Finding(
        "compare",
        shown(f"{one} against {other}"),
        "The difference on the same test examples, with how sure one is of it.",
        _columns(one, other),
        tuple(rows),
        (_tally(rows, one, other), *dict.fromkeys(notes), *_cautions(rows)),
    )


def _columns(one: str, other: str) -> tuple[Column, ...]:
    return (
        Column("Task"),
        Column("Metric", context=True),
        Column("From", context=True),
        Column("Pattern", context=True),
        Column("Seeds", "text", "of the first and of the second"),
        Column("Examples", "count", "none where seeds alone were drawn"),
        Column(shown(one), "text", "mean over seeds"),
        Column(shown(other), "text", "mean over seeds"),
        Column("Difference", "text", "the first minus the second, in points where the score is a rate"),
        Column("95 % interval", "text", "paired bootstrap over test examples and seeds"),
        Column(f"Sure of {shown(one)}", "text", "share of draws in which it is better"),
        Column("Better", "text", "named where the interval leaves out 0"),
    )


def _belongs(card: Card, suite: Suite) -> bool:
    if card["status"] != "ok" or card["overrides"] or (suite.patterns and card["pattern"] not in suite.patterns):
        return False
    own = suite.under(card["pattern"])
    return card["task"] in (*own.tasks, *own.tasks_under(card["protocol"]))


def _asked(card: Card, asked: dict[str, str | None]) -> bool:
    own = {"data": data_of(card), **{name: card[name] for name in NAMES[:3]}}
    return all(asked.get(name) in (None, own[name]) for name in NAMES)


def _groups(runs: Sequence[Card]) -> Iterator[list[Card]]:
    """Comparable runs: one task, one set of rules and one kind of data."""

    def key(card: Card) -> tuple:
        return card["protocol"], card["tier"], data_of(card), pattern_order(card["pattern"]), card["task"]

    for one in sorted({key(card) for card in runs}):
        yield [card for card in runs if key(card) == one]


def _metrics(suite: Suite, card: Card, metric: str | None) -> list[str]:
    if metric is not None:
        return [metric]
    measures = suite.under(card["pattern"]).measures
    named = [measure.metric for measure in measures if card["task"] in measure.settings]
    return list(dict.fromkeys(named)) or [card["score"]["name"]]


def _line(
    evidence: Evidence, pair: Sequence[Sequence[Card]], metric: str, names: tuple[str, str]
) -> tuple[tuple | None, list[str]]:
    """One row of the table, None where a mechanism lacks the metric, and the notes on it."""
    values = [[score["value"] for card in cards if (score := score_by(card, metric))] for cards in pair]
    if not all(values):
        return None, []
    card, task = pair[0][0], shown(pair[0][0]["task"])
    notes: list[str] = []
    shares = [scores_of(evidence, cards, metric, notes) for cards in pair]
    by_rows = all(shares) and len({own.examples for own in shares if own}) == 1
    if by_rows:
        scores, block = [own for own in shares if own], block_of(card)
    else:
        scores, block = [Scores(np.asarray(own)[:, None]) for own in values], 1
        notes.append(f"{task}, {shown(metric)}: no predictions of both by example, so that seeds alone are drawn.")
    notes += block_note(card, scores[0].examples, block)
    score = score_by(card, metric) or card["score"]
    percent = score.get("unit", "percent") == "percent"
    scale, spell = (100.0, "{:.2f}".format) if percent else (1.0, "{:.4g}".format)
    signed = "{:+.2f}".format if percent else "{:+.3g}".format
    start = (task, shown(metric), evidence.rules(card), shown(card["pattern"]), " / ".join(str(len(v)) for v in values))
    means = [own.mean for own in scores]
    row = (*start, scores[0].examples if by_rows else None, *(spell(scale * mean) for mean in means))
    row = (*row, signed(scale * (means[0] - means[1])))
    if not by_rows and min(map(len, values)) < 2:
        return (*row, "–", "–", OPEN), notes  # one number each
    draws = paired_draws(scores[0], scores[1], block=block)
    low, high = interval(draws)
    better = draws if score["higher_is_better"] else -draws
    winner = OPEN if low <= 0 <= high else names[0] if better.mean() > 0 else names[1]
    return (*row, f"{signed(scale * low)} to {signed(scale * high)}", sureness(better), shown(winner)), notes


def sureness(better: np.ndarray) -> str:
    """The share of draws above 0, ties counting half; never more precise than the number of draws allows.

    >>> sureness(np.array([1.0, 1.0, 0.0, -1.0])), sureness(np.ones(2000))
    ('62.5 %', '> 99.9 %')
    """
    share = 100 * float((better > 0).mean() + (better == 0).mean() / 2)
    return "> 99.9 %" if share > 99.9 else "< 0.1 %" if share < 0.1 else f"{share:.1f} %"


def _tally(rows: Sequence[tuple], one: str, other: str) -> str:
    winners = [row[-1] for row in rows]
    first, second = winners.count(shown(one)), winners.count(shown(other))
    return shown(
        f"{one} is better in {first} of {len(rows)} rows, {other} in {second}, {winners.count(OPEN)} are open."
    )


def _cautions(rows: Sequence[tuple]) -> Iterator[str]:
    fewest = min(int(count) for row in rows for count in row[4].split(" / "))
    if fewest == 1:
        yield "With one seed an interval knows the sampling of the test set, not the luck of training."
    elif fewest < 5:
        yield f"Over {fewest} seeds intervals are too narrow: drawn again, few seeds vary less than new ones would."
    if len(rows) > 1:
        yield "Of twenty rows in which both are alike, one names a winner by chance."
