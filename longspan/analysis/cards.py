"""What analyses read: the newest card of every run, probe and measurement, and arrays.

Runs of older code or other settings, and older measurements, are kept apart, so that no analysis averages them in.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.printable import shown
from longspan.results import arrays
from longspan.results.alike import alike, newest_measured
from longspan.results.card import Card, canonical
from longspan.results.conformance import PREFIX
from longspan.results.store import Problem, Store, newest
from longspan.results.variant import REAL, data_of, in_words

MAX_RULES = 70  # characters, so that tables stay readable


@dataclass(frozen=True)
class Evidence:
    """Cards by kind, and each card's folder by its hash."""

    runs: Sequence[Card] = ()  # those that may be averaged: of the newest code and settings (`results/alike.py`)
    probes: Sequence[Card] = ()
    measurements: Sequence[Card] = ()
    earlier: Sequence[Card] = ()  # measurements superseded by a newer one, of the same cell or of newer code
    folders: Mapping[str, Path] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    set_aside: Sequence[Card] = ()  # runs that were superseded, or are of older code or other settings

    @classmethod
    def of(cls, runs: Sequence[Card], probes: Sequence[Card], measurements: Sequence[Card], **known: Any) -> "Evidence":
        """From all cards of each kind, superseded ones among them."""
        kept, _ = alike(newest(runs))
        measured = newest_measured(newest(measurements))
        return cls(
            kept,
            newest(probes),
            measured,
            earlier=_others(measurements, measured),
            set_aside=_others(runs, kept),
            **known,
        )

    def asked(self, question: str) -> list[Card]:
        """The probe cards of a question, in a fixed order, without those of runs that were set aside."""
        gone = {run["sha256"] for run in self.set_aside}
        found = [card for card in self.probes if card["question"] == question and card["subject"]["card"] not in gone]
        return sorted(found, key=lambda card: (*subject_key(card), card["subject"]["seed"]))

    def run_of(self, card: Card) -> Card | None:
        """The run behind a card: the card itself, or for a probe the run of its model, if that card is here."""
        if card["kind"] == "run":
            return card
        return next((run for run in self.runs if run["sha256"] == card["subject"]["card"]), None)

    def _data_and_overrides(self, card: Card) -> tuple[str, Mapping[str, Any]]:
        """Of the run behind a card, from its card or else from the probe's record; early probes have none."""
        known = self.run_of(card) or card["subject"]
        return data_of(known) if "dataset" in known else REAL, known.get("overrides", {})

    def rules(self, card: Card) -> str:
        """The rules of the run behind a card, `longspan · full`, and what was overridden in them."""
        subject, (data, overrides) = subject_of(card), self._data_and_overrides(card)
        words = [subject["protocol"], subject["tier"], *filter(None, [in_words(data)])]
        if overrides:
            words.append("with " + ", ".join(f"{name}={value}" for name, value in overrides.items()))
        text = shown(" · ".join(words))
        return text if len(text) <= MAX_RULES else text[: MAX_RULES - 1] + "…"

    def same(self, cards: Iterable[Card]) -> list[tuple[str, list[Card]]]:
        """Cards grouped so that each group differs in its seed only, with the rules of each group."""
        groups: dict[tuple, list[Card]] = defaultdict(list)
        for card in cards:
            data, overrides = self._data_and_overrides(card)
            groups[(*subject_key(card), data, canonical(overrides))].append(card)
        return [(self.rules(group[0]), group) for _, group in sorted(groups.items())]

    def arrays(self, card: Card) -> dict[str, np.ndarray]:
        """The arrays in the file beside a card; nothing in it is executed."""
        name = card["files"].get("arrays")
        if name is None or card["sha256"] not in self.folders:
            return {}
        return arrays.everything(self.folders[card["sha256"]] / name)


def gather(folders: Iterable[Path], *, others: Iterable[Card] = ()) -> Evidence:
    """All cards below the folders; files that are not valid cards are listed in `problems`.

    `others` are cards without a folder, such as those that come with the package; each card counts once.
    """
    cards: dict[str, list[Card]] = {"run": [], "probe": [], "measurement": []}
    places: dict[str, Path] = {}
    problems: list[Problem] = []
    for folder in folders:
        store = Store(folder)
        for path, card in store.entries():
            cards[card["kind"]].append(card)
            places[card["sha256"]] = path.parent
        problems += [problem for problem in store.problems if not problem.path.name.startswith(PREFIX)]
    for card in others:
        if card["sha256"] not in places:
            cards[card["kind"]].append(card)
    return Evidence.of(cards["run"], cards["probe"], cards["measurement"], folders=places, problems=problems)


def _others(cards: Iterable[Card], chosen: Sequence[Card]) -> list[Card]:
    hashes = {card["sha256"] for card in chosen}
    return [card for card in cards if card["sha256"] not in hashes]


def subject_of(card: Card) -> Mapping:
    """What a card is about: the subject of a probe, or any other card itself."""
    return card["subject"] if card["kind"] == "probe" else card


def subject_key(card: Card) -> tuple[str, ...]:
    """The fields that the seeds of one cell share."""
    names = ("task", "protocol", "tier", "mechanism", "pattern")
    return tuple(subject_of(card)[name] for name in names)


def name_of(card: Mapping) -> str:
    """A mechanism's name in tables: its title, and its options if it has any."""
    options = card["mechanism"].partition("(")[2].removesuffix(")")
    return shown(f"{card['title']} ({options})" if options else card["title"])
