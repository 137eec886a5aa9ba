"""The samples beside a card one by one: clips of speech, clouds of points, pictures.

    for clip in read(folder, card): clip.text, clip.made, clip.true

`samples.py` checks the arrays that they are cut from. Never imports torch.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.results import files, samples
from longspan.results.card import Card

MAX_SECONDS, MAX_FRAMES = 60, 6000  # of a clip; what comes later is not shown
FARTHEST = 1e4  # of a point from the origin, so that nothing overflows


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


Examples = list[SpeechSample] | list[CloudSample] | list[PictureSample]


def read(folder: Path, card: Card) -> Examples:
    """The samples beside a card, if they are those it was sealed with; none where it names none or none were kept."""
    name = card["files"].get(files.SAMPLES)
    if name is None or not (path := folder / name).exists():
        return []
    if fault := files.fault_of(path, card.get("files_sha256", {}).get(files.SAMPLES)):
        raise CorruptFile(fault)
    return of_file(path)


def of_file(path: Path) -> Examples:
    """The samples in a file; none if their kind cannot be drawn here, CorruptFile if they are unsound."""
    found = samples.read(path)
    match str(found["kind"]):
        case "speech":
            return _clips(found)
        case "clouds":
            return _clouds(path, found)
        case "pictures":
            sides = (found[name] for name in ("low", "bicubic", "restored", "truth"))
            return [PictureSample(*row) for row in zip(*sides, strict=True)]
        case _:
            return []


def _clips(found: samples.Samples) -> list[SpeechSample]:
    rate = int(found["rate"])
    longest = {"wave": MAX_SECONDS * rate, "mel": MAX_FRAMES}
    names = [f"{side}_{what}" for what in longest for side in ("made", "true")]
    parts = [_cut(found[name], found[f"{name}_edges"], longest[name.split("_")[1]]) for name in names]
    return [SpeechSample(str(text), rate, *rest) for text, *rest in zip(found["text"], *parts, strict=True)]


def _cut(values: np.ndarray, edges: np.ndarray, longest: int) -> list[np.ndarray]:
    return [values[start:end][:longest] for start, end in pairwise(edges.tolist())]


def _clouds(path: Path, found: samples.Samples) -> list[CloudSample]:
    sides = [found[name].astype(np.float64) for name in ("partial", "completed", "truth")]
    if any((np.abs(side) > FARTHEST).any() for side in sides):
        raise CorruptFile(f"{path.name}: points lie farther than {FARTHEST:g} from the origin.")
    return [CloudSample(str(name), *parts) for name, *parts in zip(found["category"], *sides, strict=True)]
