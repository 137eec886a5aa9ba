"""Vectors of the Sparse Transformer: OpenAI's two patterns as separate heads, LRA's merged ones, and bare masks."""

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import HeadwiseAttention
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if "pattern" in sizes:
        return _merged(vector, sizes["pattern"])
    stride = sizes["local_attn_ctx"]
    if sizes["mode"] == "fixed":
        summary = sizes["vertsize"] * sizes["block"]
        spec = f"sparse_transformer(kind=fixed, stride={stride}, summary={summary}, bands={sizes['num_verts']})"
    else:
        part = {"local": "near", "strided": "far"}[sizes["mode"]]
        spec = f"sparse_transformer(kind=strided, stride={stride}, part={part})"
    return headwise(spec, vector) if "q" in vector.arrays else _mask(spec, vector)


def _merged(vector: Vector, patterns: str) -> Replay | str:
    """LRA names the patterns that it merges: `local(5) or strided(5)`, `fixed1(6) or fixed2(6, c=2)`."""
    names, numbers = re.findall(r"[a-z]+\d?(?=\()", patterns), re.findall(r"(?<![a-z])\d+", patterns)
    if names == ["fixed1", "fixed2"] and numbers[0] == numbers[1]:  # the release adds the first token of a block
        encoder = replace(vector, meta={**vector.meta, "pattern": "NS"})
        return headwise(f"lra_sparse_transformer(block={numbers[0]}, summary={numbers[2]}, cls=False)", encoder)
    part = {("local", "strided"): "both", ("local",): "near", ("strided",): "far"}.get(tuple(names))
    if part is None or len(set(numbers)) > 1:
        return f"sparse_transformer merges a window and a stride of one size, or two fixed patterns, not {patterns!r}"
    return headwise(f"sparse_transformer(kind=strided, stride={numbers[0]}, part={part})", vector)


def _mask(spec: str, vector: Vector) -> Replay:
    """A bare mask, compared with the pairs that get weight when all queries and keys are equal."""
    heads, length, _ = vector.arrays["out"].shape
    layer = attentions.get(spec)(heads, heads, vector.pattern).double().eval()
    assert isinstance(layer, HeadwiseAttention)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        q = torch.ones(1, heads, length, 1, dtype=torch.float64)
        weights = layer.weights(q, q)
        assert weights is not None
        return (weights[0] > 0).double()

    return Replay(spec, run)
