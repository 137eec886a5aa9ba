"""Probe cards with made-up answers to every question, for tests that read them."""

from pathlib import Path
from typing import Any

import numpy as np

from longspan.results.card import Card, seal
from longspan.results.store import Store
from tests.results.factory import SPAN, make_card, make_core, make_measurement, make_probe, write_predictions

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


def extrapolation_card(perplexities=(9.0, 8.0, None), **who: Any) -> Card:
    points = [
        {"length": length, "perplexity": value, "reason": None if value else "its weights do not fit 256"}
        for length, value in zip((64, 128, 256), perplexities, strict=True)
    ]
    return make_probe("extrapolation", {"trained_length": 128, "tokens": 512, "points": points}, **_on("lm", who))


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
    store.add(extrapolation_card(**who))
    arrays = folder.parent / "arrays.npz"
    np.savez_compressed(arrays, intensity=np.eye(256, dtype=np.float16), position=np.eye(16, dtype=np.float16))
    store.add(embeddings_card(**who), files={"arrays": arrays})
    arrays.unlink()
    answers = folder.parent / "predictions.npz"
    for mechanism, accuracy in (("softmax", 0.6), ("linear", 0.5)):
        for task in ("listops", "text", "retrieval", "image", "pathfinder"):
            files = {"predictions": write_predictions(answers, int(2000 * accuracy), 2000)} if task == "listops" else {}
            store.add(make_card(mechanism, task, accuracy=accuracy, tier="full"), files=files)
        store.add(make_card(mechanism, "text_1k", accuracy=accuracy, tier="full"))
        store.add(make_measurement(mechanism, {4000: 1.0 if mechanism == "softmax" else 5.0}))
    answers.unlink()
    for card in lab_cards(who.get("mechanism", "performer")):
        if card["pattern"] == "causal_self":
            for when in ("2025-12-02T03:04:05Z", card["created"]):  # on two occasions
                store.add(seal({name: value for name, value in card.items() if name != "sha256"} | {"created": when}))
    return folder


LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536)


def lab_cards(guest: str = "performer", title: str | None = None) -> list[Card]:
    """Core measurements: softmax, the naive one that runs out of memory, linear and a guest; two patterns."""
    seconds: dict[str, dict[int, float | None]] = {
        "softmax": {n: 1e-5 + 2e-11 * n**2 for n in LENGTHS},
        'softmax(kernel="plain")': {n: None if n > 16384 else 2e-5 + 3e-10 * n**2 for n in LENGTHS},
        "linear": {n: 5e-5 + 1e-8 * n for n in LENGTHS},
        guest: {n: 9e-5 + 4e-8 * n for n in LENGTHS},
    }
    cards = []
    for mechanism, times in seconds.items():
        exact = mechanism.startswith("softmax")
        for pattern in ("noncausal_self", "causal_self"):
            modes = ("forward", "train", "decode") if pattern == "causal_self" else ("forward", "train")
            how: dict[str, Any] = {"exact": exact, "cost": "n^2" if exact else "n", "joules_at": (4096, 16384)}
            how |= {"title": title if mechanism == guest else None}
            cards.append(make_core(mechanism, times, pattern=pattern, modes=modes, **how))
    return cards
