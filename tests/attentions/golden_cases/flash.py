"""Vectors of FLASH: a layer with its norm before the unit and its residual connection around it.

The package divides the linear part of a padded row by the width of the batch; the unit is given that number here.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.flash import Flash
from tests.attentions.parity import Replay, Vector, agree, call_with

NAMES = {
    "bias": "param_rel_pos_bias__relative_attention_bias__weight",
    "hidden.weight": "param_to_hidden__0__weight",
    "hidden.bias": "param_to_hidden__0__bias",
    "shared.weight": "param_to_qk__0__weight",
    "shared.bias": "param_to_qk__0__bias",
    "gamma": "param_qk_offset_scale__gamma",
    "beta": "param_qk_offset_scale__beta",
    "out.weight": "param_to_out__weight",
    "out.bias": "param_to_out__bias",
}


class Layer(nn.Module):
    def __init__(self, unit: Flash):
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor, norm: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        normed = F.layer_norm(x, x.shape[2:], *norm)
        return self.unit.unit(normed, mask, torch.full((len(x),), x.shape[1])) + x


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    dim, features = vector.arrays["x"].shape[2], vector.arrays["param_qk_offset_scale__gamma"].shape[1]
    agree(vector, query_key_dim=features)
    kind = "laplace" if sizes["laplace"] else "relu2"
    options = f"group={sizes['group_size']}, features={features}, expansion={sizes['expansion_factor']}"
    spec = f"flash({options}, activation={kind}, shift={sizes['shift_tokens']})"
    unit = attentions.get(spec)(dim, 1, vector.pattern)
    assert isinstance(unit, Flash)
    layer = Layer(unit.to(vector.dtype).eval())

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {f"unit.{own}": arrays[recorded] for own, recorded in NAMES.items()}
        parameters["unit.bias"] = parameters["unit.bias"][:, 0]
        norm = (arrays["param_norm__weight"], arrays["param_norm__bias"])
        return call_with(layer, parameters, (arrays["x"], norm, vector.key_mask), {})

    return Replay(spec, run)
