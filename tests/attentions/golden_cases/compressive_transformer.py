"""Vectors of the Compressive Transformer: a layer after both of its memories, with learned embeddings of distances.

The embeddings stand for r, and u and w are 0. How the package compresses evicted tokens (it pads uneven groups by the
remainder) does not affect the recorded outputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.compressive_transformer import CompressiveTransformer
from tests.attentions.parity import Replay, Vector, agree, call_with


class After(nn.Module):
    def __init__(self, layer: CompressiveTransformer):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, past: list[Tensor], r: Tensor) -> Tensor:
        layer, source = self.layer, torch.cat([*past, x], dim=1)
        q, k, v = layer._split(layer.query(x)), layer._split(layer.key(source)), layer._split(layer.value(source))
        return layer._merge(layer.mix(q, k, v, r))


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    heads, _, channels = vector.arrays["param_pos_emb"].shape
    agree(vector, heads=heads, ratio=vector.arrays["param_compress_mem_fn__conv__weight"].shape[2])
    options = f"memory={sizes['mem_len']}, compressed={sizes['cmem_len']}, ratio={sizes['ratio']}, compression=conv"
    spec = f"compressive_transformer({options})"
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern)
    assert isinstance(layer, CompressiveTransformer)
    core = After(layer.to(vector.dtype).train(sizes["training"]))

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        key, value = arrays["param_to_kv__weight"].chunk(2)
        none = torch.zeros_like(layer.query.bias)
        parameters = {f"layer.{name}.bias": none for name in ("query", "key", "value")}
        parameters |= {"layer.query.weight": arrays["param_to_q__weight"], "layer.key.weight": key}
        parameters |= {"layer.value.weight": value, "layer.out.weight": arrays["param_to_out__weight"]}
        parameters |= {"layer.out.bias": arrays["param_to_out__bias"]}
        parameters |= {f"layer.{name}": torch.zeros_like(getattr(layer, name)) for name in ("u", "w")}
        past = [arrays["cmem"], arrays["mem"]]
        return call_with(core, parameters, (arrays["x"], past, arrays["param_pos_emb"]), {})

    return Replay(spec, run)
