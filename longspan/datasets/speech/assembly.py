"""From the features of all clips to utterances: phones, splits, and durations from TextGrids or from the aligner."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing
from longspan.datasets.base import SPLITS
from longspan.datasets.speech import flat_start
from longspan.datasets.speech.aligner import Spoken, align, start
from longspan.datasets.speech.extraction import read_features
from longspan.datasets.speech.features import HOP, RATE
from longspan.datasets.speech.layout import Copy
from longspan.datasets.speech.phonemes import Phonemes
from longspan.datasets.speech.pitch import interpolate, is_voiced, phone_means
from longspan.datasets.speech.store import Phones, Utterance

MOST_WITHOUT_TEXTGRID = 0.01  # of all clips; forced aligners give up on a few


@dataclass(frozen=True, eq=False)
class Assembled:
    """All utterances, the pronunciation of every word, and what the manifest says of them."""

    utterances: list[Utterance]
    lexicon: dict[str, str]
    facts: dict[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        return {split: sum(one.split == split for one in self.utterances) for split in SPLITS}

    def check(self, path: Path) -> None:
        """Refuse a corpus with an empty split."""
        if empty := [split for split, count in self.counts.items() if not count]:
            raise CorruptFile(
                f"{path} has {len(self.utterances)} clips, of which the split by {self.facts['split']} leaves none for "
                f"{' and '.join(empty)}; add a clips.tsv with the columns id and split, or more clips."
            )
        voiced = {one.split for one in self.utterances if one.aligned is not None}
        if "durations" in self.facts and (silent := [split for split in SPLITS if split not in voiced]):
            raise CorruptFile(f"{path} has no voice in any clip of {' and '.join(silent)}; check the sound files.")


def assemble(
    copy: Copy, features: Mapping[str, Path], *, durations: str | None, advance: Callable[[], None] = lambda: None
) -> Assembled:
    """The utterances of a copy whose clips have all been read, with durations by `mfa`, `hmm` or `ctc`, or without."""
    lines = copy.lines()
    splits, rule = copy.splits(lines)
    phonemes, utterances, rates = Phonemes(copy.lexicon()), [], set()
    for line in lines:
        arrays = _features(features[line.id])
        rates.add(int(arrays["rate"]))
        utterances.append(
            Utterance(
                id=line.id,
                text=line.text,
                split=splits[line.id],
                spoken=phonemes.spoken(line.text),
                frames=len(arrays["mel"]),
                mel=partial(_mel, features[line.id], "mel"),
            )
        )
    facts: dict[str, Any] = {
        "phonemes": "cmudict",
        "split": rule,
        "rate": RATE,
        "hop": HOP,
        "file_rates": sorted(rates),
        "source_sha256": {name: hashlib.sha256(table).hexdigest() for name, table in sorted(copy.tables.items())},
    }
    if durations is not None:
        phones = {} if durations == "mfa" else _align(utterances, phonemes, durations, advance)
        utterances = [_aligned(one, features[one.id], phones.get(one.id)) for one in utterances]
        without = [one.id for one in utterances if copy.textgrids and one.id not in copy.textgrids]
        if len(without) > MOST_WITHOUT_TEXTGRID * len(utterances):
            raise DataMissing(
                f"{copy.path} has no TextGrid of {without[0]} ({len(without):,} of {len(utterances):,} clips have "
                "none); add them, or leave all out and have the clips aligned here with durations=hmm."
            )
        unvoiced = sum(one.aligned is None for one in utterances) - len(without)
        facts |= {
            "durations": durations,
            "skipped": {"unvoiced": unvoiced, "without TextGrid": len(without)},
        }
    return Assembled(utterances, copy.lexicon() | phonemes.used, facts)


def _align(
    utterances: Sequence[Utterance], phonemes: Phonemes, method: str, advance: Callable[[], None]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """Phones and durations of every clip, by Gaussians (`hmm`) or by the network that learns from them (`ctc`)."""
    clips = [Spoken(one.id, one.mel(), phonemes.words(one.text)) for one in utterances]
    if method == "ctc":
        found = align(clips, advance=advance)
    else:
        found = [flat_start.durations(*one) for one in zip(start(clips), [len(c.phones) for c in clips], strict=True)]
    return {clip.name: (clip.phones, frames) for clip, frames in zip(clips, found, strict=True)}


def _aligned(one: Utterance, path: Path, phones: tuple[list[str], np.ndarray] | None) -> Utterance:
    """An utterance with its alignment, if it has one and is voiced."""
    arrays = _features(path)
    if phones is None and "phones" not in arrays:
        return one
    names, durations = phones if phones is not None else (arrays["phones"].tolist(), arrays["durations"])
    if not is_voiced(arrays["pitch"]):
        return one
    pitch, energy = (phone_means(values, durations) for values in (interpolate(arrays["pitch"]), arrays["energy"]))
    found = replace(one, aligned=Phones(names, durations, pitch, energy))
    return replace(found, cut_mel=partial(_mel, path, "cut_mel")) if "cut_mel" in arrays else found


def _features(path: Path) -> dict[str, np.ndarray]:
    found = read_features(path)
    if found is None:
        raise CorruptFile(f"{path} was changed while it was used; run the command again.")
    return found


def _mel(path: Path, name: str) -> np.ndarray:
    return _features(path)[name]
