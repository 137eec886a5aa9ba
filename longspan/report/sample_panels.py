"""What the page of samples shows: for every cell the examples of its newest card, and the files that they need.

Files are named by their content, so that the true speech or picture behind many cards is stored once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.core.errors import CorruptFile
from longspan.report import sample_media as media
from longspan.results import examples
from longspan.results.card import Card
from longspan.results.examples import CloudSample, Examples, PictureSample, SpeechSample
from longspan.results.store import Problem

FOLDER = "samples"
PANELS = 24  # of one task and one set of rules


@dataclass(frozen=True)
class SamplePanel:
    """The samples of one card: for each the words beside it and the paths or points of its parts."""

    card: Card
    kind: str
    items: list[dict[str, Any]]


@dataclass(frozen=True)
class SampleSection:
    """Panels of one task, protocol, tier and kind of data."""

    task: str
    protocol: str
    tier: str
    variant: str
    panels: list[SamplePanel]
    left_out: int


@dataclass
class SamplePages:
    """All sections, the files behind them by path, and the cards whose samples could not be used."""

    sections: list[SampleSection] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    clouds: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def _file(self, content: bytes, suffix: str) -> str:
        path = f"{FOLDER}/{hashlib.sha256(content).hexdigest()[:20]}.{suffix}"
        self.files[path] = content
        return path

    def _points(self, text: str) -> str:
        name = f"points-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self.clouds[name] = text
        return name

    def add(self, card: Card, found: Examples) -> SamplePanel:
        """The panel of a card, its files stored."""
        kind = {SpeechSample: "speech", CloudSample: "clouds", PictureSample: "pictures"}[type(found[0])]
        return SamplePanel(card, kind, [self._item(sample) for sample in found])

    def _item(self, sample: SpeechSample | CloudSample | PictureSample) -> dict[str, Any]:
        if isinstance(sample, CloudSample):
            return {"category": sample.category, "points": [self._points(text) for text in media.points(sample)]}
        if isinstance(sample, PictureSample):
            sides = (sample.low, sample.bicubic, sample.restored, sample.truth)
            return {"pictures": [(self._file(media.png(side), "png"), side.shape[1], side.shape[0]) for side in sides]}
        longest = max(len(sample.made_mel), len(sample.true_mel), 1)
        pngs = [self._file(png, "png") for png in media.mel_pngs(sample)]
        waves, mels = (sample.made, sample.true), (sample.made_mel, sample.true_mel)
        sides = [
            {
                "mel": png,
                "wave": self._file(media.wav(wave, sample.rate), "wav"),
                "seconds": len(wave) / sample.rate,
                "frames": max(len(mel), 1),
                "mels": mel.shape[1],
                "share": max(1, round(100 * len(mel) / longest)),
            }
            for png, wave, mel in zip(pngs, waves, mels, strict=True)
        ]
        return {"text": sample.text, "made": sides[0], "true": sides[1]}


def collect(cards: Sequence[Card], folders: Mapping[str, Path]) -> SamplePages:
    """The samples of these cards, only the newest seed of each cell, in the order of mechanisms."""
    cells: dict[tuple, Card] = {}
    for card in cards:  # the oldest first
        if card["status"] == "ok" and "samples" in card["files"] and card["sha256"] in folders:
            names = ("task", "protocol", "tier", "mechanism", "pattern")
            cells[(card["dataset"]["variant"], *(card[name] for name in names), bool(card["overrides"]))] = card
    groups: dict[tuple[str, str, str, str], list[Card]] = defaultdict(list)
    for card in cells.values():
        groups[card["task"], card["protocol"], card["tier"], card["dataset"]["variant"]].append(card)
    site = SamplePages()
    for key, group in sorted(groups.items()):
        panels = []
        ordered = sorted(group, key=lambda card: (card["mechanism"] != "softmax", card["title"], card["sha256"]))
        for card in ordered[:PANELS]:
            folder = folders[card["sha256"]]
            try:
                if found := examples.read(folder, card):
                    panels.append(site.add(card, found))
            except CorruptFile as error:
                site.problems.append(Problem(folder / card["files"]["samples"], str(error)))
        if panels:
            site.sections.append(SampleSection(*key, panels=panels, left_out=len(ordered[PANELS:])))
    return site
