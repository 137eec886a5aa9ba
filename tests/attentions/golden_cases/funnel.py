"""Vectors of the Funnel Transformer: its core between the projections, in a layer that pools or in one after pooling.

Where queries are pooled the pattern is recorded as NC, since there are fewer queries than keys, although all belong to
one sequence. Positions (in both of the source's forms) and pooling are compared with ours, not copied.
"""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.funnel import Funnel
from longspan.attentions.relative import waves
from tests.attentions.parity import Contradiction, Replay, Vector, call_with


class Core(nn.Module):
    def __init__(self, layer: Funnel):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **more) -> Tensor:
        return self.layer.mix(q, k, v, **more)


def replay(vector: Vector) -> Replay:
    settings, arrays = vector.meta["hyperparameters"], vector.arrays
    (_, heads, n, channels), m = arrays["q"].shape, arrays["k"].shape[2]
    fewer = settings["pool_q_only"] and n != m
    block, step = settings["block_index"], 2 if fewer else 1
    unit = 2 ** (block - 1 if fewer else block)  # tokens between two keys
    options = {"pool": settings.get("pooling_type", "mean"), "pool_q_only": settings["pool_q_only"]}
    options |= {"separate_cls": settings["separate_cls"]}
    options |= {"token_types": "token_type_mat" in arrays}
    spec = f"funnel({', '.join(f'{name}={value}' for name, value in options.items())})"
    dim = arrays["param_r_kernel"].shape[0]
    layer = attentions.get(spec)(dim, heads, Pattern.NONCAUSAL_SELF, inner=heads * channels)
    assert isinstance(layer, Funnel)
    core = Core(layer.to(vector.dtype).eval())
    place = torch.arange(n)[:, None] * step - int(settings["separate_cls"] and fewer) - torch.arange(m)
    same_pools(layer, vector)
    same_places(place * unit, vector)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {"layer.u": arrays["param_r_w_bias"], "layer.w": arrays["param_r_r_bias"]}
        parameters["layer.distance.weight"] = rearrange(arrays["param_r_kernel"], "d h c -> (h c) d")
        more = {"step": step, "unit": unit, "key_mask": vector.key_mask}
        if "token_type_mat" in arrays:
            parameters |= {"layer.z": arrays["param_r_s_bias"], "layer.types": arrays["param_seg_embed"]}
            more["same"] = arrays["token_type_mat"]
        return call_with(core, parameters, (arrays["q"], arrays["k"], arrays["v"]), more)

    return Replay(spec, run)


def same_pools(layer: Funnel, vector: Vector) -> None:
    """With `truncate_seq` the source drops the last token before pooling; we never do."""
    settings, found = vector.meta["hyperparameters"], vector.arrays.get("x")
    cut = settings["truncate_seq"] and settings["separate_cls"]
    if found is None:
        return
    expected = vector.arrays["x_pooled"]
    while found.shape[1] > expected.shape[1]:  # once for each block
        found = layer.pooled(found[:, :-1] if cut else found)[0]
    if found.shape != expected.shape or not torch.allclose(found, expected):
        raise Contradiction("its pooled tokens are not what its meta says")


def same_places(distance: Tensor, vector: Vector) -> None:
    """The angles of `distance`, [n, m], in every pair that uses them."""
    settings, arrays = vector.meta["hyperparameters"], vector.arrays
    counts = torch.ones(distance.shape, dtype=torch.bool)
    if settings["separate_cls"]:
        counts[0], counts[:, 0] = False, False
    if "cls_mask" in arrays and not torch.equal(arrays["cls_mask"] != 0, counts):
        raise Contradiction("its cls_mask is not what its meta says")
    rho = waves(distance[counts], arrays["param_r_kernel"].shape[0], vector.dtype)
    if settings["attention_type"] == "factorized":
        left = torch.cat([arrays["param_phi"], arrays["param_pi"]], dim=1)
        right = torch.cat([arrays["param_psi"], arrays["param_omega"]], dim=1)
        found = (left[:, None] * right)[counts].unflatten(-1, (2, -1)).sum(dim=-2)
    elif settings["attention_type"] == "relative_shift":
        found = arrays["param_R"][arrays["rel_index"]][counts]
    else:
        raise Contradiction(f"there is no attention_type {settings['attention_type']}")
    if not torch.allclose(rho, found):
        raise Contradiction("its positions are not what its meta says")
