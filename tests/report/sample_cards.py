"""Cards with samples beside them: synthetic speech, point clouds and images, not from a model."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from longspan.results.store import Store
from tests.results.factory import make_card

RATE, HOP = 22_050, 256


def speech(texts: tuple[str, ...], seconds: float = 1.5, noise: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """A gliding tone for each text; the generated one is longer and noisier."""
    waves, mels = {"made": [], "true": []}, {"made": [], "true": []}
    rng = np.random.default_rng(seed)
    for place, _ in enumerate(texts):
        for side, length in ("true", seconds), ("made", seconds * (1.2 - 0.3 * place)):
            at = np.arange(int(length * RATE)) / RATE
            glide = np.sin(2 * np.pi * (200 + 60 * place) * at * (1 + at / 4)) * np.exp(-at)
            rough = noise * rng.normal(size=len(at)) if side == "made" else 0.0
            waves[side].append(((0.4 * glide + 0.1 * rough).clip(-1, 1) * 32767).astype(np.int16))
            frames, mel = np.arange(1 + len(at) // HOP)[:, None], np.arange(80)[None]
            band = 12 + 6 * place + frames * HOP / RATE * 14
            ripples = sum(np.exp(-np.square((mel - band * k) / 3)) / k for k in (1, 2, 3))
            extra = noise * rng.normal(size=(len(frames), 80)) if side == "made" else 0.0
            mels[side].append((7 * ripples - 9 - frames * HOP / RATE + extra).astype(np.float16))
    found: dict[str, Any] = {"kind": np.array("speech"), "text": np.array(texts), "rate": np.array(RATE)}
    for name, parts in ("wave", waves), ("mel", mels):
        for side in "made", "true":
            found[f"{side}_{name}"] = np.concatenate(parts[side])
            found[f"{side}_{name}_edges"] = np.cumsum([0, *map(len, parts[side])])
    return found


def clouds(categories: tuple[str, ...], noise: float = 0.02, seed: int = 0) -> dict[str, Any]:
    """A chair of boxes: its surface, its left part, and a noisy copy."""
    rng = np.random.default_rng(seed)
    boxes = [((-0.3, 0, -0.3), (0.3, 0.05, 0.3)), ((-0.3, 0.05, 0.25), (0.3, 0.5, 0.3))]
    boxes += [((x, -0.45, z), (x + 0.05, 0, z + 0.05)) for x in (-0.3, 0.25) for z in (-0.3, 0.25)]
    low, high = (np.array(side) for side in zip(*boxes, strict=True))
    which = rng.choice(len(boxes), size=(len(categories), 4096), p=[0.4, 0.36, 0.06, 0.06, 0.06, 0.06])
    truth = low[which] + rng.random((*which.shape, 3)) * (high - low)[which]
    order = np.argsort(truth[..., 0], axis=1)[:, :2048, None]
    return {
        "kind": np.array("clouds"),
        "category": np.array(categories),
        "partial": np.take_along_axis(truth, order, axis=1).astype(np.float16),
        "completed": (truth + noise * rng.normal(size=truth.shape)).astype(np.float16),
        "truth": truth.astype(np.float16),
    }


def pictures(count: int = 3, noise: float = 12, seed: int = 0) -> dict[str, Any]:
    """Discs on a colour gradient at 128 x 128, and the same at 16 x 16."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:128, :128] / 128
    truth = []
    for place in range(count):
        disc = np.hypot(x - 0.5, y - 0.4 - 0.05 * place) < 0.25
        colours = np.stack([200 * x + 40, 180 * y + 20 * place, 255 * (1 - x) * y], axis=-1)
        truth.append(np.where(disc[..., None], [240, 190 - 30 * place, 90], colours))
    truth = np.stack(truth)
    low = truth.reshape(count, 16, 8, 16, 8, 3).mean(axis=(2, 4))
    bicubic = np.stack([np.array(Image.fromarray(small.astype(np.uint8)).resize((128, 128), 3)) for small in low])
    restored = (0.7 * truth + 0.3 * bicubic + noise * rng.normal(size=truth.shape)).clip(0, 255)
    sides = {"low": low, "bicubic": bicubic, "restored": restored, "truth": truth}
    return {"kind": np.array("pictures"), **{name: side.astype(np.uint8) for name, side in sides.items()}}


def add(store: Store, folder: Path, mechanism: str, task: str, samples: dict[str, Any], **fields: Any) -> Path:
    """Put a card with these samples into the store; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.npz"
    np.savez_compressed(path, allow_pickle=False, **samples)
    return store.add(make_card(mechanism, task, **fields), files={"samples": path})


def fill(folder: Path, hostile: str = "a text", title: str = "A title") -> Store:
    """A store with two cards of speech, two of clouds, one of images, and one with hostile text."""
    store, scratch = Store(folder / "cards"), folder / "scratch"
    said = ("The first sentence that a network was taught to speak.", "And a second one.")
    add(store, scratch, "softmax", "tts_fastspeech2", speech(said, noise=0.3), variant="imported", chance=None)
    add(store, scratch, "local", "tts_fastspeech2", speech(said, noise=1.0), variant="imported", chance=None)
    add(store, scratch, "softmax", "point_cloud_completion", clouds(("chair", "sofa")), variant="imported", chance=None)
    seats = clouds(("chair", hostile), noise=0.05)
    add(store, scratch, "abc", "point_cloud_completion", seats, variant="imported", chance=None, title=title)
    add(store, scratch, "softmax", "super_resolution", pictures(), variant="standin", chance=None)
    add(store, scratch, "guest", "tts_transformer", speech((hostile,)), variant="imported", chance=None, title=title)
    return store
