"""What mechanisms scored in the slots of one pattern, with standard errors.

    found = pattern_scores(evidence.runs, "causal_self")
    listed(found["linear"].values())                 # image 36.3 ± 0.9, listops 36.5 ± 2.1
    rules_of(found.values())                         # image, listops: longspan · full

For each task the fullest tier that was run counts, and within it the rules under which most mechanisms were run, so
that scores of one task compare. An error combines the spread over seeds and, for a rate, the sampling of the test set;
for any other score of one seed it is not known.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longspan.core.printable import shown
from longspan.results.card import Card
from longspan.results.variant import REAL, data_of

TIERS = ("full", "lite", "smoke")
INTERVAL = 1.96  # standard errors
WORSE = 2.0  # standard errors of a difference, as on boards


@dataclass(frozen=True)
class PatternScore:
    """The mean of one mechanism on one task; `error` is a standard error."""

    task: str
    value: float
    error: float | None
    seeds: int
    percent: bool
    higher_is_better: bool
    rules: str

    @property
    def text(self) -> str:
        """`listops 36.5 ± 1.3`, where ± is half of the 95 % interval, where that is known."""
        scale = 100.0 if self.percent else 1.0
        value = f"{scale * self.value:.1f}" if self.percent else f"{self.value:.4g}"
        sure = "" if self.error is None else f" ± {scale * INTERVAL * self.error:.2g}"
        return f"{self.task} {value}{sure}"

    def worse_than(self, other: "PatternScore") -> bool | None:
        """Whether it is worse by more than two standard errors of the difference; None where that is not known."""
        if self.error is None or other.error is None:
            return None
        behind = (other.value - self.value) * (1 if self.higher_is_better else -1)
        return behind > WORSE * math.hypot(self.error, other.error)


def pattern_scores(runs: Sequence[Card], pattern: str) -> dict[str, dict[str, PatternScore]]:
    """Scores by mechanism and task, from runs on the tasks' real data without overrides."""
    groups: dict[str, dict[tuple, dict[str, list[Card]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for card in runs:
        usable = card["status"] == "ok" and card["score"] and not card["overrides"] and data_of(card) == REAL
        if usable and card["pattern"] == pattern:
            rules = (card["protocol"], card["tier"], card["score"]["name"], card["dataset"]["sha256"])
            groups[card["task"]][rules][card["mechanism"]].append(card)
    found: dict[str, dict[str, PatternScore]] = defaultdict(dict)
    for task, by_rules in sorted(groups.items()):
        chosen = min(by_rules, key=lambda rules: (_place(rules[1]), -len(by_rules[rules]), rules))
        for mechanism, cards in by_rules[chosen].items():
            found[mechanism][task] = _score(task, cards)
    return dict(found)


def compared(one: Mapping[str, PatternScore], other: Mapping[str, PatternScore]) -> bool | None:
    """Whether the first is worse than the second on some task; False if on none of those that the second was run on.

    None where the first was not run on all of these, or the error of a score is not known.
    """
    said = [one[task].worse_than(theirs) if task in one else None for task, theirs in other.items()]
    if True in said:
        return True
    return None if None in said or not said else False


def listed(scores: Iterable[PatternScore]) -> str:
    return shown(", ".join(score.text for score in scores))


def rules_of(scores: Iterable[Mapping[str, PatternScore]]) -> str:
    """The protocol and tier of each task, which all its scores share: `image, listops: longspan · full; lm: ...`."""
    tasks: dict[str, set[str]] = defaultdict(set)
    for by_task in scores:
        for task, score in by_task.items():
            tasks[score.rules].add(task)
    return shown("; ".join(f"{', '.join(sorted(those))}: {rules}" for rules, those in sorted(tasks.items())))


def _place(tier: str) -> int:
    return TIERS.index(tier) if tier in TIERS else len(TIERS)


def _score(task: str, cards: Sequence[Card]) -> PatternScore:
    score, values = cards[0]["score"], [card["score"]["value"] for card in cards]
    mean = statistics.fmean(values)
    parts = [statistics.variance(values) / len(values)] if len(values) > 1 else []
    if score["name"] == "accuracy" and score.get("count"):
        parts.append(max(0.0, mean * (1 - mean)) / score["count"])
    return PatternScore(
        task=task,
        value=mean,
        error=math.sqrt(sum(parts)) if parts else None,
        seeds=len(values),
        percent=score.get("unit", "percent") == "percent" and score["name"] == "accuracy",
        higher_is_better=score["higher_is_better"],
        rules=f"{cards[0]['protocol']} · {cards[0]['tier']}",
    )
