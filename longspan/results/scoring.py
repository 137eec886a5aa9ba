"""Another metric of a card as its score: the mean absolute error of forecasts, the loss of a classifier.

A task has one score, which checkpoints are chosen by; a card keeps every metric of the split that was scored.
"""

from collections.abc import Iterable

from longspan.core.errors import UsageError
from longspan.results.card import Card

LOWER_IS_BETTER = ("loss", "perplexity", "mse", "mae")


def scored_by(cards: Iterable[Card], metric: str) -> list[Card]:
    """The cards with this metric as their score; those without it are left out, and at least one must have it."""
    chosen, seen = [], set()
    for card in cards:
        score = card.get("score")
        if not score:  # a run that failed has no metric, and still belongs on the board
            chosen.append(card)
            continue
        seen |= metrics_of(card)
        if (own := score_by(card, metric)) is not None:
            chosen.append({**card, "score": own})
    if seen and metric not in seen:
        raise UsageError(f"No card has a metric {metric!r}; the metrics of these runs: {', '.join(sorted(seen))}.")
    return chosen


def metrics_of(card: Card) -> set[str]:
    """The metrics known for the split that was scored."""
    score = card["score"]
    return {score["name"], *(card["metrics"] or {}).get(score["split"], {})} if score else set()


def score_by(card: Card, metric: str) -> Card | None:
    """This metric of a finished run in the form of its score; None where the card does not have it."""
    score = card["score"]
    found = (card["metrics"] or {}).get(score["split"], {})
    if metric == score["name"]:
        return score
    return {**score, **found[metric], **_meaning(metric, score), "name": metric} if metric in found else None


def _meaning(metric: str, score: Card) -> Card:
    """Direction, unit and chance level; for a metric other than the score no baseline is known."""
    lower = metric in LOWER_IS_BETTER
    unit = "plain" if lower else score.get("unit", "percent")
    return {"higher_is_better": not lower, "unit": unit, "chance": None}
