"""Replaying golden vectors: a mechanism's outputs for recorded inputs, compared with the recorded ones.

Every mechanism with vectors has a file `golden_cases/NAME.py` (NAME as in the vector) with one function:

    def replay(vector: Vector) -> Replay | str:

It builds the mechanism with the options in `vector.meta` and returns how to run it, or a sentence that says why the
vector is not expected to match. It depends only on `meta` and the arrays, never on the file name, so that vectors with
other shapes and options need no new code. `headwise` is all that most mechanisms need:

    def replay(vector):
        return headwise(f"linear(eps={vector.meta['hyperparameters']['eps']})", vector)

Outputs and all recorded gradients are compared, within the tolerance that the vector states. Settings in
`meta["hyperparameters"]` that are sizes must agree with the arrays, and all others must be read;
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
        """True = real, as everywhere in the package; in the file True = padded."""
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
    """The hyperparameters of a vector; records which of them were read."""

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
    """Settings that contradict what is replayed."""


class Unreadable(ValueError):
    """A file that is not a vector."""


def read(path: Path) -> Vector:
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "meta"}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"no vector can be read from it: {_said(error)}") from error
    if not isinstance(meta, dict) or "mechanism" not in meta:
        raise Unreadable("its meta does not say which mechanism it is of")
    if arrays.keys() == {"mask"}:  # a file with nothing but a mask
        arrays["out"] = arrays["mask"]
    return Vector(path.stem, meta, arrays)


@cache
def vectors() -> list[Path]:
    """Every vector of a known mechanism: the full collection if present, else the small ones in this repository."""
    folder = FULL if FULL.is_dir() else SHIPPED
    return sorted(path.resolve() for path in folder.glob("*.npz") if known(path.stem.split("__")[0]))


def known(mechanism: str) -> bool:
    """Whether a name in a vector refers to a mechanism of the package, possibly with a suffix for whose code it is."""
    names = attentions.names()
    return _case_file(mechanism) or mechanism in names or mechanism.rpartition("_")[0] in names


def examine(path: Path) -> Verdict:
    """Read and replay any file; problems with it are reported in one line."""
    try:
        return verdict_on(read(path))
    except Unreadable as error:
        return Verdict("mismatch", str(error))


def verdict_on(vector: Vector) -> Verdict:
    """`compare`, with any error reported in one line."""
    try:
        return compare(vector)
    except Exception as error:  # a vector no case handles is a result too; the others still run
        return Verdict("mismatch", f"cannot be replayed: {_said(error)}")


def _said(error: Exception) -> str:
    """The first line of a message; for a KeyError that is only the key."""
    message = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return f"nothing is called {message} in it" if isinstance(error, KeyError) else message


def compare(vector: Vector) -> Verdict:
    """Replay a vector; a mismatch names the array and the size of the difference."""
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
    """Check that settings derived from others, or from the arrays, have these values if they are stated."""
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
    """The attention between the projections, as a separate module so that its parameters can be replaced."""

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
    """1 where `out` is compared: rows whose cotangent is all 0 are unspecified by the recording (see its README)."""
    w = vector.arrays.get("w", torch.ones(1))
    return (w != 0).any(dim=-1, keepdim=True).to(w.dtype)


def _case_file(mechanism: str) -> bool:
    return (Path(__file__).parent / "golden_cases" / f"{mechanism}.py").is_file()
