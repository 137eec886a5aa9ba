"""Replaying golden vectors: what a mechanism gives for recorded inputs, beside what was recorded.

Every mechanism with vectors has a file `golden_cases/NAME.py` (NAME as in the vector) with one function:

    def replay(vector: Vector) -> Replay | str:

It builds the mechanism with the options that `vector.meta` asks for and returns how to run it, or a sentence that says
why the vector is not to be matched. Nothing has to be registered. `headwise` is all that most mechanisms need:

    def replay(vector):
        return headwise(f"linear(eps={vector.meta['hyperparameters']['eps']})", vector)

Outputs and all recorded gradients are compared, within the tolerance that the vector states.
"""

import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from longspan import attentions
from longspan.attentions import Pattern

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "tests" / "golden"  # small vectors, in every clone
FULL = ROOT / ".." / "shared" / "golden"  # all of them, where they exist


@dataclass(frozen=True)
class Vector:
    """One recorded case: its arrays as tensors, its `meta` as a dictionary."""

    name: str
    meta: dict[str, Any]
    arrays: dict[str, Tensor]

    @property
    def pattern(self) -> Pattern:
        return Pattern.parse(self.meta["pattern"])

    @property
    def key_mask(self) -> Tensor | None:
        """True = real, as everywhere in the package; the file says True = padded."""
        padded = self.arrays.get("key_padding_mask")
        return None if padded is None else ~padded

    @property
    def differentiated(self) -> list[str]:
        """The arrays whose gradient is recorded."""
        return [name for name in self.arrays if f"d{name}" in self.arrays]


@dataclass(frozen=True)
class Replay:
    """How to compute `out` from the arrays of a vector; those with a recorded gradient arrive as leaves."""

    mechanism: str
    run: Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Verdict:
    status: Literal["ok", "mismatch", "skip"]
    detail: str


def read(path: Path) -> Vector:
    with np.load(path, allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "meta"}
    return Vector(path.stem, meta, arrays)


def vectors() -> list[Path]:
    """Every vector of a mechanism that has a case file: the full collection, else the small ones in this repository."""
    folder = FULL if FULL.is_dir() else SHIPPED
    return sorted(path.resolve() for path in folder.glob("*.npz") if _case_file(path.stem.split("__")[0]))


def compare(vector: Vector) -> Verdict:
    """Replay a vector; a mismatch says in which array and by how much."""
    name = vector.meta["mechanism"]
    if not _case_file(name):
        return Verdict("skip", f"no mechanism {name!r} here")
    replay = importlib.import_module(f"tests.attentions.golden_cases.{name}").replay(vector)
    if isinstance(replay, str):
        return Verdict("skip", replay)
    found = _run(replay, vector)
    rows = _compared_rows(vector)
    for array, value in found.items():
        expected = vector.arrays[array]
        if value.shape != expected.shape:
            return Verdict("mismatch", f"{array}: shape {tuple(value.shape)} instead of {tuple(expected.shape)}")
        if array == "out":
            value, expected = value * rows, expected * rows
        if not torch.allclose(value, expected, **vector.meta["tolerance"]):
            return Verdict("mismatch", f"{array}: off by {(value - expected).abs().max():.1e} in {replay.mechanism}")
    return Verdict("ok", f"{replay.mechanism}: {', '.join(found)}")


def headwise(
    spec: str, vector: Vector, parameters: Mapping[str, str] | None = None, *, max_length: int | None = None
) -> Replay:
    """Replay the `attend` of a headwise mechanism; `parameters` maps its parameters and buffers to recorded arrays."""
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern, max_length=max_length, max_context=max_length)
    core = _Core(layer.to(vector.arrays["out"].dtype).eval())
    names = parameters or {}

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        tensors = {f"layer.{own}": arrays[recorded] for own, recorded in names.items()}
        query_mask = None if vector.pattern.cross else vector.key_mask
        masks = {"key_mask": vector.key_mask, "query_mask": query_mask}
        return functional_call(core, tensors, (arrays["q"], arrays["k"], arrays["v"]), masks)

    return Replay(spec, run)


class _Core(nn.Module):
    """The attention between the projections, as a module of its own so that its parameters can be replaced."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **masks: Tensor | None) -> Tensor:
        return self.layer.attend(q, k, v, **masks)


def _run(replay: Replay, vector: Vector) -> dict[str, Tensor]:
    leaves = {name: vector.arrays[name].clone().requires_grad_() for name in vector.differentiated}
    out = replay.run({**vector.arrays, **leaves})
    gradients = torch.autograd.grad((out * vector.arrays["w"]).sum(), list(leaves.values()), allow_unused=True)
    found = {"out": out.detach()}
    for name, gradient in zip(leaves, gradients, strict=True):
        found[f"d{name}"] = torch.zeros_like(leaves[name]) if gradient is None else gradient
    return found


def _compared_rows(vector: Vector) -> Tensor:
    """1 where `out` counts: rows whose cotangent is wholly 0 are left open by the recording (see its README)."""
    w = vector.arrays["w"]
    return (w != 0).any(dim=-1, keepdim=True).to(w.dtype)


def _case_file(mechanism: str) -> bool:
    return (Path(__file__).parent / "golden_cases" / f"{mechanism}.py").is_file()
