"""The identity of a mechanism's code: a version and a fingerprint for a built-in, a source hash for a plug-in.

    code_identity(attentions.get("performer"))
    # {"mechanism_version": 1, "mechanism_fingerprint": {"noncausal_self": {"output": [...], "gradient": [...]}, ...}}

A fingerprint holds, for each declared pattern, the root mean square of the output and three random projections of it,
and the same of the gradient with respect to the inputs: a float64 layer on the CPU, two rows of 600 tokens of which one
is padded, weights from a fixed seed. The numbers are stored and compared with a tolerance (`results/code_identity.py`)
rather than hashed: on another machine or with another version of torch, a hash of rounded numbers changes whenever one
of them lies near a rounding boundary. Mechanisms initialise their weights with functions that draw the same numbers in
all versions of torch (`normal_`, `uniform_`), which `trunc_normal_` does not.

What carries something to the next layer or segment has a second fingerprint for each pattern, of `carried`: a language
model in segments never calls `forward`. A fingerprint sees initialisation, forward and backward in evaluation mode, not
what a mechanism does in training mode alone.
"""

import functools
import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.attentions import Attention, Mechanism, Pattern
from longspan.core.plugin_source import source_hash
from longspan.kernels.packing import real

DIM, HEADS = 16, 2
LENGTH, CONTEXT = 600, 610  # beyond the default window, blocks, chunk and number of landmarks of every built-in
REAL = 521  # tokens of the padded row
SEGMENT, PASSES = 75, 2  # of a row, for `carried`: so many tokens that memories overflow
PROJECTIONS = 3
DIGITS = 6  # two more than the comparison needs
SCALE = 3.0  # of the inputs: attention weights far from uniform
SEED = 0

Fingerprint = dict[str, dict[str, list[float]]]


def code_identity(mechanism: Mechanism) -> dict[str, Any]:
    """What goes into the settings of a card, and what `same_code` compares."""
    if not is_builtin(mechanism):
        return {"mechanism_sha256": source_hash(mechanism.cls)}
    found = {"mechanism_version": mechanism.meta.version}
    numbers = fingerprint(mechanism)
    return found if numbers is None else found | {"mechanism_fingerprint": numbers}


def is_builtin(mechanism: Mechanism) -> bool:
    return mechanism.cls.__module__.startswith("longspan.")


def fingerprint(mechanism: Mechanism) -> Fingerprint | None:
    """The numbers of every declared pattern, or None for options that cannot run here (GPU-only kernels)."""
    return _cached(mechanism.cls, tuple(sorted(mechanism.options.items())))


@functools.cache
def _cached(cls: type[Attention], options: tuple[tuple[str, Any], ...]) -> Fingerprint | None:
    try:
        found = {pattern.value: _numbers(cls, dict(options), pattern) for pattern in cls.meta.patterns}
        if cls.meta.carries:
            found |= {f"{p.value}, carried": _numbers(cls, dict(options), p, carried=True) for p in cls.meta.patterns}
        return found
    except Exception:  # at these sizes or without a GPU; the version alone identifies it then
        return None


@torch.enable_grad()
def _numbers(
    cls: type[Attention], options: dict[str, Any], pattern: Pattern, *, carried: bool = False
) -> dict[str, list[float]]:
    mask = real(torch.tensor([LENGTH, REAL]), LENGTH)
    inputs, masks = [(SCALE * _noise("x", 2, LENGTH, DIM)).requires_grad_()], {"mask": mask}
    if pattern.cross:
        inputs.append((SCALE * _noise("context", 2, CONTEXT, DIM)).requires_grad_())
        masks["context_mask"] = real(torch.tensor([REAL, CONTEXT]), CONTEXT)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)  # torch.manual_seed would also reseed every GPU
        layer = cls(DIM, HEADS, pattern, max_length=LENGTH, max_context=CONTEXT, **options).double().eval()
        y = _carried(layer, *inputs, **masks) if carried else layer(*inputs, **masks)
    y = y * mask.repeat(1, y.shape[1] // LENGTH)[..., None]  # what a padded position holds is not defined
    directions = [_noise(f"direction {k}", *y.shape) for k in range(PROJECTIONS)]
    total = (y * torch.stack(directions).sum(dim=0)).sum()
    gradients = torch.autograd.grad(total, inputs, materialize_grads=True)
    return {"output": _summary(y), "gradient": _summary(torch.cat(gradients, dim=1))}


def _carried(layer: Attention, x: Tensor, *context: Tensor, mask: Tensor, **context_mask: Tensor) -> Tensor:
    """The outputs of all calls, one after the other, each given what the one before carries: of a row passed twice."""
    in_segments = layer.meta.carries == "segments"
    length, parts, carry = SEGMENT if in_segments else LENGTH, [], None
    for first in (*range(0, LENGTH, length),) * PASSES:
        part = slice(first, first + length)
        y, carry = layer.carried(x[:, part], *context, mask=mask[:, part], carry=carry, **context_mask)
        carry = carry.detached() if in_segments and carry is not None else carry
        parts.append(y)
    return torch.cat(parts, dim=1)


def _summary(values: Tensor) -> list[float]:
    """Root mean square, and means of products with fixed noise, all on one scale."""
    values = values.detach()
    numbers = [values.square().mean().sqrt()]
    numbers += [
        (values * _noise(f"direction {k}", *values.shape)).sum() / math.sqrt(values.numel()) for k in range(PROJECTIONS)
    ]
    return [float(f"{number.item():.{DIGITS}g}") for number in numbers]


@functools.cache
def _noise_values(name: str, count: int) -> np.ndarray:
    """Uniform with variance 1, from a hash: the same on every machine and with every version of torch."""
    stream = hashlib.shake_256(f"longspan fingerprint {name}".encode()).digest(8 * count)
    return (np.frombuffer(stream, dtype="<u8") / 2.0**64 - 0.5) * math.sqrt(12)


def _noise(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(_noise_values(name, math.prod(shape)).copy()).view(shape)
