"""Probe cards with made-up answers to every question, for tests that read them."""

from pathlib import Path
from typing import Any

import numpy as np

from longspan.results.card import Card
from longspan.results.store import Store
from tests.results.factory import SPAN, make_card, make_measurement, make_probe

GRID = [[0.0, 1.0], [2.0, 3.0]]


def _on(task: str, who: dict[str, Any]) -> dict[str, Any]:
    return {"task": task, **who}


def span_card(mean: float = 12.0, **who: Any) -> Card:
    return make_probe("span", SPAN | {"mean": mean}, **who)


def gap_card(train: float, test: float, **who: Any) -> Card:
    pair = {"train": {"accuracy": train, "count": 100}, "test": {"accuracy": test, "count": 50}}
    return make_probe("gap", pair | {"gap": train - test}, **_on("image", who))


def transfer_card(accuracy: float = 0.5, **who: Any) -> Card:
    found = {"accuracy": accuracy, "chance": 0.5, "count": 100, "standard_error": 0.05, "above_chance": False}
    found |= {"from_accuracy": 0.8, "from_chance": 0.5, "from_length": 1024, "to_length": 16384}
    return make_probe("transfer", found, **_on("pathfinder", who))


def rollout_card(**who: Any) -> Card:
    example = {"row": 3, "label": 1, "prediction": 0, "image": GRID, "map": GRID, "lit_area": 0.75, "lit_share": 0.9}
    return make_probe("rollout", {"query": "cls", "examples": [example] * 2}, **_on("pathfinder", who))


def embeddings_card(**who: Any) -> Card:
    found = {"intensities": 256, "side": 4, "by_intensity_distance": [1.0, *[0.1] * 255]}
    found |= {"beside": 0.4, "below": 0.6, "others": 0.1}
    return make_probe("embeddings", found, **_on("image", who))


def fill(folder: Path, **who: Any) -> Path:
    """A store with an answer to every question, runs on Image and the five tasks, and measurements."""
    store = Store(folder)
    for card in (span_card(**who), gap_card(0.9, 0.4, **who), transfer_card(**who), rollout_card(**who)):
        store.add(card)
    arrays = folder.parent / "arrays.npz"
    np.savez_compressed(arrays, intensity=np.eye(256, dtype=np.float16), position=np.eye(16, dtype=np.float16))
    store.add(embeddings_card(**who), files={"arrays": arrays})
    arrays.unlink()
    for mechanism, accuracy in (("softmax", 0.6), ("linear", 0.5)):
        for task in ("listops", "text", "retrieval", "image", "pathfinder"):
            store.add(make_card(mechanism, task, accuracy=accuracy, tier="full"))
        store.add(make_measurement(mechanism, {4000: 1.0 if mechanism == "softmax" else 5.0}))
    return folder
