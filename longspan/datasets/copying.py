"""Copying: k random symbols, a long pause, a separator, and k places where the symbols are to be repeated in order.

    c a d . . . . . . | ??c ??a ??d          selective: . c . . a . . d . | ??c ??a ??d

The symbols stand at the front, or with `selective` at random places among the blanks, where a mechanism must know what
to keep. Our definition, after the literature on state space models (arXiv:2111.00396, arXiv:2312.00752): 16 symbols,
and the same input token at every place to answer, so that earlier answers give nothing away.
"""

from dataclasses import dataclass

import numpy as np

from longspan.core.errors import UsageError
from longspan.datasets.base import DatasetMeta, check_counts
from longspan.datasets.placed_answers import Kind, PlacedAnswers

SYMBOLS = 16
BLANK, SEPARATOR, ASK = SYMBOLS + 1, SYMBOLS + 2, SYMBOLS + 3
VOCAB = SYMBOLS + 4  # with padding


@dataclass(frozen=True)
class Data:
    """Settings. Training and validation rows have `length` tokens, test rows the lengths in `tested`."""

    train: int = 20_000
    valid: int = 500
    test: int = 2_000
    length: int = 4_096
    symbols: int = 16
    tested: tuple[int, ...] = (4_096, 8_192)
    selective: bool = False
    seed: int = 0

    def __post_init__(self):
        check_counts(self)
        shortest = min((self.length, *self.tested))
        if self.symbols < 1 or not self.tested or shortest < 2 * self.symbols + 1:
            raise UsageError(
                f"Copying {self.symbols} symbols needs rows of at least {2 * self.symbols + 1} tokens, got "
                f"length={self.length} and tested={self.tested}."
            )

    @property
    def longest(self) -> int:
        return max((self.length, *self.tested))


def _tiers(selective: bool) -> dict[tuple[str, str], Data]:
    return {
        ("longspan", "smoke"): Data(
            train=20_000, valid=200, test=500, length=64, symbols=8, tested=(64,), selective=selective
        ),
        ("longspan", "lite"): Data(length=1_024, tested=(1_024, 2_048), selective=selective),
        ("longspan", "full"): Data(selective=selective),
    }


PRESETS = {"copying": _tiers(selective=False), "selective_copying": _tiers(selective=True)}


class Copying(PlacedAnswers):
    meta = DatasetMeta(
        title="Copying",
        source="generated here",
        paper="arXiv:2111.00396",
        size="22,500 rows, about 190 MB as arrays",
        vocabulary=VOCAB,
        classes=0,
        generated=True,
    )

    def key(self, data: Data) -> str:
        rule = "selective" if data.selective else "front"
        return f"{rule}-length{data.length}-k{data.symbols}-n{data.train}-{data.valid}-{data.test}-seed{data.seed}"

    def kinds(self, data: Data, split: str) -> list[Kind]:
        lengths = data.tested if split == "test" else (data.length,)
        return [Kind(f"{length}", 1, (length,)) for length in lengths]

    def draw(self, data: Data, kind: Kind, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        (length,), k = kind.settings, data.symbols
        symbols = rng.integers(1, SYMBOLS + 1, (count, k))
        tokens, answers = np.full((count, length), BLANK), np.zeros((count, length), int)
        places = np.broadcast_to(np.arange(k), (count, k))
        if data.selective:
            places = np.sort(rng.random((count, length - k - 1)).argsort(axis=1)[:, :k], axis=1)
        np.put_along_axis(tokens, places, symbols, axis=1)
        tokens[:, length - k - 1], tokens[:, length - k :] = SEPARATOR, ASK
        answers[:, length - k :] = symbols
        return tokens, answers

    def words(self, data: Data, tokens: np.ndarray) -> list[str]:
        return [_WORDS[token] for token in tokens]


_WORDS = (" ", *"abcdefghijklmnop", ".", "|", "?")
