"""The clips of one split as a task reads them: views of the arrays, copied only if some clips are left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from longspan.datasets.base import SPLITS
from longspan.datasets.corpus import spread
from longspan.datasets.speech.features import HOP, RATE
from longspan.datasets.speech.phonemes import Phonemes
from longspan.datasets.speech.store import EOS, UNKNOWN, strings


@dataclass(frozen=True, eq=False)
class Speech:
    """Clip i has tokens `token_edges[i]` to `token_edges[i + 1]` and frames `mel_edges[i]` to `mel_edges[i + 1]`.

    Tokens end with `</s>`. `durations`, `pitch` and `energy` have a value for each token, 0 for the last; they are None
    where the phones are not aligned. Mels are natural logarithms, which `mean` and `std` normalise.
    """

    tokens: np.ndarray  # int16, flat
    token_edges: np.ndarray  # int64 [count + 1]
    mel: np.ndarray  # float16 [frames 80]
    mel_edges: np.ndarray  # int64 [count + 1]
    mean: np.ndarray  # float32 [80]
    std: np.ndarray  # float32 [80]
    ids: list[str]
    texts: list[str]
    vocabulary: list[str]
    lexicon: dict[str, str]
    durations: np.ndarray | None = None  # int16, flat like tokens
    pitch: np.ndarray | None = None  # float32, log(Hz + 1)
    energy: np.ndarray | None = None  # float32, log(norm + 1)
    pitch_range: tuple[float, float] | None = None
    energy_range: tuple[float, float] | None = None
    rate: int = RATE
    hop: int = HOP

    def __len__(self) -> int:
        return len(self.ids)

    def example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens and the mel [frames 80] of one clip."""
        (a, b), (c, d) = self.token_edges[i : i + 2], self.mel_edges[i : i + 2]
        return self.tokens[a:b], self.mel[c:d]

    def phonemes(self, text: str) -> np.ndarray:
        """Any text as tokens of this vocabulary, int16, with `</s>`."""
        speaker = Phonemes(self.lexicon)
        phones = speaker.spoken(text) if self.durations is None else speaker.aligned(text)
        number = {token: place for place, token in enumerate(self.vocabulary)}
        return np.array([*(number.get(phone, UNKNOWN) for phone in phones), EOS], np.int16)

    def names(self, i: int) -> list[str]:
        """The tokens of one clip in words."""
        return [self.vocabulary[token] for token in self.example(i)[0]]


def split_up(
    arrays: Mapping[str, np.ndarray], kind: str, wanted: Mapping[str, int | None], *, longest: int | None = None
) -> dict[str, Speech]:
    """The splits of what is stored as `text` or `aligned`, each at most `wanted` clips of at most `longest` frames."""
    ids, texts, vocabulary = (strings(arrays, name) for name in ("ids", "texts", f"{kind}.vocabulary"))
    lexicon = dict(line.split("\t") for line in strings(arrays, "lexicon"))
    mean, std = np.asarray(arrays[f"{kind}.statistics"])
    borders = np.asarray(arrays[f"{kind}.borders"])
    own = f"{kind}.mel" in arrays  # rows of tokens, and of mels of their own, leave out unaligned clips
    first_rows = np.concatenate([[0], np.cumsum(borders[:, 1] - borders[:, 0])])
    values = [name for name in ("durations", "pitch", "energy") if f"{kind}.{name}" in arrays]
    ranges: dict[str, Any] = {}
    if values:
        pitch, energy = np.asarray(arrays[f"{kind}.ranges"]).tolist()
        ranges = {"pitch_range": (0.0, pitch), "energy_range": (0.0, energy)}
    found = {}
    for split, (start, stop), row in zip(SPLITS, borders.tolist(), first_rows.tolist(), strict=False):
        rows = np.arange(stop - start)
        if longest is not None:
            first, edges = (row, arrays[f"{kind}.mel_edges"]) if own else (start, arrays["mel_edges"])
            rows = rows[np.diff(edges[first : first + len(rows) + 1]) <= longest]
        chosen = rows[spread(len(rows), wanted[split])]
        tokens, *more, token_edges = _rows(
            [arrays[f"{kind}.{name}"] for name in ("tokens", *values)],
            arrays[f"{kind}.token_edges"],
            row + chosen,
        )
        mel, mel_edges = _rows(
            [arrays[f"{kind}.mel" if own else "mel"]],
            arrays[f"{kind}.mel_edges" if own else "mel_edges"],
            (row if own else start) + chosen,
        )
        found[split] = Speech(
            tokens=tokens,
            token_edges=token_edges,
            mel=mel,
            mel_edges=mel_edges,
            mean=mean,
            std=std,
            ids=[ids[start + i] for i in chosen],
            texts=[texts[start + i] for i in chosen],
            vocabulary=vocabulary,
            lexicon=lexicon,
            **dict(zip(values, more, strict=True)),
            **ranges,
        )
    return found


def _rows(flat: list[np.ndarray], edges: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """These rows of flat arrays and their edges; a view where the rows follow one another."""
    if not len(rows):
        return [*(values[:0] for values in flat), np.zeros(1, np.int64)]
    if rows[-1] - rows[0] + 1 == len(rows):
        kept = np.asarray(edges[rows[0] : rows[-1] + 2])
        return [*(values[kept[0] : kept[-1]] for values in flat), kept - kept[0]]
    spans = [(int(edges[row]), int(edges[row + 1])) for row in rows]
    kept = np.concatenate([[0], np.cumsum([stop - start for start, stop in spans], dtype=np.int64)])
    assert all(stop > start for start, stop in pairwise(kept)), "no clip is empty"
    return [*(np.concatenate([values[start:stop] for start, stop in spans]) for values in flat), kept]
