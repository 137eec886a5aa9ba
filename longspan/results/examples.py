"""A few examples of what a trained model made, for people, in an untrusted `samples.npz` beside its card.

    for clip in read(folder, card): clip.text, clip.made, clip.true        # or clouds, or pictures

The task says of which kind they are. `docs/card.md` names the arrays. Never imports torch.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.results import arrays, files
from longspan.results.card import Card

MAX_BYTES = 2**26  # of all arrays
CLIPS, CLOUDS, PICTURES = 4, 6, 8  # what is kept of more
MAX_SECONDS, MAX_FRAMES, MAX_MELS, MAX_POINTS, MAX_SIDE = 60, 6000, 128, 4096, 512
RATES = range(8_000, 48_001)
FARTHEST = 1e4  # of a point from the origin, so that no square overflows


@dataclass(frozen=True)
class SpeechSample:
    """A sentence as it was made and as it was spoken: 16-bit waves, and natural-log mels of [frames, mels]."""

    text: str
    rate: int
    made: np.ndarray
    true: np.ndarray
    made_mel: np.ndarray
    true_mel: np.ndarray


@dataclass(frozen=True)
class CloudSample:
    """A partial scan, what a model completed it to, and the whole: [points, 3] each."""

    category: str
    partial: np.ndarray
    completed: np.ndarray
    truth: np.ndarray


@dataclass(frozen=True)
class PictureSample:
    """A small picture, enlarged by bicubic interpolation, restored by a model, and as it was: [rows, columns, 3]."""

    low: np.ndarray
    bicubic: np.ndarray
    restored: np.ndarray
    truth: np.ndarray


Samples = list[SpeechSample] | list[CloudSample] | list[PictureSample]


def read(folder: Path, card: Card) -> Samples:
    """The samples beside a card, if they are those it was sealed with; none where the card names none."""
    name = card["files"].get("samples")
    if name is None:
        return []
    path = folder / name
    if fault := files.fault_of(path, card.get("files_sha256", {}).get("samples")):
        raise CorruptFile(fault)
    return of_file(path)


def of_file(path: Path) -> Samples:
    """The samples in a file of any kind; CorruptFile for what is none."""
    kind = arrays.texts(path, "kind")
    readers = {"speech": _clips, "clouds": _clouds, "pictures": _pictures}
    if len(kind) != 1 or kind[0] not in readers:
        raise _fault(path, f"kind must be one of {', '.join(readers)}, found {', '.join(kind)[:100]!r}")
    return readers[kind[0]](path)


def _clips(path: Path) -> list[SpeechSample]:
    text = arrays.texts(path, "text")
    (rate,) = arrays.read(path, "rate", largest=MAX_BYTES)
    if rate.size != 1 or int(rate.item()) not in RATES:
        raise _fault(path, f"rate must be one number from {RATES[0]} to {RATES[-1]} samples per second")
    rate = int(rate.item())
    waves = {side: _cut(path, f"{side}_wave", len(text), MAX_SECONDS * rate) for side in ("made", "true")}
    mels = {side: _cut(path, f"{side}_mel", len(text), MAX_FRAMES) for side in ("made", "true")}
    for side in ("made", "true"):
        if any(wave.ndim != 1 or wave.dtype != np.int16 for wave in waves[side]):
            raise _fault(path, f"{side}_wave must be one row of 16-bit samples")
        if any(mel.ndim != 2 or not 0 < mel.shape[1] <= MAX_MELS for mel in mels[side]):
            raise _fault(path, f"{side}_mel must have frames of at most {MAX_MELS} mels")
    parts = (text, waves["made"], waves["true"], mels["made"], mels["true"])
    return [SpeechSample(words, rate, *rest) for words, *rest in zip(*parts, strict=True)][:CLIPS]


def _cut(path: Path, name: str, count: int, longest: int) -> list[np.ndarray]:
    """An array of parts one after another, each at most `longest`, as a list of them."""
    values, edges = arrays.read(path, name, f"{name}_edges", largest=MAX_BYTES)
    if values.ndim == 0 or edges.shape != (count + 1,) or edges.dtype.kind not in "iu":
        raise _fault(path, f"{name}_edges must be {count + 1} integers, one more than there are texts")
    edges = edges.astype(np.int64)
    if edges[0] != 0 or edges[-1] != len(values) or (np.diff(edges) < 0).any():
        raise _fault(path, f"{name}_edges must rise from 0 to {len(values)}")
    return [values[start : min(end, start + longest)] for start, end in pairwise(edges)]


def _clouds(path: Path) -> list[CloudSample]:
    category = arrays.texts(path, "category")
    sides = arrays.read(path, "partial", "completed", "truth", largest=MAX_BYTES)
    for name, cloud in zip(("partial", "completed", "truth"), sides, strict=True):
        if cloud.ndim != 3 or len(cloud) != len(category) or cloud.shape[1] < 1 or cloud.shape[2] != 3:
            raise _fault(path, f"{name} must have the points of {len(category)} clouds, found {cloud.shape}")
        if np.abs(cloud.astype(np.float32)).max(initial=0) > FARTHEST:
            raise _fault(path, f"{name} has points farther than {FARTHEST:g} from the origin")
    few = [cloud[:, :MAX_POINTS].astype(np.float32) for cloud in sides]
    return [CloudSample(name, *parts) for name, *parts in zip(category, *few, strict=True)][:CLOUDS]


def _pictures(path: Path) -> list[PictureSample]:
    names = ("low", "bicubic", "restored", "truth")
    sides = arrays.read(path, *names, largest=MAX_BYTES)
    for name, stack in zip(names, sides, strict=True):
        fits = stack.ndim == 4 and len(stack) == len(sides[0]) and stack.shape[3] == 3 and stack.dtype == np.uint8
        if not fits or not all(0 < side <= MAX_SIDE for side in stack.shape[1:3]):
            raise _fault(path, f"{name} must be pictures of bytes, at most {MAX_SIDE} wide, found {stack.shape}")
    return [PictureSample(*row) for row in zip(*sides, strict=True)][:PICTURES]


def _fault(path: Path, words: str) -> CorruptFile:
    return CorruptFile(f"{path.name}: {words}.")
