"""A vector of another shape, mask or option than the recorded ones, made by a formula that shares no code with ours.

A formula takes the arrays, in float64, and returns `out`; gradients follow by differentiating it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.attentions import parity

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class Unseen:
    """What a recording would contain, and the formula behind it."""

    mechanism: str
    pattern: str
    law: Callable[[Arrays], Tensor]
    shapes: dict[str, tuple[int, ...]]  # arrays drawn from a normal distribution, and differentiated
    options: dict[str, Any] = field(default_factory=dict)
    given: Arrays = field(default_factory=dict)  # arrays used as given
    mask: tuple[int, ...] = ()  # the number of real keys in each row
    source: str = "github somebody/somewhere, file.py"
    status: str = "reference"

    def save(self, path: Path) -> None:
        generator = torch.Generator().manual_seed(3)
        leaves = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
            for name, shape in self.shapes.items()
        }
        arrays = {**leaves, **self.given}
        if self.mask:
            width = next(self.shapes[name] for name in ("k", "x") if name in self.shapes)[-2]
            arrays["key_padding_mask"] = torch.arange(width) >= torch.tensor(self.mask)[:, None]
        out = self.law(arrays)
        w = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        if self.mask and self.pattern in ("NS", "CS"):
            w = w.masked_fill(arrays["key_padding_mask"][:, None, :, None], 0)
        gradients = torch.autograd.grad((out * w).sum(), list(leaves.values()), allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            arrays[f"d{name}"] = torch.zeros_like(leaf) if gradient is None else gradient
        meta = {
            "mechanism": self.mechanism,
            "case": "unseen",
            "pattern": self.pattern,
            "hyperparameters": self.options,
            "source": self.source,
            "status": self.status,
            "tolerance": {"atol": 1e-9, "rtol": 1e-8},
        }
        arrays |= {"out": out, "w": w}
        np.savez(path, **{"meta": np.array(json.dumps(meta)), **{n: a.detach().numpy() for n, a in arrays.items()}})


def qkv(b: int, h: int, n: int, m: int, c: int, e: int | None = None) -> dict[str, tuple[int, ...]]:
    return {"q": (b, h, n, c), "k": (b, h, m, c), "v": (b, h, m, e or c)}


def hidden(a: Arrays) -> Tensor | float:
    """Added to scores: 0 for a real key, -1e30 for a padded one (finite, since a row may see no other key)."""
    padded = a.get("key_padding_mask")
    return 0.0 if padded is None else torch.zeros(padded.shape).masked_fill(padded, -1e30)[:, None, None].double()


def seen(a: Arrays, allowed: Tensor) -> Tensor:
    """Softmax attention over allowed pairs."""
    scores = a["q"] @ a["k"].mT / a["q"].shape[-1] ** 0.5 + hidden(a)
    return scores.masked_fill(~allowed, -1e32).softmax(dim=-1) @ a["v"]


def places(n: int, m: int | None = None) -> tuple[Tensor, Tensor]:
    return torch.arange(n)[:, None], torch.arange(m or n)


def check(unseen: Unseen, folder: Path) -> None:
    """The vector is matched in its output and in the gradient of every array that was drawn."""
    unseen.save(folder / "unseen.npz")
    verdict = parity.examine(folder / "unseen.npz")
    assert verdict.status == "ok", verdict.detail
    assert all(f"d{name}" in verdict.detail for name in unseen.shapes), verdict.detail
