"""Vectors of long-short attention: the authors' non-causal core and causal layer, and CAB's causal layer.

The causal layers have a memory in front of the sequence; in some vectors it is zeros, which take part in the softmax.
"""

from collections.abc import Mapping

from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.longshort import LongShort
from longspan.attentions.released.cab_longshort import CABLongShort
from tests.attentions.parity import Replay, Vector, agree, call_with

NONCAUSAL = {
    "near_norm.weight": "param_ln_window_weight",
    "near_norm.bias": "param_ln_window_bias",
    "far_norm.weight": "param_ln_landmark_weight",
    "far_norm.bias": "param_ln_landmark_bias",
    "conv.weight": "param_conv_weight",
}
CAUSAL = {
    "query.weight": "param_proj_query_weight",
    "key.weight": "param_proj_key_weight",
    "value.weight": "param_proj_val_weight",
    "out.weight": "param_proj_out_weight",
    "summaries.0.weight": "param_dconv_1_weight",
    "summaries.0.bias": "param_dconv_1_bias",
    "near_places.0.weight": "param_r_net_weight",
    "far_places.0.weight": "param_r_net_chunk_weight",
    "far_places.0.bias": "param_r_net_chunk_bias",
    "near_norm.weight": "param_dual_ln_win_weight",
    "near_norm.bias": "param_dual_ln_win_bias",
    "far_norm.weight": "param_dual_ln_dproj_weight",
    "far_norm.bias": "param_dual_ln_dproj_bias",
}


class Core(nn.Module):
    """The non-causal form between its projections, or the causal layer after a memory."""

    def __init__(self, spec: str, vector: Vector):
        super().__init__()
        sizes = vector.meta["hyperparameters"]
        layer = attentions.get(spec)(sizes["heads"] * sizes["head_dim"], sizes["heads"], vector.pattern)
        assert isinstance(layer, LongShort | CABLongShort)
        self.layer = layer.to(vector.dtype).eval()

    def forward(self, inputs: list[Tensor], mask: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        if isinstance(self.layer, LongShort):
            q, k, v, logits = inputs
            return self.layer.mix(q, k, v, logits, mask)
        return self.layer.carried(inputs[0], carry=memory)[0]


def replay(vector: Vector) -> Replay:
    return _causal(vector) if vector.pattern.causal else _noncausal(vector)


def _noncausal(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    conv = max(sizes["conv_kernel"], 0)
    agree(vector, extra_each_side=sizes["window"] // 2, landmarks=vector.arrays["param_landmark_logits"].shape[-1])
    spec = f"longshort(window={sizes['window']}, landmarks={sizes['landmarks']}, conv={conv})"
    core = Core(spec, vector)
    names = {f"layer.{own}": recorded for own, recorded in NONCAUSAL.items() if recorded in vector.arrays}

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        inputs = [rearrange(arrays[name], "b h n c -> b n (h c)") for name in ("q", "k", "v")]
        inputs.append(rearrange(arrays["param_landmark_logits"], "b n h r -> b n (h r)"))
        parameters = {own: arrays[recorded] for own, recorded in names.items()}
        y = call_with(core, parameters, (inputs,), {"mask": vector.key_mask})
        return rearrange(y, "b n (h c) -> b h n c", h=sizes["heads"])

    return Replay(spec, run)


def _causal(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = (f"{name}={sizes[name]}" for name in ("window", "chunk", "rank", "memory"))
    agree(vector, memory_is_zero="mem" not in vector.arrays or not vector.arrays["mem"].any())
    spec = f"cab_longshort({', '.join(options)})"
    core = Core(spec, vector)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {f"layer.{own}": arrays[recorded] for own, recorded in CAUSAL.items()}
        biases = {"near_key_bias": "param_r_w_bias", "near_place_bias": "param_r_r_bias"}
        for own, recorded in biases.items():
            parameters[f"layer.{own}"] = arrays[recorded].to(vector.dtype).reshape(sizes["heads"], 1, sizes["head_dim"])
        return call_with(core, parameters, ([arrays["x"]],), {"memory": arrays.get("mem")})

    return Replay(spec, run)
