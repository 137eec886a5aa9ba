"""Vectors of Transformer-XL: its core after a memory, with r given for every distance."""

from collections.abc import Mapping

from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.transformer_xl import TransformerXL
from tests.attentions.parity import Replay, Vector, agree, call_with


class Core(nn.Module):
    def __init__(self, layer: TransformerXL):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        return self.layer.mix(q, k, v, r)


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    (_, heads, n, width), m = vector.arrays["q"].shape, vector.arrays["k"].shape[2]
    agree(vector, heads=heads, mem_len=m - n)
    spec = f"transformer_xl(memory={sizes['mem_len']}, same_length={sizes['same_length']})"
    layer = attentions.get(spec)(heads * width, heads, vector.pattern)
    assert isinstance(layer, TransformerXL)
    core = Core(layer.to(vector.dtype).eval())
    assert bool((layer.visible(n, m, m - n, layer.u.device) != vector.arrays["param_attn_mask"]).all())

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        r = rearrange(arrays["param_r_head_k"], "distances h c -> h distances c")
        parameters = {"layer.u": arrays["param_r_w_bias"], "layer.w": arrays["param_r_r_bias"]}
        return call_with(core, parameters, (arrays["q"], arrays["k"], arrays["v"], r), {})

    return Replay(spec, run)
