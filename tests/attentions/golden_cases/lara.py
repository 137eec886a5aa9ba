"""Vectors of LARA: the authors' code, which compares queries with one another and segments the padded width.

Some are of pictures, whose landmarks are the cells of a grid instead of segments; cells that do not divide the picture
evenly share tokens. Everything else is as for a row.
"""

import contextlib
from collections.abc import Mapping
from math import isqrt
from unittest import mock

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import HeadwiseAttention
from longspan.attentions.released import authors_lara
from tests.attentions.parity import Replay, Vector, call_with

ROWS = {"adaptive-1d": "projected", "pool": "means", "no-param-pool": "means"}
PICTURES = {"pool": "pooled", "no-param-pool": "means"}
WEIGHTINGS = {"mis-opt": "optimal", "mis-bh": "balance", "mis-biased": "biased"}
PARAMETERS = {
    f"summarise_{ours}.{part}.{kind}": f"param_{theirs}_{name}_{kind}"
    for ours, theirs in (("query", "qbar"), ("key", "kbar"))
    for part, name in (("linear", "linear"), ("norm", "ln"))
    for kind in ("weight", "bias")
}


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    proposals = ROWS if len(sizes["grid"]) == 1 else PICTURES
    if sizes["proposal"] not in proposals or sizes["mis_type"] not in WEIGHTINGS:
        return f"lara has no proposal {sizes['proposal']!r} or no weighting {sizes['mis_type']!r}"
    if len(sizes["grid"]) > 1 and vector.key_mask is not None:
        return "padded tokens of a picture keep their values there; in a row they are set to 0"
    options = {
        "landmarks": sizes["landmarks"],
        "proposal": proposals[sizes["proposal"]],
        "weighting": WEIGHTINGS[sizes["mis_type"]],
        "beta": sizes["alpha_coeff"],
        "antithetic": sizes["antithetics"] and not sizes.get("multisample"),  # several samples come first there
        "samples": 2 if sizes.get("multisample") else 1,
    }
    spec = f"authors_lara({', '.join(f'{name}={value}' for name, value in options.items())})"
    return sampled(spec, vector, sizes["grid"])


class Core(nn.Module):
    """The attention between the projections, with the recorded noise, if any, in place of a draw."""

    def __init__(self, spec: str, vector: Vector, grid: list[int]):
        super().__init__()
        _, heads, _, channels = vector.arrays["q"].shape
        self.layer = attentions.get(spec)(heads * channels, heads, vector.pattern).to(vector.dtype)
        self.train(vector.meta["hyperparameters"]["train"])
        self.recorded = vector.arrays.get("param_noise")
        self.grid = grid

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        assert isinstance(self.layer, HeadwiseAttention)
        with mock.patch.object(self.layer, "noise", side_effect=self._recorded), self._cells():
            return self.layer.attend(q, k, v, key_mask=mask, query_mask=mask)

    def _recorded(self, mu: Tensor) -> Tensor:
        assert self.recorded is not None
        assert self.recorded.shape == mu.shape
        return self.recorded

    def _cells(self) -> contextlib.AbstractContextManager:
        """The means of grid cells in place of those of segments, where the tokens are a picture."""
        if len(self.grid) == 1:
            return contextlib.nullcontext()

        def cell_means(x: Tensor, landmarks: int, *, longer: str) -> tuple[Tensor, None]:
            picture = rearrange(x, "b h (y x) c -> (b h) c y x", y=self.grid[0], x=self.grid[1])
            means = F.adaptive_avg_pool2d(picture, isqrt(landmarks))
            return rearrange(means, "(b h) c y x -> b h (y x) c", h=x.shape[1]), None

        return mock.patch.object(authors_lara, "segment_means", cell_means)


def sampled(spec: str, vector: Vector, grid: list[int]) -> Replay:
    core = Core(spec, vector, grid)
    names = {own: recorded for own, recorded in PARAMETERS.items() if recorded in vector.arrays}

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {f"layer.{own}": arrays[recorded] for own, recorded in names.items()}
        return call_with(core, parameters, (arrays["q"], arrays["k"], arrays["v"], vector.key_mask))

    return Replay(spec, run)
