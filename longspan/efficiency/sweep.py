"""The efficiency lab: time, memory, energy and distance from the roofline of one mechanism by itself, at any length.

    sweep = measure(pairs_of(["softmax", "linear"], ["NS", "CS"]), Setup.usual("cuda"), device="cuda")
    sweep.cards, sweep.left

One card per mechanism and pattern. A point is a length, a mode (forward, train, decode) and a variant (eager, graph,
compiled). No point has a time unless the mechanism passed the gate at that length. What runs out of memory or cannot
run is a point too, and after a length that does not fit, longer ones are not tried. Every point is in a journal
before the next one begins, so that a sweep resumes where it stopped; a card is made from its journal alone.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from longspan import attentions
from longspan.attentions import Mechanism, Pattern
from longspan.core import environment
from longspan.core.errors import RunFailed, UnsupportedPattern
from longspan.core.mirror import local
from longspan.efficiency import energy, gate, roofline, source, variants
from longspan.efficiency.decoding import DecodeWorkload
from longspan.efficiency.faults import is_sound, status_of
from longspan.efficiency.journal import Journal
from longspan.efficiency.latency import FENCE, Timing, time_call
from longspan.efficiency.memory import METHODS, memory_of, release
from longspan.efficiency.setup import Key, Mode, Setup, Variant
from longspan.efficiency.variants import Runner
from longspan.efficiency.workload import ModuleWorkload, TimedCalls, core_of
from longspan.results import card as cards
from longspan.results.store import Store

PROCEDURE = "core"
TIMED_PARTS = ("kernels", "attentions/base.py", "efficiency")
CLOCKS = {"cuda": "device events", "cpu": "process clock"}
NUMBERS = ("seconds", "memory", "energy", "operations", "floor", "achieved", "state_bytes", "captured", "agreement")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Sweep:
    """The cards that are complete, and how many points a budget left for the next call."""

    cards: list[cards.Card]
    left: int = 0


def measure(
    pairs: Sequence[tuple[Mechanism, Pattern]],
    setup: Setup,
    *,
    device: str = "auto",
    out: str | Path = "out",
    again: bool = False,
    trusted: Sequence[Mapping[str, Any]] = (),
    budget: float | None = None,
    watch: Tell | None = None,
    remark: Tell | None = None,
) -> Sweep:
    """One card per mechanism and pattern in `out/cards/measurements`; points in a journal are not measured again.

    `trusted` are reports of `longspan check --json` that replace the quick check; `budget` is in seconds;
    `watch` is called with the next point, `remark` with what cannot be measured here.
    """
    device = environment.choose_device(device)
    if setup.energy and not energy.can_count(device) and remark is not None:
        remark(energy.why_not(device))
    store, clock = Store(local(out) / "cards"), _Budget(budget)
    finished, left = [], 0
    for mechanism, pattern in pairs:
        sheet = _Sheet(mechanism, pattern, setup, device, Path(out) / "runs", trusted)
        if again:
            sheet.journal.forget()
        missing = sheet.fill(clock, watch or (lambda what: None))
        left += missing
        if not missing:
            finished.append(cards.read(store.add(sheet.card())))
    return Sweep(finished, left)


def pairs_of(
    mechanisms: Sequence[str | Mechanism],
    patterns: Sequence[str | Pattern] = (Pattern.NONCAUSAL_SELF,),
    *,
    narrow: bool = False,
) -> list[tuple[Mechanism, Pattern]]:
    """Every mechanism in every pattern; an undeclared pattern is an error, or with `narrow` left out."""
    wanted = list(dict.fromkeys(map(Pattern.parse, patterns)))
    pairs = []
    for name, mechanism in {str(one): one for one in map(attentions.get, mechanisms)}.items():
        for pattern in wanted:
            if pattern in mechanism.meta.patterns:
                pairs.append((mechanism, pattern))
            elif not narrow:
                raise UnsupportedPattern(
                    f"{name} does not declare {pattern}, so it cannot be measured; "
                    f"it declares: {', '.join(mechanism.meta.patterns)}."
                )
    return pairs


def ranked() -> list[str]:
    """Every mechanism that may be compared: no twins of released code."""
    return [name for name in attentions.names() if not attentions.get(name).meta.fidelity]


class _Budget:
    """Seconds for a whole sweep; a point is begun only if one as long as the last of its kind would still fit."""

    def __init__(self, seconds: float | None):
        self.seconds, self.begun = math.inf if seconds is None else seconds, time.monotonic()
        self.costs: dict[tuple[str, str], float] = {}

    def allows(self, kind: tuple[str, str]) -> bool:
        return time.monotonic() - self.begun + self.costs.get(kind, 0.0) < self.seconds

    def spent(self, kind: tuple[str, str], seconds: float) -> None:
        self.costs[kind] = seconds


# --------------------------------------------------------------------------------- one mechanism in one pattern: a card


class _Sheet:
    """The points of one card in the making."""

    def __init__(
        self,
        mechanism: Mechanism,
        pattern: Pattern,
        setup: Setup,
        device: str,
        runs: Path,
        trusted: Sequence[Mapping[str, Any]],
    ):
        self.mechanism, self.pattern, self.setup, self.device = mechanism, pattern, setup, device
        self.trusted = trusted
        self.identity = {
            "procedure": PROCEDURE,
            "mechanism": str(mechanism),
            "pattern": pattern.value,
            "settings": setup.shared() | {"device": device, "threads": _threads(device)},
            "source": source.source_hash(mechanism.cls, TIMED_PARTS),
            "environment": environment.describe(),
        }
        self.journal = Journal(runs, self.identity)

    def fill(self, budget: _Budget, watch: Tell) -> int:
        """Measure what is not in the journal, as far as the budget goes; returns the number of points left."""
        workload = _Workloads(self.mechanism, self.pattern, self.setup, self.device)
        left = 0
        for key in self.setup.asked():
            length, mode, variant = key
            watch(f"{self.mechanism} · {self.pattern.code} · {length} · {mode} · {variant}")
            if self.journal.find(key, energy=self.setup.energy) is not None:
                continue
            if not budget.allows((mode, variant)):
                left += 1
                continue
            begun = time.monotonic()
            if "code" not in self.journal.notes:
                self.journal.note(code=environment.code_version())
            self.journal.add(key, self._point(key, workload), energy=self.setup.energy)
            budget.spent((mode, variant), time.monotonic() - begun)
            if not is_sound(self.device):
                raise RunFailed(
                    f"{self.device} stopped working after {self.mechanism}, {mode}, {variant} at length {length}; "
                    f"the same command goes on with the other points."
                )
        return left

    def _point(self, key: Key, workloads: "_Workloads") -> dict[str, Any]:
        length, mode, variant = key
        point = {"length": length, "mode": mode, "variant": variant, "status": "ok", "reason": None}
        point |= dict.fromkeys(NUMBERS)
        if reason := why_unsupported(self.pattern, self.setup, mode, variant, self.device):
            return point | {"status": "unsupported", "reason": reason}
        if (failed := self._failed_below(key)) is not None:
            return point | {"status": "oom", "reason": f"not tried: out of memory at length {failed} already"}
        verdict = self._verdict()
        if not verdict["ok"]:
            return point | {"status": "refused", "reason": verdict["reason"]}
        try:
            return point | self._numbers(key, workloads)
        except _NotThisWay as error:
            status, reason = "unsupported", str(error)
        except (Exception, SystemExit) as error:  # a mechanism may raise anything at all, and the sweep goes on
            status, reason = status_of(error)
        if status == "oom":
            reason = f"out of memory on {self.device} with {self.setup.batch} rows of length {length}"
        workloads.drop()
        if is_sound(self.device):
            release(self.device)  # only now: the error kept alive the frames that hold its tensors
        return point | {"status": status, "reason": reason}

    def _numbers(self, key: Key, workloads: "_Workloads") -> dict[str, Any]:
        length, mode, variant = key
        ceilings = self._ceilings()  # while the device is still empty
        workload, error = workloads.at(length, mode)
        agreed = {"agreement": error if error is None or math.isfinite(error) else None}
        if reason := gate.disagreement(error, self.setup.dtype):
            return agreed | {"status": "refused", "reason": reason}
        if self.journal.notes.get("parameters") != (parameters := workload.parameters()):
            self.journal.note(parameters=parameters)  # some mechanisms have more of them at a longer length
        work = _work(workload, mode, compiled=variant == "compiled")
        _first_call(work, variant)
        if variant == "compiled" and mode == "forward":  # in training some mechanisms draw random numbers
            error = gate.difference(work, _work(workload, mode))
            if reason := gate.disagreement(error, self.setup.dtype):
                return agreed | {"status": "refused", "reason": f"compiled, {reason}"}
        memory = self._memory(work, mode, variant)  # before a graph is captured, which keeps its memory
        operations = workloads.operations(mode, work)
        runner, captured = runner_of(work, variant, self.device)
        timing = time_call(
            runner.run,
            self.device,
            repeats=self.setup.repeats,
            seconds=self.setup.seconds,
            warmup=self.setup.warmup,
            calls=runner.calls,
        )
        seconds = timing.spread.median
        joules = self._energy(runner, seconds) if mode != "decode" else None
        near = roofline.against_floor(
            seconds,
            ceilings,
            *(self.mechanism, self.pattern, self.setup, length, mode),
            operations=operations,
            parameters=parameters,
            state_bytes=work.state_bytes,
        )
        return agreed | {
            "seconds": _seconds(timing),
            "memory": memory,
            "energy": None if joules is None else asdict(joules),
            "operations": operations,
            **near,
            "state_bytes": work.state_bytes,
            "captured": captured,
        }

    def _energy(self, runner: Runner, seconds: float) -> energy.Energy | None:
        if not self.setup.energy:
            return None
        return energy.energy_of(runner.run, self.device, cost=seconds * runner.calls, calls=runner.calls)

    def _memory(self, work: TimedCalls, mode: Mode, variant: Variant) -> dict[str, Any] | None:
        """Memory of one call that is not captured, also where captured calls are timed."""
        if variant == "compiled" and self.device == "cpu":  # compiled code hides its tensors from the counter
            return None
        call = work.counted if self.device == "cpu" else work.calls[0]
        return asdict(memory_of(call, self.device, held=work.held, forward=work.forward if mode == "train" else None))

    def _failed_below(self, key: Key) -> int | None:
        """The shortest length at which memory ran out in the same mode and variant."""
        length, mode, variant = key
        found = ((n, self.journal.find((n, mode, variant))) for n in sorted(self.setup.lengths) if n < length)
        return next((n for n, point in found if point is not None and point["status"] == "oom"), None)

    def _verdict(self) -> dict[str, Any]:
        if "conformance" not in self.journal.notes:
            asked = (self.mechanism, self.pattern, self.device, self.setup.dtype)
            self.journal.note(conformance=gate.conformance(*asked, self.trusted).to_json())
        return self.journal.notes["conformance"]

    def _ceilings(self) -> dict[str, Any]:
        if "ceilings" not in self.journal.notes:
            found = _ceilings_of(self.device, self.setup.dtype)
            self.journal.note(ceilings=found)
        return self.journal.notes["ceilings"]

    # ------------------------------------------------------------------------------------------------------- the card

    def card(self) -> cards.Card:
        keys = self.setup.asked()
        points = [point for key in keys if (point := self.journal.find(key)) is not None]
        notes = self.journal.notes
        return {
            "schema": cards.SCHEMA_VERSION,
            "kind": "measurement",
            "procedure": PROCEDURE,
            "mechanism": str(self.mechanism),
            "title": self.mechanism.meta.title,
            "pattern": self.pattern.value,
            "settings": self._settings(),
            "ceilings": notes.get("ceilings"),
            "gate": self._gate(points),
            "points": points,
            "parameters": {"total": notes.get("parameters")},
            "code": notes["code"] | source.timed_code(self.mechanism.cls, self.identity["source"]),
            "environment": self.identity["environment"],
            "created": self.journal.last(keys),
        }

    def _settings(self) -> dict[str, Any]:
        chosen = {"lengths": sorted(self.setup.lengths), "modes": list(self.setup.modes)}
        meta = self.mechanism.meta
        return (
            asdict(self.setup)
            | chosen
            | {
                "variants": list(self.setup.variants),
                "device": self.device,
                "threads": _threads(self.device),
                "cost": meta.cost,
                "exact": meta.exact,
                "core_is": core_of(self.mechanism.cls) if self.setup.module == "core" else "layer",
                "clock": CLOCKS[self.device],
                "outliers": f"readings beyond {FENCE:g} interquartile ranges from a quartile are dropped",
                "inputs": "random, in turn from as many sets as no cache holds",
                "memory": METHODS[self.device],
            }
        )

    def _gate(self, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        verdict = self.journal.notes.get("conformance")
        errors = [point["agreement"] for point in points if point["agreement"] is not None]
        refused = next((point["reason"] for point in points if point["status"] == "refused"), None)
        checked = [] if verdict is None else [verdict["checked"]]
        if errors:
            checked.append("agreement with finer precision")
        return {
            "ok": bool(checked) and refused is None,
            "reason": refused if checked else "nothing could be measured",
            "dtype": self.setup.dtype,
            "checked": checked,
            "error": max(errors, default=None),
        }


def _threads(device: str) -> int | None:
    return torch.get_num_threads() if device == "cpu" else None


_measured_ceilings: dict[tuple[str, str], dict[str, Any]] = {}


def _ceilings_of(device: str, dtype: str) -> dict[str, Any]:
    """Measured once for all mechanisms of a process."""
    if (device, dtype) not in _measured_ceilings:
        _measured_ceilings[device, dtype] = roofline.measure_ceilings(device, dtype)
    return _measured_ceilings[device, dtype]


# ------------------------------------------------------------------------------------------------------ one point of it


class _NotThisWay(RuntimeError):
    """A mechanism that cannot be captured or compiled, though it runs."""


def why_unsupported(pattern: Pattern, setup: Setup, mode: Mode, variant: Variant, device: str) -> str | None:
    """Why there is nothing to measure, whatever the mechanism."""
    if mode == "decode" and not pattern.causal:
        return f"{pattern} has no decoding; only causal patterns go step by step"
    if mode == "decode" and setup.module == "block":
        return "decoding is measured of a layer, not of a block"
    if mode == "decode" and variant == "compiled":
        return "decoding is measured eager and as a graph, not compiled"
    if variant == "graph" and device == "cpu":
        return "a CPU has no graphs to record; the work is launched as it is done"
    return None


def runner_of(work: TimedCalls, variant: Variant, device: str) -> tuple[Runner, bool]:
    """How the calls are run, and whether they were captured: compiled ones are too, where possible."""
    if variant == "eager" or device == "cpu":
        return variants.eager(work.calls), False
    try:
        return variants.captured(work.calls), True
    except Exception as error:
        status, reason = status_of(error)
        if status == "oom":
            raise
        if variant == "compiled":
            return variants.eager(work.calls), False
        raise _NotThisWay(f"cannot be captured as a graph: {reason}") from error


def _first_call(work: TimedCalls, variant: Variant) -> None:
    """Load kernels and allocate workspaces; in the compiled variant, compile."""
    try:
        work.calls[0]()
    except Exception as error:
        status, reason = status_of(error)
        if variant != "compiled" or status == "oom":
            raise
        raise _NotThisWay(f"cannot be compiled: {reason}") from error


def _work(workload: ModuleWorkload | DecodeWorkload, mode: Mode, *, compiled: bool = False) -> TimedCalls:
    return workload.work() if isinstance(workload, DecodeWorkload) else workload.work(mode, compiled=compiled)


def _seconds(timing: Timing) -> dict[str, Any]:
    spread = timing.spread
    return {
        "median": _figures(spread.median),
        "low": _figures(spread.low),
        "high": _figures(spread.high),
        "count": spread.count,
        "dropped": timing.dropped,
        "calls": timing.calls,
    }


def _figures(number: float) -> float:
    """Rounded to six significant digits, more than any clock here resolves."""
    return float(f"{number:.6g}")


class _Workloads:
    """The module and inputs of the current length, kept only while its modes and variants are measured."""

    def __init__(self, mechanism: Mechanism, pattern: Pattern, setup: Setup, device: str):
        self._of = (mechanism, pattern, setup)
        self._device = device
        self.drop()

    def drop(self) -> None:
        self._key: tuple[int, bool] | None = None
        self._bench: ModuleWorkload | DecodeWorkload | None = None
        self._error: float | None = None
        self._operations: dict[Mode, int | None] = {}

    def at(self, length: int, mode: Mode) -> tuple[ModuleWorkload | DecodeWorkload, float | None]:
        """A workload, and its agreement with finer precision."""
        key = (length, mode == "decode")
        if self._key != key or self._bench is None:
            self.drop()
            make = DecodeWorkload if mode == "decode" else ModuleWorkload
            self._bench = make(*self._of, length, self._device)
            self._error = gate.agreement(self._bench)
            self._key = key
        return self._bench, self._error

    def operations(self, mode: Mode, work: TimedCalls) -> int | None:
        """Counted once for all variants of a mode, since they compute the same."""
        if mode not in self._operations:
            self._operations[mode] = roofline.operations_of(work.counted)
        return self._operations[mode]
