"""Text as a stream of lines, as fairseq prepares it: each is stripped and ended by `</s>`.

    coder = bpe.train([["It was raining .", "", "It rained on."]], 300)
    dictionary = Dictionary.of_own(coder)
    dictionary.numbers[encode(coder, b"It was raining.\r\n\r\n")]      # "</s>" ends each of the two lines

The coder needs no special tokens. Raw ids are its ids, and one more for the end of a line; a dictionary maps them to
the ids of the streams, after `<s>`, `<pad>`, `</s>` and `<unk>`. Tokens that it leaves out become `<unk>`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from longspan.datasets import bpe
from longspan.datasets.bpe import END, SPECIALS, UNKNOWN, Coder

MULTIPLE = 8  # fairseq pads its dictionaries to a multiple of this


def lines_of(text: bytes) -> list[str]:
    """The lines of a text, stripped; only a line feed ends a line, and there is no empty line after the last."""
    return [line.strip() for line in text.decode().removesuffix("\n").split("\n")]


def encode(coder: Coder, text: bytes) -> np.ndarray:
    """The raw ids of a text, each line with its end."""
    lines = coder.encode(lines_of(text))
    end = np.array([len(coder)], lines[0].dtype)
    return np.concatenate([part for line in lines for part in (line, end)])


def decode(coder: Coder, raw: Iterable[int]) -> str:
    return bpe.text((*coder.pieces, b"\n"), raw)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """`numbers[raw]` is the id of a raw token in the streams; `size` counts all ids that can occur there."""

    numbers: np.ndarray
    size: int

    @classmethod
    def of_own(cls, coder: Coder) -> "Dictionary":
        """All trained tokens, after the special ones."""
        numbers = np.append(np.arange(len(coder)) + len(SPECIALS), END)
        return cls(numbers.astype(np.uint32), len(coder) + len(SPECIALS))

    @classmethod
    def of_counts(cls, coder: Coder, counts: np.ndarray) -> "Dictionary":
        """The tokens of the training text, most frequent first, as in fairseq's dictionaries; others are unknown."""
        names = {number: name for name, number in coder.entries.items()}
        used = sorted(np.flatnonzero(counts[: len(coder)]).tolist(), key=lambda raw: (-counts[raw], names[raw]))
        numbers = np.full(len(coder) + 1, UNKNOWN, np.uint32)
        numbers[used] = np.arange(len(used)) + len(SPECIALS)
        numbers[len(coder)] = END
        size = len(used) + len(SPECIALS)
        return cls(numbers, -(-size // MULTIPLE) * MULTIPLE)

    def raw(self, stream: np.ndarray) -> np.ndarray:
        """Back to raw ids; special tokens are left out."""
        back = np.full(max(self.size, int(self.numbers.max()) + 1), -1, np.int64)
        known = self.numbers != UNKNOWN
        back[self.numbers[known]] = np.flatnonzero(known)
        found = back[np.asarray(stream, np.int64)]
        return found[found >= 0]
