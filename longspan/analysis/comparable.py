"""A bench: core measurements that may be compared, of one machine, one setup and one pattern, by mechanism.

    for bench in benches(evidence.measurements):
        bench.title                          # NVIDIA H200 · bfloat16 · batch 4, 8 heads of 64 · core · causal_self
        bench.mechanisms["linear"].reading(4096, "forward", "graph").time.median

Several cards of one mechanism are merged: where a point was measured twice the newer values count, and quantities that
only the older card has, such as energy, are kept. Cards are untrusted and their points hold more than the schema knows,
so a value of the wrong type counts as not measured.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import longspan
from longspan.analysis.cards import name_of
from longspan.core.errors import DataMissing
from longspan.core.printable import shown
from longspan.results.age import by_date
from longspan.results.card import Card, filename

PROCEDURE = "core"
MODES = ("forward", "train", "decode")
VARIANTS = ("graph", "eager", "compiled")  # in this order of preference: graphs time the work, not the launches
ABLATIONS = ("none",)  # no attention at all, so never ranked as a mechanism


@dataclass(frozen=True)
class Quantity:
    """A compared quantity in the unit shown in tables; `scale` converts from seconds, bytes or joules."""

    name: str
    unit: str
    scale: float

    @property
    def label(self) -> str:
        return f"{self.name}, {self.unit}"


QUANTITIES = {
    "time": Quantity("time", "µs", 1e6),
    "memory": Quantity("memory", "MiB", 2.0**-20),
    "energy": Quantity("energy", "mJ", 1e3),
}


@dataclass(frozen=True)
class ReadingSummary:
    """A median with its quartiles and the number of readings, where these are known."""

    median: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


@dataclass(frozen=True)
class Reading:
    """One point of a card, in seconds, bytes and joules per call (per token in decoding)."""

    length: int
    mode: str
    variant: str
    status: str
    reason: str | None
    card: str  # the name of the card's file
    samples: Mapping[str, ReadingSummary] = field(default_factory=dict)  # by quantity
    operations: float | None = None
    floor_bytes: float | None = None
    floor_seconds: float | None = None
    bound: str | None = None
    ratio: float | None = None  # measured over floor
    operations_per_second: float | None = None
    bytes_per_second: float | None = None
    state_bytes: float | None = None

    def sample(self, quantity: str) -> ReadingSummary | None:
        return self.samples.get(quantity) if self.status == "ok" else None


@dataclass(frozen=True)
class LengthEstimate:
    """A value at a length: measured there, or interpolated between two measured lengths, linear in log-log space."""

    value: float
    variant: str
    cards: tuple[str, ...]
    between: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        return "measured" if self.between is None else "between {:,} and {:,}".format(*self.between)


@dataclass(frozen=True)
class MeasuredMechanism:
    """A mechanism on a bench."""

    mechanism: str
    title: str
    exact: bool
    cost: str | None
    whole_layer: bool  # it has no core of its own, so its projections are measured too
    readings: Mapping[tuple[int, str, str], Reading]
    cards: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.title}, whole layer" if self.whole_layer else self.title

    @property
    def ranked(self) -> bool:
        """Whether it is ranked: neither an ablation nor a twin of released code that differs from its paper."""
        base = self.mechanism.split("(", 1)[0]
        return base not in ABLATIONS and base not in twins()

    def reading(self, length: int, mode: str, variant: str) -> Reading | None:
        return self.readings.get((length, mode, variant))

    def series(self, quantity: str, mode: str, variant: str) -> dict[int, ReadingSummary]:
        """The measured values of a quantity, by length."""
        found = {}
        for (length, one_mode, one_variant), reading in sorted(self.readings.items()):
            sample = reading.sample(quantity)
            if (one_mode, one_variant) == (mode, variant) and sample is not None:
                found[length] = sample
        return found

    def refused(self, mode: str, variant: str, status: str = "oom") -> list[int]:
        """Lengths with this status, out of memory by default."""
        return sorted(
            length
            for (length, one_mode, one_variant), reading in self.readings.items()
            if (one_mode, one_variant, reading.status) == (mode, variant, status)
        )

    def variant(self, quantity: str, mode: str, *, wanted: str | None = None) -> str | None:
        """The wanted variant if it has this quantity; without one, the first of `VARIANTS` that has it."""
        choices = VARIANTS if wanted is None else (wanted,)
        return next((variant for variant in choices if self.series(quantity, mode, variant)), None)

    def estimate(self, quantity: str, mode: str, variant: str, length: int) -> LengthEstimate | None:
        """The quantity at a length, interpolated between its two measured neighbours, never extrapolated."""
        found = self.series(quantity, mode, variant)
        if length in found:
            return LengthEstimate(found[length].median, variant, self._cards([length], mode, variant))
        below = max((one for one in found if one < length), default=None)
        above = min((one for one in found if one > length), default=None)
        if below is None or above is None:
            return None
        if any(below < one < above for one in self.refused(mode, variant)):
            return None
        share = math.log(length / below) / math.log(above / below)
        logs = [math.log(found[one].median) for one in (below, above)]
        value = math.exp(logs[0] + share * (logs[1] - logs[0]))
        return LengthEstimate(value, variant, self._cards([below, above], mode, variant), (below, above))

    def best_estimate(self, quantity: str, mode: str, length: int) -> LengthEstimate | None:
        """The lowest over all variants; measured values come before interpolated ones."""
        found = (self.estimate(quantity, mode, variant, length) for variant in VARIANTS)
        return min(
            (one for one in found if one is not None),
            key=lambda one: (one.between is not None, one.value),
            default=None,
        )

    def _cards(self, lengths: Sequence[int], mode: str, variant: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.readings[length, mode, variant].card for length in lengths))


@dataclass(frozen=True)
class Bench:
    """The measurements by mechanism, and the two ceilings of the device that were measured with them."""

    machine: str
    setup: tuple[tuple[str, str], ...]
    pattern: str
    mechanisms: Mapping[str, MeasuredMechanism]
    bandwidth: float | None = None
    rate: float | None = None

    @property
    def where(self) -> str:
        """`NVIDIA H200 · bfloat16 · batch 4, 8 heads of 64 · core`."""
        said = dict(self.setup)
        sizes = f"batch {said['batch']}, {said['heads']} heads of {said['dim']}"
        return shown(" · ".join([self.machine, said["dtype"], sizes, said["module"]]))

    @property
    def title(self) -> str:
        return shown(f"{self.where} · {self.pattern}")

    @property
    def module(self) -> str:
        return dict(self.setup)["module"]

    def lengths(self, mode: str) -> list[int]:
        """Every length at which something was measured in a mode."""
        found = {length for one in self.mechanisms.values() for (length, own, _) in one.readings if own == mode}
        return sorted(found)


def benches(cards: Iterable[Card]) -> list[Bench]:
    """One bench per machine, setup and pattern, the fullest first."""
    groups: dict[tuple, list[Card]] = {}
    for card in by_date(cards):
        if card["kind"] == "measurement" and card["procedure"] == PROCEDURE:
            groups.setdefault((_machine(card), _setup(card), card["pattern"]), []).append(card)
    made = [_bench(machine, setup, pattern, group) for (machine, setup, pattern), group in groups.items()]
    return sorted(made, key=lambda one: (-len(one.mechanisms), one.where, one.pattern))


def need_benches(cards: Iterable[Card]) -> list[Bench]:
    """The same, but raises DataMissing where there is none."""
    found = benches(cards)
    if not found:
        raise DataMissing("No core measurement was found; make some with longspan measure softmax linear.")
    return found


@functools.cache
def twins() -> frozenset[str]:
    """Names of the bug-compatible twins: their files are in a folder of their own."""
    shelf = Path(longspan.__file__).parent / "attentions" / "released"
    return frozenset(path.stem for path in shelf.glob("*.py") if not path.stem.startswith("_"))


# --------------------------------------------------------------------------------------------------------- from cards


def _machine(card: Card) -> str:
    gpu = str(card["settings"].get("device", "")).startswith("cuda")
    return shown(str(card["environment"].get("gpu" if gpu else "cpu") or "unknown machine"))


def _setup(card: Card) -> tuple[tuple[str, str], ...]:
    names = ("dtype", "batch", "heads", "dim", "module")
    return tuple((name, shown(str(card["settings"].get(name, "unknown")))) for name in names)


def _bench(machine: str, setup: tuple[tuple[str, str], ...], pattern: str, cards: Sequence[Card]) -> Bench:
    readings: dict[str, dict[tuple[int, str, str], Reading]] = {}
    newest: dict[str, Card] = {}
    names: dict[str, list[str]] = {}
    bandwidth = rate = None
    for card in cards:
        mechanism, name = card["mechanism"], filename(card).removesuffix(".json")
        newest[mechanism] = card
        names.setdefault(mechanism, []).append(name)
        own = readings.setdefault(mechanism, {})
        for one in (_reading(point, name) for point in card["points"]):
            key = one.length, one.mode, one.variant
            own[key] = _joined(own.get(key), one)
        bandwidth = _number(card.get("ceilings"), "bytes_per_second") or bandwidth
        rate = _number(card.get("ceilings"), "operations_per_second") or rate
    mechanisms = {
        mechanism: MeasuredMechanism(
            mechanism=mechanism,
            title=name_of(card),
            exact=card["settings"].get("exact") is True,
            cost=cost if isinstance(cost := card["settings"].get("cost"), str) else None,
            whole_layer=card["settings"].get("core_is") == "layer",
            readings=readings[mechanism],
            cards=tuple(names[mechanism]),
        )
        for mechanism, card in sorted(newest.items())
    }
    return Bench(machine, setup, shown(pattern), mechanisms, bandwidth, rate)


def _joined(older: Reading | None, newer: Reading) -> Reading:
    """The newer reading with the quantities that only the older one has."""
    if older is None or (older.status, newer.status) != ("ok", "ok"):
        return newer
    return replace(newer, samples={**older.samples, **newer.samples})


def _reading(point: Mapping[str, Any], card: str) -> Reading:
    samples = {
        "time": _sample(point.get("seconds")),
        "memory": _only(_number(point.get("memory"), "allocated")),
        "energy": _only(_number(point.get("energy"), "joules")),
    }
    floor, achieved = point.get("floor"), point.get("achieved")
    bound = floor.get("bound") if isinstance(floor, dict) else None
    return Reading(
        length=point["length"],
        mode=point["mode"],
        variant=str(point.get("variant", "eager")),
        status=point["status"],
        reason=point["reason"],
        card=card,
        samples={name: sample for name, sample in samples.items() if sample is not None},
        operations=_number(point, "operations"),
        floor_bytes=_number(floor, "bytes"),
        floor_seconds=_number(floor, "seconds"),
        bound=bound if isinstance(bound, str) else None,
        ratio=_number(floor, "ratio"),
        operations_per_second=_number(achieved, "operations_per_second"),
        bytes_per_second=_number(achieved, "bytes_per_second"),
        state_bytes=_number(point, "state_bytes"),
    )


def _sample(seconds: Any) -> ReadingSummary | None:
    median = _number(seconds, "median")
    if median is None:
        return None
    low, high, count = (_number(seconds, name) for name in ("low", "high", "count"))
    return ReadingSummary(median, low, high, None if count is None else int(count))


def _only(value: float | None) -> ReadingSummary | None:
    return None if value is None else ReadingSummary(value)


def _number(holder: Any, name: str) -> float | None:
    """A positive number, or None for anything else: logarithms are taken of all of them."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
