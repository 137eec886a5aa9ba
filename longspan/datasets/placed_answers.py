"""Generated rows with questions at some of their places: what `recall`, `copying` and `needle` share.

On disk a row of n tokens is followed by n answers, 0 where nothing is asked, so that it is 2n numbers long. Its label
is its kind, as an index into `names`. No row occurs twice.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longspan.core.errors import UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, Dataset, Sample
from longspan.datasets.generation.shards import Shard

AT_ONCE = 1_000  # rows drawn together
ATTEMPTS = 20  # draws of the rows still missing, before settings are called impossible


@dataclass(frozen=True)
class Kind:
    """Rows that are alike: the name of the kind, its share of a split, and the settings of a draw."""

    name: str
    share: float
    settings: tuple


def counts_of(kinds: Sequence[Kind], count: int) -> list[int]:
    """How many of `count` rows are of each kind, in proportion to the shares.

    >>> counts_of([Kind("a", 2, ()), Kind("b", 1, ())], 10)
    [7, 3]
    """
    edges = np.cumsum([0.0, *(kind.share for kind in kinds)])
    return np.diff(np.rint(edges / edges[-1] * count).astype(int)).tolist()


class PlacedAnswers(Dataset):
    """A dataset whose rows come from a rule; all of it is one shard."""

    dtype: type = np.uint8  # of a token on disk

    @abstractmethod
    def kinds(self, data: Any, split: str) -> list[Kind]:
        """The kinds of rows of a split."""

    @abstractmethod
    def draw(self, data: Any, kind: Kind, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and answers of `count` rows, each [count n]; 0 is no token and no answer."""

    def words(self, data: Any, tokens: np.ndarray) -> list[str]:
        """Tokens in readable form."""
        return [str(token) for token in tokens]

    def names(self, data: Any) -> list[str]:
        """The names of all kinds, those of training first; the label of a row is an index into this list."""
        return list(dict.fromkeys(kind.name for split in SPLITS for kind in self.kinds(data, split)))

    def shard_size(self, data: Any) -> int:
        return sum(self.counts(data).values())

    def make_shard(self, data: Any, index: int) -> Shard:
        assert index == 0, "the first shard has every row"
        seen: set[bytes] = set()
        names, rows, lengths, labels = self.names(data), [], [], []
        for split in SPLITS:
            rng = np.random.default_rng(derive(data.seed, self.name, self.generator, split))
            kinds = self.kinds(data, split)
            for kind, count in zip(kinds, counts_of(kinds, getattr(data, split)), strict=True):
                own = self._distinct(data, kind, count, rng, seen)
                rows.append(own.reshape(-1))
                lengths.append(np.full(count, own.shape[1], np.int64))
                labels.append(np.full(count, names.index(kind.name), np.uint8))
        return Shard(np.concatenate(rows), np.concatenate(lengths), np.concatenate(labels))

    def samples(self, data: Any = None, count: int = 8, seed: int = 0) -> list[Sample]:
        data = self._settings(data)
        rng, kind = np.random.default_rng(derive(seed, self.name, "samples")), self.kinds(data, "train")[0]
        return [Sample(self.text(data, *row), 0) for row in zip(*self.draw(data, kind, count, rng), strict=True)]

    def text(self, data: Any, tokens: np.ndarray, answers: np.ndarray) -> str:
        """A row in words, `?answer` after each place where one is asked for."""
        replies = self.words(data, answers)
        words = zip(self.words(data, tokens), answers, replies, strict=True)
        return " ".join(f"{word}?{reply}" if answer else word for word, answer, reply in words)

    def _distinct(self, data: Any, kind: Kind, count: int, rng: np.random.Generator, seen: set[bytes]) -> np.ndarray:
        """`count` rows that were not seen before, in the layout on disk."""
        found: list[np.ndarray] = []
        have = 0
        for _ in range(ATTEMPTS + -(-count // AT_ONCE)):
            if have == count and found:
                break
            tokens, answers = self.draw(data, kind, min(AT_ONCE, max(count - have, 1)), rng)
            drawn = np.concatenate([tokens, answers], axis=1).astype(self.dtype)
            fresh = [not (row.tobytes() in seen or seen.add(row.tobytes())) for row in drawn]
            found.append(drawn[fresh][: count - have])
            have += len(found[-1])
        if have < count:
            raise UsageError(
                f"{self.name} was asked for {count} different rows of {kind.name}, but there seem to be only {have}; "
                "ask for fewer, or for settings that allow more."
            )
        return np.concatenate(found)
