"""Multi-query associative recall: key, value, key, value, ..., and later each key again, to be answered with its value.

    k3 v9 k1 v4 | v7 k1?v4 v2 v5 k3?v9 v6

Keys are drawn without replacement from 1 .. V/2 - 1, values from V/2 .. V - 1, `pairs` of each. After the context every
other place can hold a query; `pairs` of these are drawn without replacement, the i-th with weight i^(a - 1), and the
first key goes to the first one drawn. All other places are filled with random tokens, with `fillers="values"` only with
values, so that a key occurs exactly twice. Rules as in zoology (arXiv:2312.04927, multiquery_ar); departs from it in:
fillers are never 0, which is padding, no row occurs twice, and every draw is seeded.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longspan.core.errors import UsageError
from longspan.datasets.base import DatasetMeta, check_counts
from longspan.datasets.placed_answers import Kind, PlacedAnswers


@dataclass(frozen=True)
class Data:
    """Settings; the defaults are those of the Based paper (arXiv:2402.18668).

    `trained` has (length, pairs, share) for training and validation rows, `tested` (length, pairs) for test rows,
    equally many of each.
    """

    train: int = 180_000
    valid: int = 3_000
    test: int = 7_000
    vocabulary: int = 8_192
    trained: tuple[tuple[int, int, int], ...] = ((64, 4, 5), (128, 8, 1), (256, 16, 1), (256, 32, 1), (256, 64, 1))
    tested: tuple[tuple[int, int], ...] = (
        *((64, 4), (64, 8), (64, 16), (128, 32)),
        *((256, 64), (512, 128), (1_024, 256)),
    )
    power: float = 0.01
    fillers: Literal["all", "values"] = "all"
    seed: int = 0

    def __post_init__(self):
        check_counts(self)
        for length, pairs in (*(kind[:2] for kind in self.trained), *self.tested):
            if length % 2 or pairs < 1 or 4 * pairs > length:
                raise UsageError(
                    f"A row of recall needs an even length of at least 4 times its pairs, got length {length} and "
                    f"{pairs} pairs."
                )
            if self.vocabulary % 2 or self.vocabulary // 2 - 1 < pairs:
                raise UsageError(
                    f"{pairs} keys need an even vocabulary of at least {2 * pairs + 2}, got {self.vocabulary}."
                )
        if self.vocabulary > 1 << 16 or self.power <= 0 or not (self.trained and self.tested):
            raise UsageError(
                f"recall needs a vocabulary of at most 65,536, a power above 0 and at least one kind of rows, got "
                f"vocabulary={self.vocabulary}, power={self.power}, trained={self.trained}, tested={self.tested}."
            )

    @property
    def longest(self) -> int:
        return max(length for length, *_ in (*self.trained, *self.tested))


_ROWS = {
    ("longspan", "smoke"): Data(
        train=40_000,
        valid=200,
        test=1_000,
        vocabulary=32,
        trained=((24, 4, 1),),
        tested=((24, 4),),
        power=1.0,
        fillers="values",
    ),
    ("longspan", "lite"): Data(),
    ("longspan", "full"): Data(),
}
PRESETS = {"recall": _ROWS, "noncausal_recall": _ROWS}


class Recall(PlacedAnswers):
    meta = DatasetMeta(
        title="Multi-query associative recall",
        source="generated here",
        paper="arXiv:2312.04927",
        size="190,000 rows, about 110 MB as arrays",
        vocabulary=1 << 16,
        classes=0,
        generated=True,
    )
    dtype = np.uint16

    def key(self, data: Data) -> str:
        longest = max(data.trained)
        return f"v{data.vocabulary}-length{longest[0]}-n{data.train}-{data.valid}-{data.test}-seed{data.seed}"

    def kinds(self, data: Data, split: str) -> list[Kind]:
        if split == "test":
            return [Kind(f"{length}_{pairs}", 1, (length, pairs)) for length, pairs in data.tested]
        return [Kind(f"{length}_{pairs}", share, (length, pairs)) for length, pairs, share in data.trained]

    def draw(self, data: Data, kind: Kind, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        length, pairs = kind.settings
        half, places = data.vocabulary // 2, (length - 2 * pairs) // 2
        keys = 1 + first_drawn(rng.random((count, half - 1)), pairs)
        values = half + first_drawn(rng.random((count, half)), pairs)
        weights = np.arange(1, places + 1) ** (data.power - 1)
        queries = 2 * pairs + 2 * first_drawn(rng.exponential(size=(count, places)) / weights, pairs)
        lowest = half if data.fillers == "values" else 1
        tokens = rng.integers(lowest, data.vocabulary, (count, length))
        answers = np.zeros_like(tokens)
        tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        np.put_along_axis(tokens, queries, keys, axis=1)
        np.put_along_axis(answers, queries, values, axis=1)
        return tokens, answers

    def words(self, data: Data, tokens: np.ndarray) -> list[str]:
        half = data.vocabulary // 2
        return [f"k{token}" if token < half else f"v{token - half}" for token in tokens]


def first_drawn(times: np.ndarray, count: int) -> np.ndarray:
    """The columns with the smallest times in each row, in order of time: draws without replacement.

    If times are exponential with rates w, these are successive draws with weights w.
    """
    first = np.argpartition(times, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(times, first, axis=1).argsort(axis=1)
    return np.take_along_axis(first, order, axis=1)
