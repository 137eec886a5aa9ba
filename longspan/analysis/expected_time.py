"""How long would a cell take on a device? From the cards of runs that had the device to themselves.

    times = Times(evidence.runs, evidence.measurements, "NVIDIA H200", versions={"text_4k": 1})
    times.of("text_4k", "performer", "noncausal_self", "longspan", "full", steps=10_000)

A cell that was run before takes as long again; if that was under an older version of the task, whose recipe may have
been another, it is a guess. So is any other: the time of a step with other mechanisms on that task, scaled by how much
slower or faster than softmax the mechanism is elsewhere. That ratio comes from runs of both on one task or, failing
that, from measurements of both by themselves, of which half of a slowdown counts in a step and none of a speed-up: the
rest of the network and the kernel launches take their time too.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from longspan.results.card import Card
from longspan.results.device import device_of

BASELINE = "softmax"
SAME_MODEL = {"full": "lite", "lite": "full"}  # tiers that train the same network for a different number of steps
SHARE = 0.5  # of a step's time that is attention
LONGEST = 4096  # tokens; longer measurements are unlike the tasks


@dataclass(frozen=True)
class Expected:
    """Seconds, None where no card tells; their source; whether they are a guess, and whether from a shared device."""

    seconds: float | None
    source: str
    guess: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Setting:
    """What the mechanisms of one column share."""

    task: str
    protocol: str
    tier: str
    pattern: str


def named(card: Card) -> str:
    """A mechanism as it was requested: the plain name where the protocol has a preset for it."""
    return card.get("preset") or card["mechanism"]


class Times:
    """Seconds of a step, evaluations included, by setting and mechanism; `versions` are those of the tasks today."""

    def __init__(
        self,
        runs: Iterable[Card],
        measurements: Iterable[Card],
        device: str,
        versions: Mapping[str, int] = MappingProxyType({}),
    ):
        self.device = device
        own = [card for card in runs if device_of(card) == device]
        alone = [card for card in own if not card["timing"].get("shared")]

        def is_older(card: Card) -> bool:
            return card["task_version"] != versions.get(card["task"], card["task_version"])

        self.steps = _by_setting(card for card in alone if not is_older(card))
        self.older = _by_setting(card for card in alone if is_older(card))
        self.shared = _by_setting(card for card in own if card["timing"].get("shared"))
        self._cores = _core_seconds(card for card in measurements if _gpu(card) == device)

    def of(self, task: str, mechanism: str, pattern: str, protocol: str, tier: str, steps: int) -> Expected:
        """What a whole run of `steps` steps takes."""
        settings = [Setting(task, protocol, one, pattern) for one in _like(tier)]
        for setting in settings:
            if (seconds := self.steps.get(setting, {}).get(mechanism)) is not None:
                exact = setting.tier == tier
                return Expected(seconds * steps, "measured" if exact else f"from {setting.tier}", guess=not exact)
            if (seconds := self.shared.get(setting, {}).get(mechanism)) is not None:
                return Expected(seconds * steps, f"guess: {setting.tier} on a shared device", guess=True, shared=True)
        for setting in settings:
            if (seconds := self.older.get(setting, {}).get(mechanism)) is not None:
                return Expected(seconds * steps, f"guess: {setting.tier} of an older version", guess=True)
        where = ((self.steps, ""), (self.older, ", in an older version"), (self.shared, ", on a shared device"))
        for known, words in where:
            if (found := self._guess(known, settings, mechanism)) is not None:
                return Expected(found[0] * steps, found[1] + words, guess=True, shared=known is self.shared)
        return Expected(None, f"no card of {task} on {self.device}", guess=True)

    def _guess(
        self, known: Mapping[Setting, Mapping[str, float]], settings: Sequence[Setting], mechanism: str
    ) -> tuple[float, str] | None:
        """Seconds per step from the other mechanisms of the task, under another protocol if need be; and the source."""
        first, tiers = settings[0], [setting.tier for setting in settings]
        others = [one for one in known if (one.task, one.pattern) == (first.task, first.pattern) and one.tier in tiers]
        for setting in (*settings, *sorted(others, key=lambda one: (one.tier != first.tier, one.protocol))):
            if own := known.get(setting):
                ratio = self.ratio(mechanism, setting.pattern)
                softmax = statistics.geometric_mean(
                    seconds / (self.ratio(name, setting.pattern) or 1.0) for name, seconds in own.items()
                )
                words = "as softmax" if ratio is None else f"{ratio:.2g} x softmax"
                where = "" if setting == first else f" of {setting.protocol}/{setting.tier}"
                return (ratio or 1.0) * softmax, f"guess: {words}{where}"
        return None

    def ratio(self, mechanism: str, pattern: str) -> float | None:
        """The time of a step over that with softmax; None where no card tells."""
        if mechanism == BASELINE:
            return 1.0
        if (trained := self._trained_ratio(mechanism, pattern)) is not None:
            return trained
        alone = self._core_ratio(mechanism, pattern)
        return None if alone is None else 1 + SHARE * max(0.0, alone - 1)

    def _trained_ratio(self, mechanism: str, pattern: str) -> float | None:
        ratios = [
            own[mechanism] / own[BASELINE]
            for setting, own in (*self.steps.items(), *self.older.items())
            if setting.pattern == pattern and mechanism in own and BASELINE in own
        ]
        return statistics.geometric_mean(ratios) if ratios else None

    def _core_ratio(self, mechanism: str, pattern: str) -> float | None:
        own, softmax = (self._cores.get((name, pattern), {}) for name in (mechanism, BASELINE))
        ratios = [own[how] / softmax[how] for how in own.keys() & softmax.keys()]
        return statistics.geometric_mean(ratios) if ratios else None


def _like(tier: str) -> Sequence[str]:
    return (tier, SAME_MODEL[tier]) if tier in SAME_MODEL else (tier,)


def _by_setting(cards: Iterable[Card]) -> dict[Setting, dict[str, float]]:
    """Seconds of a step, the median over seeds."""
    found: dict[Setting, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for card in cards:
        if (seconds := _seconds_of_a_step(card)) is not None:
            setting = Setting(card["task"], card["protocol"], card["tier"], card["pattern"])
            found[setting][named(card)].append(seconds)
    return {setting: {name: statistics.median(own[name]) for name in own} for setting, own in found.items()}


def _seconds_of_a_step(card: Card) -> float | None:
    """Wall time per step of a finished run."""
    seconds = card["timing"]["wall_seconds"]
    if card["status"] != "ok" or not seconds or card["overrides"] or not card["curve"]:
        return None
    last = card["curve"][-1]["step"]
    return seconds / last if last else None


def _gpu(card: Card) -> str:
    """The device of a measurement."""
    return device_of({**card, "settings": {"device": card["settings"].get("device", "")}})


def _core_seconds(measurements: Iterable[Card]) -> dict[tuple[str, str], dict[tuple, float]]:
    """Seconds per training step of a mechanism by itself, by mechanism and pattern, then by how it was timed."""
    found: dict[tuple[str, str], dict[tuple, float]] = defaultdict(dict)
    for card in measurements:
        if card["procedure"] != "core":
            continue
        shape = tuple(card["settings"].get(name) for name in ("batch", "heads", "dim", "dtype", "module"))
        for point in card["points"]:
            fits = (point["mode"], point["variant"], point["status"]) == ("train", "graph", "ok")
            if fits and point["length"] <= LONGEST and point["seconds"] and math.isfinite(point["seconds"]["median"]):
                how = (*shape, point["length"])
                found[card["mechanism"], card["pattern"]][how] = point["seconds"]["median"]
    return found
