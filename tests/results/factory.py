"""Cards for tests. Every number here is made up; no run stands behind any of them."""

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
    """A valid run card; keyword arguments that are no parameter replace whole fields."""
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
            "recipe": {"steps": 500, "batch_size": 32},
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
        "selected_step": 400 if ok else None,
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
    """A valid probe card, of a run where one is given; keyword arguments that are no parameter replace whole fields."""
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


def write_predictions(path: Path, correct: int, count: int) -> Path:
    """An archive of predictions of which exactly `correct` hit the label."""
    label = np.arange(count) % 10
    prediction = np.where(np.arange(count) < correct, label, (label + 1) % 10)
    np.savez_compressed(path, label=label, prediction=prediction)
    return path
