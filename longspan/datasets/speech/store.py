"""The arrays of a speech corpus on disk, and views of them; clips are ordered by split, unvoiced ones last in each.

mel [frames 80] float16, mel_edges       natural-log mels of the clips one after the other, not normalised
ids.text, texts.text, lexicon.text       UTF-8, with .starts; also text.vocabulary.text
text.*                                   what Transformer-TTS reads: tokens int16 with token_edges, and borders
                                         [3 2], first row and end of each split, statistics [2 80], mean and
                                         standard deviation of the mels
aligned.*                                the same for FastSpeech 2, with durations, pitch and energy of every token
                                         and ranges [2], the largest pitch and energy; mels of its own where
                                         TextGrids cut the clips
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from longspan.datasets.base import SPLITS
from longspan.datasets.generation.arrays import write_arrays
from longspan.datasets.speech.features import MELS

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BOS, PAD, EOS, UNKNOWN = range(4)
SMALLEST_VARIANCE = 1e-10


@dataclass(frozen=True, eq=False)
class Phones:
    """The phones of a clip with their durations in frames, and log pitch and log energy."""

    names: Sequence[str]
    durations: np.ndarray
    pitch: np.ndarray
    energy: np.ndarray


@dataclass(frozen=True, eq=False)
class Utterance:
    """One clip, ready to be written; its mels are read when they are needed."""

    id: str
    text: str
    split: str
    spoken: Sequence[str]
    frames: int
    mel: Callable[[], np.ndarray]
    aligned: Phones | None = None
    cut_mel: Callable[[], np.ndarray] | None = None  # if the alignment covers only a part of the clip


def write(
    folder: Path, utterances: Iterable[Utterance], lexicon: Mapping[str, str], *, aligned: bool
) -> dict[str, dict]:
    """Write all arrays; returns their manifest entries."""
    rows = sorted(utterances, key=lambda one: (SPLITS.index(one.split), one.aligned is None))
    statistics = _Statistics()
    words = [f"{word}\t{phones}" for word, phones in sorted(lexicon.items())]
    arrays = write_arrays(
        folder,
        {
            **_strings("ids", [one.id for one in rows]),
            **_strings("texts", [one.text for one in rows]),
            **_strings("lexicon", words),
            **_mels("", [one.frames for one in rows], (one.mel() for one in rows), statistics),
        },
    )
    vocabulary = vocabulary_of(one.spoken for one in rows if one.split == "train")
    arrays |= write_arrays(
        folder,
        {
            **_tokens("text", [one.spoken for one in rows], vocabulary),
            **_numbers("text.borders", _borders(rows)),
            **_numbers("text.statistics", statistics.values),
        },
    )
    if aligned:
        voiced = [(one, one.aligned) for one in rows if one.aligned is not None]
        arrays |= _write_aligned(folder, voiced, _borders(rows, voiced=True))
    return arrays


def _write_aligned(folder: Path, rows: list[tuple[Utterance, Phones]], borders: np.ndarray) -> dict[str, dict]:
    vocabulary = vocabulary_of(phones.names for one, phones in rows if one.split == "train")
    statistics, phones = _Statistics(), [phones for _, phones in rows]
    arrays = {}
    if any(one.cut_mel for one, _ in rows):
        frames = [int(each.durations.sum()) for each in phones]
        contents = _mels("aligned.", frames, (one.cut_mel() for one, _ in rows if one.cut_mel), statistics)
        arrays = write_arrays(folder, contents)
    else:
        for one, _ in rows:
            statistics.add(one.mel())
    ranges = np.array([max(float(getattr(each, name).max()) for each in phones) for name in ("pitch", "energy")])
    return arrays | write_arrays(
        folder,
        {
            **_tokens("aligned", [each.names for each in phones], vocabulary),
            **_numbers("aligned.durations", _with_end(each.durations for each in phones).astype(np.int16)),
            **_numbers("aligned.pitch", _with_end(each.pitch for each in phones).astype(np.float32)),
            **_numbers("aligned.energy", _with_end(each.energy for each in phones).astype(np.float32)),
            **_numbers("aligned.ranges", ranges.astype(np.float32)),
            **_numbers("aligned.borders", borders),
            **_numbers("aligned.statistics", statistics.values),
        },
    )


def strings(arrays: Mapping[str, np.ndarray], name: str) -> list[str]:
    """The texts stored under a name."""
    content, edges = arrays[f"{name}.text"].tobytes(), np.asarray(arrays[f"{name}.starts"]).tolist()
    return [content[start:stop].decode() for start, stop in pairwise(edges)]


def faults(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """What is out of range in arrays with the right hash."""
    kinds = [kind for kind in ("text", "aligned") if kind == "text" or f"{kind}.tokens" in arrays]
    for kind in kinds:
        vocabulary = strings(arrays, f"{kind}.vocabulary")
        tokens, edges, borders = (arrays[f"{kind}.{part}"] for part in ("tokens", "token_edges", "borders"))
        own = f"{kind}.mel" in arrays
        mel, mel_edges = (arrays[f"{kind}.{name}" if own else name] for name in ("mel", "mel_edges"))
        for name, found, into in (("token_edges", edges, tokens), ("mel_edges", mel_edges, mel)):
            if found.dtype != np.int64 or found[0] != 0 or found[-1] != len(into) or np.any(np.diff(found) < 1):
                yield f"{kind}.{name} should rise from 0 to {len(into)}"
                return
        if tokens.min() < 0 or tokens.max() >= len(vocabulary):
            yield f"{kind}.tokens should be 0 .. {len(vocabulary) - 1}, found {tokens.min()} to {tokens.max()}"
        last = len(edges) - 1 if kind == "aligned" else len(mel_edges) - 1
        if borders.shape != (3, 2) or np.any(np.diff(borders.reshape(-1)) < 0) or borders[0, 0] or last < 1:
            yield f"{kind}.borders should rise from 0, found {borders.tolist()}"
        if mel.ndim != 2 or mel.shape[1] != MELS or not _all_finite(mel):
            yield f"{kind} should have finite mels of {MELS} bands, found {mel.shape}"
    if "aligned" in kinds:
        for name in ("durations", "pitch", "energy"):
            found = arrays[f"aligned.{name}"]
            if found.shape != arrays["aligned.tokens"].shape or found.min() < 0 or not _all_finite(found):
                yield f"aligned.{name} should have a value of at least 0 for each token"


def _all_finite(values: np.ndarray) -> bool:
    return all(np.isfinite(values[first : first + (1 << 16)]).all() for first in range(0, len(values), 1 << 16))


class _Statistics:
    """Mean and standard deviation of each band over all frames added so far."""

    def __init__(self):
        self.count, self.sum, self.squares = 0, np.zeros(MELS), np.zeros(MELS)

    def add(self, mel: np.ndarray) -> np.ndarray:
        exact = np.asarray(mel, np.float64)
        self.count += len(exact)
        self.sum += exact.sum(axis=0)
        self.squares += (exact**2).sum(axis=0)
        return mel

    @property
    def values(self) -> np.ndarray:
        mean = self.sum / max(self.count, 1)
        variance = self.squares / max(self.count, 1) - mean**2
        return np.stack([mean, np.sqrt(np.maximum(variance, SMALLEST_VARIANCE))]).astype(np.float32)


def gcmvn(mels: Iterable[np.ndarray]) -> np.ndarray:
    """Mean and standard deviation [2 80] of each band over all frames (population variance)."""
    statistics = _Statistics()
    for mel in mels:
        statistics.add(mel)
    return statistics.values


def vocabulary_of(sequences: Iterable[Sequence[str]]) -> list[str]:
    """The special tokens, then the tokens by falling count, equal ones in order of first appearance."""
    counts = Counter(token for sequence in sequences for token in sequence)
    return [*SPECIALS, *(token for token, _ in counts.most_common())]


def _borders(rows: Sequence[Utterance], *, voiced: bool = False) -> np.ndarray:
    """First row and end of each split; rows without alignment lie at the end of their split and are not counted."""
    borders, at = [], 0
    for split in SPLITS:
        inside = [one for one in rows if one.split == split]
        borders.append((at, at + sum(one.aligned is not None or not voiced for one in inside)))
        at += len(inside)
    return np.array(borders, np.int64)


def _edges(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _numbers(name: str, values: np.ndarray) -> dict:
    return {name: (values.dtype, values.shape, [values])}


def _strings(name: str, texts: Sequence[str]) -> dict:
    content = [text.encode() for text in texts]
    flat = np.frombuffer(b"".join(content), np.uint8)
    return _numbers(f"{name}.text", flat) | _numbers(f"{name}.starts", _edges([len(text) for text in content]))


def _tokens(name: str, sequences: Sequence[Sequence[str]], vocabulary: list[str]) -> dict:
    number = {token: place for place, token in enumerate(vocabulary)}
    ids = [[*(number.get(token, UNKNOWN) for token in sequence), EOS] for sequence in sequences]
    flat = np.array([place for row in ids for place in row], np.int16)
    edges = _edges([len(row) for row in ids])
    return (
        _numbers(f"{name}.tokens", flat)
        | _numbers(f"{name}.token_edges", edges)
        | _strings(f"{name}.vocabulary", vocabulary)
    )


def _with_end(values: Iterable[np.ndarray]) -> np.ndarray:
    """One after the other, with 0 for the end token of each."""
    return np.concatenate([np.append(one, 0) for one in values])


def _mels(prefix: str, frames: Sequence[int], mels: Iterable[np.ndarray], statistics: _Statistics) -> dict:
    edges = _edges(frames)
    return {
        f"{prefix}mel": (np.float16, (int(edges[-1]), MELS), (statistics.add(mel) for mel in mels)),
        f"{prefix}mel_edges": (np.int64, edges.shape, [edges]),
    }
