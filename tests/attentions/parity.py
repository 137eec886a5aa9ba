"""Replaying golden vectors: what a mechanism gives for recorded inputs, beside what was recorded.

Every mechanism with vectors has a file `golden_cases/NAME.py` (NAME as in the vector) with one function:

    def replay(vector: Vector) -> Replay | str:

It builds the mechanism with the options that `vector.meta` asks for and returns how to run it, or a sentence that says
why the vector is not to be matched. What it does depends on `meta` and the arrays alone, never on the name of the file,
so that vectors of other shapes and options need nothing new. `headwise` is all that most mechanisms need:

    def replay(vector):
        return headwise(f"linear(eps={vector.meta['hyperparameters']['eps']})", vector)

Outputs and all recorded gradients are compared, within the tolerance that the vector states. Its settings
(`meta["hyperparameters"]`) must agree with the arrays where they are sizes, and all others must be read;
`golden_reasons.py` is the one list of exceptions.
"""

import importlib
import json
import math
import operator
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from longspan import attentions
from longspan.attentions import Pattern
from tests.attentions.golden_reasons import NOT_READ

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
    def dtype(self) -> torch.dtype:
        return self.arrays["out"].dtype

    @property
    def released(self) -> bool:
        """Recorded from code that departs from its paper in a way one may not want to copy."""
        return self.meta.get("status") == "as released"

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
    compared: tuple[str, ...] = ()  # arrays that agree
    open_rows: int = 0  # rows of the output that were left out


class Settings(dict[str, Any]):
    """The hyperparameters of a vector, which remember what was asked of them."""

    def __init__(self, settings: Mapping[str, Any]):
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


class Contradiction(ValueError):
    """Settings that do not fit what is replayed."""


class Unreadable(ValueError):
    """A file that is no vector."""


def read(path: Path) -> Vector:
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "meta"}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"no vector can be read from it: {_said(error)}") from error
    if not isinstance(meta, dict) or "mechanism" not in meta:
        raise Unreadable("its meta does not say which mechanism it is of")
    if arrays.keys() == {"mask"}:  # a file of a mask alone
        arrays["out"] = arrays["mask"]
    return Vector(path.stem, meta, arrays)


@cache
def vectors() -> list[Path]:
    """Every vector of a mechanism that we know: the full collection, else the small ones in this repository."""
    folder = FULL if FULL.is_dir() else SHIPPED
    return sorted(path.resolve() for path in folder.glob("*.npz") if known(path.stem.split("__")[0]))


def known(mechanism: str) -> bool:
    """Whether a name in a vector means a mechanism of the package: itself, or with a word for whose code it is."""
    names = attentions.names()
    return _case_file(mechanism) or mechanism in names or mechanism.rpartition("_")[0] in names


def examine(path: Path) -> Verdict:
    """Read and replay a file from anywhere; whatever is wrong with it is said in a line."""
    try:
        return verdict_on(read(path))
    except Unreadable as error:
        return Verdict("mismatch", str(error))


def verdict_on(vector: Vector) -> Verdict:
    """`compare`, and whatever is wrong with the vector in a line."""
    try:
        return compare(vector)
    except Exception as error:  # a vector asks for what no case foresaw: that is a result, and others are to follow
        return Verdict("mismatch", f"cannot be replayed: {_said(error)}")


def _said(error: Exception) -> str:
    """The first line of a message; that of a KeyError is nothing but the key."""
    message = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return f"nothing is called {message} in it" if isinstance(error, KeyError) else message


def compare(vector: Vector) -> Verdict:
    """Replay a vector; a mismatch says in which array and by how much."""
    name = vector.meta["mechanism"]
    if not _case_file(name):
        if known(name):
            return Verdict("mismatch", f"no golden_cases/{name}.py says how to replay it, or why not")
        return Verdict("skip", f"no mechanism {name!r} here")
    settings = Settings(vector.meta.get("hyperparameters", {}))
    if wrong := next(_contradictions(settings, vector), None):
        return Verdict("mismatch", wrong)
    vector = replace(vector, meta={**vector.meta, "hyperparameters": settings})
    try:
        replay = importlib.import_module(f"tests.attentions.golden_cases.{name}").replay(vector)
        if isinstance(replay, str):
            return Verdict("skip", replay)
        found = _run(replay, vector)
    except Contradiction as error:
        return Verdict("mismatch", str(error))
    if unread := sorted(key for key in settings.keys() - settings.read if (name, key) not in NOT_READ):
        return Verdict("mismatch", f"nothing reads its {', '.join(unread)}; see golden_reasons.py")
    rows = _compared_rows(vector)
    tolerance = {name: vector.meta["tolerance"][name] for name in ("atol", "rtol")}
    for array, value in found.items():
        expected = vector.arrays[array]
        if value.shape != expected.shape:
            return Verdict("mismatch", f"{array}: shape {tuple(value.shape)} instead of {tuple(expected.shape)}")
        if array == "out":
            value, expected = value * rows, expected * rows
        if not torch.allclose(value, expected.to(value.dtype), **tolerance):
            return Verdict("mismatch", f"{array}: off by {(value - expected).abs().max():.1e} in {replay.mechanism}")
    return Verdict("ok", f"{replay.mechanism}: {', '.join(found)}", tuple(found), int((rows == 0).sum()))


def _contradictions(settings: Settings, vector: Vector) -> Iterator[str]:
    """Sizes that the arrays do not have, and a pattern that is not the vector's."""
    sizes: dict[str, Any] = {"causal": vector.pattern.causal}
    if "q" in vector.arrays:
        sizes["batch"], sizes["heads"], sizes["queries"], sizes["head_dim"] = vector.arrays["q"].shape
        sizes["length"], sizes["value_dim"] = sizes["queries"], vector.arrays["v"].shape[-1]
        sizes["keys"] = vector.arrays["k" if "k" in vector.arrays else "q"].shape[2]
    elif "x" in vector.arrays:
        sizes["batch"], *grid, _ = vector.arrays["x"].shape
        sizes["length"], sizes["shape"] = math.prod(grid), grid
    elif "u" in vector.arrays:
        sizes["batch"], _, sizes["length"] = vector.arrays["u"].shape
    elif vector.arrays["out"].dim() == 3:  # a bare mask
        sizes["heads"], sizes["length"], _ = vector.arrays["out"].shape
    for name, size in sizes.items():
        if name in settings and settings[name] != size:
            yield f"its meta says {name}={settings[name]}, its arrays have {size}"


def agree(vector: Vector, **derived: Any) -> None:
    """Settings that follow from others, or from the arrays, have these values where they are stated."""
    settings = vector.meta["hyperparameters"]
    for name, value in derived.items():
        if name in settings and settings[name] != value:
            raise Contradiction(f"its meta says {name}={settings[name]}, which should be {value}")


def call_with(
    module: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Tensor:
    """The output of a module with these tensors in place of its own, which must have their shapes."""
    for name, tensor in tensors.items():
        own = operator.attrgetter(name)(module)
        if own.shape != tensor.shape:
            raise Contradiction(f"{name} is {tuple(own.shape)} by its meta, but recorded is {tuple(tensor.shape)}")
    return functional_call(module, dict(tensors), args, kwargs)


def headwise(
    spec: str, vector: Vector, parameters: Mapping[str, str] | None = None, *, max_length: int | None = None
) -> Replay:
    """Replay the `attend` of a headwise mechanism; `parameters` maps its parameters and buffers to recorded arrays."""
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern, max_length=max_length, max_context=max_length)
    core = _Core(layer.to(vector.dtype).eval())
    names = parameters or {}

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        tensors = {f"layer.{own}": arrays[recorded] for own, recorded in names.items()}
        query_mask = None if vector.pattern.cross else vector.key_mask
        masks = {"key_mask": vector.key_mask, "query_mask": query_mask}
        return call_with(core, tensors, (arrays["q"], arrays["k"], arrays["v"]), masks)

    return Replay(spec, run)


class _Core(nn.Module):
    """The attention between the projections, as a module of its own so that its parameters can be replaced."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **masks: Tensor | None) -> Tensor:
        return self.layer.attend(q, k, v, **masks)


def _run(replay: Replay, vector: Vector) -> dict[str, Tensor]:
    if "w" not in vector.arrays and not vector.differentiated:
        return {"out": replay.run(vector.arrays)}
    leaves = {name: vector.arrays[name].clone().requires_grad_() for name in vector.differentiated}
    out = replay.run({**vector.arrays, **leaves})
    gradients = torch.autograd.grad((out * vector.arrays["w"]).sum(), list(leaves.values()), allow_unused=True)
    found = {"out": out.detach()}
    for name, gradient in zip(leaves, gradients, strict=True):
        found[f"d{name}"] = torch.zeros_like(leaves[name]) if gradient is None else gradient
    return found


def _compared_rows(vector: Vector) -> Tensor:
    """1 where `out` counts: rows whose cotangent is wholly 0 are left open by the recording (see its README)."""
    w = vector.arrays.get("w", torch.ones(1))
    return (w != 0).any(dim=-1, keepdim=True).to(w.dtype)


def _case_file(mechanism: str) -> bool:
    return (Path(__file__).parent / "golden_cases" / f"{mechanism}.py").is_file()
