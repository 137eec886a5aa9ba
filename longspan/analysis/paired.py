"""Two mechanisms on the same test examples: their difference when examples and seeds are resampled.

    draws = paired_draws(Scores(one), Scores(other))        # both [seeds, examples]
    (draws > 0).mean()                                      # how sure one is that the first scores higher

Both answered the same examples, so the luck of the test set is largely shared: examples are drawn with replacement, the
same for both, and seeds for each. Neighbours that overlap, as windows of a series do, are drawn in blocks (circular
block bootstrap), so that they do not count as independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longspan.analysis.cards import Evidence
from longspan.core.errors import CorruptFile
from longspan.core.printable import shown
from longspan.results import predictions
from longspan.results.card import Card
from longspan.results.files import fault_of
from longspan.results.predictions import LARGEST_LOSS
from longspan.results.scoring import score_by
from longspan.results.verify import SCORE_TOLERANCE

DRAWS = 2000
AT_ONCE = 2_000_000  # examples drawn at once


@dataclass(frozen=True)
class Scores:
    """What test examples contribute, both [seeds, examples]; the score is a mean, or a quotient of two sums.

    A perplexity is e to that quotient.
    """

    added: np.ndarray
    counted: np.ndarray | None = None  # None: every example counts once
    exponential: bool = False

    @property
    def seeds(self) -> int:
        return len(self.added)

    @property
    def examples(self) -> int:
        return self.added.shape[1]

    def under(self, weights: np.ndarray) -> np.ndarray:
        """The score of each seed, [draws, seeds], under these weights of examples, [draws, examples]."""
        found = weights @ self.added.T
        if self.counted is not None:
            whole = weights @ self.counted.T
            found = np.divide(found, whole, out=np.zeros_like(found), where=whole > 0)  # a draw may be all empty rows
        return np.exp(np.minimum(found, LARGEST_LOSS)) if self.exponential else found

    @property
    def mean(self) -> float:
        """Over seeds, on the examples as they are."""
        return float(self.under(np.full((1, self.examples), 1 / self.examples)).mean())


def paired_draws(one: Scores, other: Scores, draws: int = DRAWS, block: int = 1) -> np.ndarray:
    """The difference of the mean scores in each draw; the same at every call."""
    first, second = joint_draws([one, other], draws, block)
    return first - second


def joint_draws(scores: Sequence[Scores], draws: int = DRAWS, block: int = 1) -> np.ndarray:
    """The mean score of each mechanism in each draw, [mechanisms, draws], all on the same examples."""
    random, examples = np.random.default_rng(0), scores[0].examples
    found = []
    for begin in range(0, draws, size := max(1, AT_ONCE // examples)):
        count = min(size, draws - begin)
        drawn = _drawn(random, count, examples, block) + examples * np.arange(count)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=count * examples).reshape(count, examples) / examples
        means = []
        for own in scores:
            seeds = random.integers(own.seeds, size=(count, own.seeds))
            means.append(np.take_along_axis(own.under(weights), seeds, axis=1).mean(axis=1))
        found.append(np.stack(means))
    return np.concatenate(found, axis=1)


def _drawn(random: np.random.Generator, count: int, examples: int, block: int) -> np.ndarray:
    """Indices of examples, [count, examples], in blocks of neighbours; the last is followed by the first."""
    block = min(block, examples)
    if block == 1:
        return random.integers(examples, size=(count, examples))
    starts = random.integers(examples, size=(count, -(-examples // block), 1))
    return ((starts + np.arange(block)) % examples).reshape(count, -1)[:, :examples]


def paired_interval(one: np.ndarray, other: np.ndarray, block: int = 1) -> tuple[float, float]:
    """The 95 % percentile interval of the difference of means, both [seeds, examples]."""
    return interval(paired_draws(Scores(one), Scores(other), block=block))


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of the draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def predictions_file(evidence: Evidence, card: Card) -> Path | None:
    """The predictions file beside a card, None where there is none; a file that was changed since is refused."""
    if card["sha256"] not in evidence.folders or "predictions" not in card["files"]:
        return None
    path = evidence.folders[card["sha256"]] / card["files"]["predictions"]
    if fault := fault_of(path, card.get("files_sha256", {}).get("predictions")):
        raise CorruptFile(fault)
    return path


def scores_of(evidence: Evidence, cards: Sequence[Card], metric: str, notes: list[str]) -> Scores | None:
    """What each example adds to the score of every seed; None where one has no predictions, with a note on damage."""
    found = []
    for card in cards:
        try:
            path = predictions_file(evidence, card)
            own = predictions.shares(path, metric) if path else None
            if path and own and not _gives(own, card, metric):
                raise CorruptFile(f"{path.name} does not give the {metric} on its card.")
        except (CorruptFile, OSError) as error:
            notes.append(f"Left out: {shown(str(error))}")
            own = None
        if own is None:
            return None
        found.append(own)
    if len({len(added) for added, _ in found}) != 1:
        return None
    added, counted = (np.stack(parts) for parts in zip(*found, strict=True))
    return Scores(added, None if (counted == 1).all() else counted, metric == "perplexity")


def _gives(own: tuple[np.ndarray, np.ndarray], card: Card, metric: str) -> bool:
    """Whether the examples add up to what the card says, so that a comparison and a board are of the same numbers."""
    stated = score_by(card, metric)
    found = Scores(own[0][None], own[1][None], metric == "perplexity").mean
    return stated is not None and math.isclose(found, stated["value"], rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE)


def block_of(card: Card) -> int:
    """How many neighbours have overlapping targets: windows that start a step apart all overlap within a horizon."""
    horizon = card["settings"].get("data", {}).get("horizon")
    return horizon if isinstance(horizon, int) and horizon > 1 else 1


def block_note(card: Card, examples: int, block: int) -> list[str]:
    """A note on a task whose examples are drawn in blocks, and on how few of these there are."""
    if block == 1:
        return []
    blocks = -(-examples // block)
    rough = "" if blocks >= 20 else f"; {blocks} of them make up the test set, so that the interval is rough"
    return [f"{shown(card['task'])}: windows overlap, so that blocks of {block} neighbours are drawn{rough}."]
