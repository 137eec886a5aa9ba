"""Vectors of Luna: layers with a packed sequence of their own for each row."""

from collections.abc import Mapping

from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.luna import Luna
from tests.attentions.parity import Replay, Vector, agree, call_with

NAMES = {
    "pq_proj": "pack_query",
    "pc_proj": "pack_key",
    "pk_proj": "pack_key",
    "pv_proj": "pack_value",
    "q_proj": "query",
    "c_proj": "key",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
}


class After(nn.Module):
    """A layer that is given P."""

    def __init__(self, layer: Luna):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, p: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        if self.layer.pattern is Pattern.CAUSAL_SELF:
            return self.layer.causal(x, p, mask)
        return self.layer._read(x, *self.layer._slots(self.layer.pack(p, context, mask)))


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    slots, width = vector.arrays["p"].shape[1:]
    recorded = [name for name in vector.arrays if name.startswith("param_")]
    biased = any(name.endswith("__bias") for name in recorded)
    agree(vector, p_len=slots, bias=biased)
    pack_heads = 0 if vector.pattern is Pattern.CAUSAL_SELF else sizes["pheads"]
    spec = f"luna(slots={sizes['p_len']}, tied={sizes['tie_kv']}, pack_heads={pack_heads})"
    layer = attentions.get(spec)(width, sizes["heads"], vector.pattern, bias=biased)
    assert isinstance(layer, Luna)
    core = After(layer.to(vector.dtype).eval())

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {}
        for name in recorded:
            part, kind = name.removeprefix("param_").split("__")
            parameters[f"layer.{NAMES[part]}.{kind}"] = arrays[name]
        context = arrays.get("context", arrays["x"])
        return call_with(core, parameters, (arrays["x"], arrays["p"], context, vector.key_mask), {})

    return Replay(spec, run)
