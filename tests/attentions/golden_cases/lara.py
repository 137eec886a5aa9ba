"""Vectors of LARA: the authors' code, which compares queries with one another and cuts the padded width.

Two of them are pictures, summarised cell by cell. With the tokens put in the order of cells a cell is a segment, and as
LARA does not care for the order otherwise, that is how they are replayed.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from unittest import mock

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.func import functional_call

from longspan import attentions
from longspan.attentions import HeadwiseAttention
from tests.attentions.parity import Replay, Vector

PROPOSALS = {"adaptive-1d": "projected", "pool": "pooled", "no-param-pool": "means"}
WEIGHTINGS = {"mis-opt": "optimal", "mis-bh": "balance", "mis-biased": "biased"}
PARAMETERS = {
    f"summarise_{ours}.{part}.{kind}": f"param_{theirs}_{name}_{kind}"
    for ours, theirs in (("query", "qbar"), ("key", "kbar"))
    for part, name in (("linear", "linear"), ("norm", "ln"))
    for kind in ("weight", "bias")
}


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("multisample"):
        return "two samples are drawn of each proposal there; lara draws one, or a pair that mirrors each other"
    if sizes["proposal"] not in PROPOSALS or sizes["mis_type"] not in WEIGHTINGS:
        return f"lara has no proposal {sizes['proposal']!r} or no weighting {sizes['mis_type']!r}"
    if len(sizes["grid"]) > 1 and any(side % isqrt(sizes["landmarks"]) for side in sizes["grid"]):
        return "cells that do not divide the grid share tokens there; segments of lara never do"
    options = {
        "landmarks": sizes["landmarks"],
        "proposal": PROPOSALS[sizes["proposal"]],
        "weighting": WEIGHTINGS[sizes["mis_type"]],
        "beta": sizes["alpha_coeff"],
        "antithetic": sizes["antithetics"],
    }
    spec = f"authors_lara({', '.join(f'{name}={value}' for name, value in options.items())})"
    return in_order_of_cells(sampled(spec, vector), sizes["grid"], sizes["landmarks"])


class Core(nn.Module):
    """The attention between the projections, with the recorded noise in place of a draw, where there is any."""

    def __init__(self, spec: str, vector: Vector):
        super().__init__()
        _, heads, _, channels = vector.arrays["q"].shape
        self.layer = attentions.get(spec)(heads * channels, heads, vector.pattern).to(vector.dtype)
        self.train(vector.meta["hyperparameters"]["train"])
        self.recorded = vector.arrays.get("param_noise")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        assert isinstance(self.layer, HeadwiseAttention)
        with mock.patch.object(self.layer, "noise", return_value=self.recorded):
            return self.layer.attend(q, k, v, key_mask=mask, query_mask=mask)


def sampled(spec: str, vector: Vector) -> Replay:
    core = Core(spec, vector)
    names = {own: recorded for own, recorded in PARAMETERS.items() if recorded in vector.arrays}

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {f"layer.{own}": arrays[recorded] for own, recorded in names.items()}
        return functional_call(core, parameters, (arrays["q"], arrays["k"], arrays["v"], vector.key_mask))

    return Replay(spec, run)


def in_order_of_cells(rows: Replay, grid: list[int], landmarks: int) -> Replay:
    if len(grid) == 1:
        return rows
    places = torch.arange(grid[0] * grid[1]).reshape(grid)
    side = isqrt(landmarks)
    order = rearrange(places, "(r y) (s x) -> (r s y x)", r=side, s=side)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        ordered = {name: arrays[name][:, :, order] for name in ("q", "k", "v")}
        return rows.run({**arrays, **ordered})[:, :, order.argsort()]

    return replace(rows, run=run)
