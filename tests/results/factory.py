"""Cards for tests. Every number here is made up; none comes from a run."""

import copy
from pathlib import Path
from typing import Any

import numpy as np

from longspan.results.card import Card, seal


def make_card(
    mechanism: str = "softmax",
    task: str = "listops",
    *,
    seed: int = 0,
    accuracy: float = 0.4,
    count: int = 2000,
    chance: float | None = 0.163,
    status: str = "ok",
    steps_per_second: float = 10.0,
    parameters: int = 100_000,
    variant: str = "generated",
    created: str = "2026-01-02T03:04:05Z",
    points: int = 5,
    sealed: bool = True,
    **fields: Any,
) -> Card:
    """A valid run card; other keyword arguments replace whole fields."""
    ok = status == "ok"
    score = {
        "name": "accuracy",
        "split": "test",
        "value": accuracy,
        "count": count,
        "higher_is_better": True,
        "chance": chance,
    }
    metrics = {
        split: {"accuracy": {"value": accuracy, "count": count}, "loss": {"value": 1.5, "count": count}}
        for split in ("valid", "test")
    }
    metrics["valid"]["loss"]["value"] = 2.3 - 0.09 * points
    floor = chance or 0.1
    curve = [
        {
            "step": 100 * i,
            "train_loss": 2.3 - 0.1 * i,
            "valid_loss": 2.3 - 0.09 * i,
            "valid_accuracy": floor + (accuracy - floor) * i / points,
            "learning_rate": 1e-3,
            "seconds": 10.0 * i / steps_per_second * 10,
        }
        for i in range(1, points + 1)
    ]
    card: Card = {
        "schema": 1,
        "kind": "run",
        "task": task,
        "task_version": 1,
        "backbone": "encoder_classifier",
        "protocol": "longspan",
        "tier": "smoke",
        "mechanism": mechanism,
        "title": mechanism.split("(")[0].replace("_", " ").title(),
        "pattern": "noncausal_self",
        "seed": seed,
        "overrides": {},
        "track": "fixed",
        "fidelity": False,
        "settings": {
            "data": {"length": 2000},
            "model": {"dim": 64, "layers": 2},
            "recipe": {"steps": max(500, 100 * points), "batch_size": 32},
            "precision": "fp32",
            "device": "cpu",
        },
        "dataset": {
            "name": task,
            "variant": variant,
            "sha256": "0" * 64,
            "counts": {"train": 9600, "valid": 2000, "test": count},
        },
        "code": {"version": "0.1.0", "commit": None, "dirty": None},
        "environment": {"cpu": "Test CPU", "cpu_count": 2, "torch": "2.13.0"},
        "parameters": {
            "total": parameters,
            "parts": {"embedding": parameters // 4, "attention": parameters // 2},
            "baseline": 100_000,
            "ratio": parameters / 100_000,
            "within_rule": parameters <= 110_000,
        },
        "metrics": metrics if ok else None,
        "score": score if ok else None,
        "selected_step": 100 * points if ok else None,
        "curve": curve,
        "timing": {
            "wall_seconds": 50.0,
            "steps_per_second": steps_per_second,
            "examples_per_second": 32 * steps_per_second,
        },
        "memory": {"peak_bytes": 123_456_789},
        "energy": None,
        "status": status,
        "reason": None if ok else "the loss became NaN at step 120",
        "files": {},
        "created": created,
    }
    card.update(copy.deepcopy(fields))
    return seal(card) if sealed else card


SPAN = {"mean": 12.0, "std": 1.0, "samples": 10, "length": 60.0, "uniform": 20.0, "by_layer": [[12.0]]}
SPAN |= {"source": "weights"}


def make_probe(
    question: str = "span",
    results: dict[str, Any] | None = None,
    *,
    mechanism: str = "softmax",
    task: str = "listops",
    seed: int = 0,
    run: Card | None = None,
    created: str = "2026-01-02T03:04:05Z",
    sealed: bool = True,
    **fields: Any,
) -> Card:
    """A valid probe card, of `run` if one is given; other keyword arguments replace whole fields."""
    subject = {
        "task": task,
        "task_version": 1,
        "protocol": "longspan",
        "tier": "smoke",
        "mechanism": mechanism,
        "title": mechanism.split("(")[0].replace("_", " ").title(),
        "pattern": "noncausal_self",
        "seed": seed,
        "card": "0" * 64,
    }
    if run is not None:
        subject = {name: run[name] for name in subject if name != "card"} | {"card": run["sha256"]}
    card: Card = {
        "schema": 1,
        "kind": "probe",
        "question": question,
        "subject": subject,
        "method": "Made up.",
        "settings": {},
        "results": SPAN if results is None else results,
        "code": {"version": "0.1.0", "commit": None, "dirty": None},
        "environment": {"cpu": "Test CPU", "cpu_count": 2, "torch": "2.13.0"},
        "files": {},
        "created": created,
    }
    card.update(copy.deepcopy(fields))
    return seal(card) if sealed else card


def make_measurement(
    mechanism: str = "softmax",
    speeds: dict[int, float | None] | None = None,
    *,
    title: str | None = None,
    mode: str = "train",
    bytes_per_token: int = 100_000,
    created: str = "2026-01-02T03:04:05Z",
    sealed: bool = True,
    **fields: Any,
) -> Card:
    """A valid measurement card with a speed (None: out of memory) for each length."""
    points = [
        {
            "length": length,
            "mode": mode,
            "status": "oom" if speed is None else "ok",
            "reason": "out of memory" if speed is None else None,
            "steps_per_second": speed,
            "compute_steps_per_second": speed,
            "examples_per_second": None if speed is None else 32 * speed,
            "peak_bytes": None if speed is None else bytes_per_token * length,
        }
        for length, speed in (speeds or {1000: 8.0, 4000: 2.0}).items()
    ]
    card: Card = {
        "schema": 1,
        "kind": "measurement",
        "procedure": "lra-efficiency",
        "mechanism": mechanism,
        "title": title or mechanism.split("(")[0].replace("_", " ").title(),
        "pattern": "noncausal_self",
        "settings": {"device": "cpu", "precision": "fp32", "batch": 32},
        "points": points,
        "parameters": {"total": 100_000},
        "code": {"version": "0.1.0", "commit": None, "dirty": None},
        "environment": {"cpu": "Test CPU", "cpu_count": 2, "torch": "2.13.0"},
        "files": {},
        "created": created,
    }
    card.update(copy.deepcopy(fields))
    return seal(card) if sealed else card


BANDWIDTH, RATE = 4e12, 6e14  # ceilings of a device that does not exist


def make_core(
    mechanism: str = "softmax",
    seconds: dict[int, float | None] | None = None,
    *,
    pattern: str = "noncausal_self",
    modes: tuple[str, ...] = ("forward", "train"),
    variants: tuple[str, ...] = ("eager", "graph"),
    exact: bool = False,
    cost: str = "n",
    spread: float = 0.02,
    bytes_per_token: float = 4096.0,
    operations_per_token: int = 524_288,
    joules_at: tuple[int, ...] = (),
    title: str | None = None,
    created: str = "2026-01-02T03:04:05Z",
    settings: dict[str, Any] | None = None,
    sealed: bool = True,
    **fields: Any,
) -> Card:
    """A core measurement, from the seconds of a forward call under CUDA graphs by length (None: out of memory).

    Training takes three times as long, eager calls 20 us longer, a decoded token a thousandth.
    """
    lengths = seconds or {256: 1e-5, 512: 2e-5, 1024: 4e-5}
    points = [
        _core_point(length, mode, variant, value, spread, bytes_per_token, length in joules_at)
        | ({} if value is None else _work(length, mode, variant, value, operations_per_token * length))
        for length, value in lengths.items()
        for mode in modes
        for variant in variants
    ]
    card: Card = {
        "schema": 1,
        "kind": "measurement",
        "procedure": "core",
        "mechanism": mechanism,
        "title": title or mechanism.split("(")[0].replace("_", " ").title(),
        "pattern": pattern,
        "settings": {
            "batch": 4,
            "heads": 8,
            "dim": 64,
            "dtype": "bfloat16",
            "module": "core",
            "device": "cuda",
            "lengths": list(lengths),
            "modes": list(modes),
            "variants": list(variants),
            "seed": 0,
            "repeats": 100,
            "warmup": 10,
            "seconds": 1.0,
            "cost": cost,
            "exact": exact,
            "core_is": "attend",
            **(settings or {}),
        },
        "ceilings": {"bytes_per_second": BANDWIDTH, "operations_per_second": RATE, "method": "Made up."},
        "gate": {"ok": True, "reason": None, "dtype": "bfloat16", "checked": ["shape"], "error": 1e-3},
        "points": points,
        "parameters": {"total": 0},
        "code": {"version": "0.1.0", "commit": None, "dirty": None},
        "environment": {"cpu": "Test CPU", "gpu": "Test GPU", "torch": "2.13.0"},
        "files": {},
        "created": created,
    }
    card.update(copy.deepcopy(fields))
    return seal(card) if sealed else card


def _median(mode: str, variant: str, seconds: float) -> float:
    return seconds * {"forward": 1.0, "train": 3.0, "decode": 1e-3}[mode] + (2e-5 if variant == "eager" else 0.0)


def _core_point(
    length: int, mode: str, variant: str, seconds: float | None, spread: float, bytes_per_token: float, energy: bool
) -> dict[str, Any]:
    point: dict[str, Any] = {"length": length, "mode": mode, "variant": variant, "status": "ok", "reason": None}
    names = ("seconds", "memory", "energy", "operations", "floor", "achieved", "state_bytes")
    if seconds is None:
        return point | {"status": "oom", "reason": "out of memory"} | dict.fromkeys(names)
    median = _median(mode, variant, seconds)
    times = {"median": median, "low": median * (1 - spread), "high": median * (1 + spread), "count": 100, "dropped": 0}
    allocated = int(bytes_per_token * length * (3 if mode == "train" else 1))
    kept = allocated if mode == "train" else None
    return point | {
        "seconds": times,
        "memory": {"allocated": allocated, "reserved": 2 * allocated, "activations": kept, "method": "made up"},
        "energy": {"joules": 500 * median, "window_seconds": 2.0, "calls": 1000} if energy else None,
        "state_bytes": 1024 * length if mode == "decode" else None,
    }


def _work(length: int, mode: str, variant: str, seconds: float, operations: int) -> dict[str, Any]:
    """Operations, the floor that follows from them, and what was achieved."""
    median, moved = _median(mode, variant, seconds), 4 * 32 * 64 * length * 2
    times = {"memory": moved / BANDWIDTH, "compute": operations / RATE}
    bound = max(times, key=lambda name: times[name])
    floor = {"bytes": moved, "operations": operations, "seconds": times[bound], "bound": bound}
    return {
        "operations": operations,
        "floor": floor | {"ratio": median / times[bound]},
        "achieved": {"operations_per_second": operations / median, "bytes_per_second": moved / median},
    }


def write_predictions(path: Path, correct: int, count: int) -> Path:
    """An archive of predictions of which exactly `correct` match the label."""
    label = np.arange(count) % 10
    prediction = np.where(np.arange(count) < correct, label, (label + 1) % 10)
    np.savez_compressed(path, label=label, prediction=prediction)
    return path
