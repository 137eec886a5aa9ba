"""Vectors of Longformer: Hugging Face's code, with global tokens anywhere and projections of their own."""

from collections.abc import Mapping

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions.longformer import Longformer
from tests.attentions.parity import Replay, Vector, agree, headwise


def replay(vector: Vector) -> Replay:
    window = vector.meta["hyperparameters"]["attention_window"]
    if "param_global_mask" not in vector.arrays:
        agree(vector, global_tokens=[0] * len(vector.arrays["q"]))
        return headwise(f"longformer(window={window}, global_tokens=0)", vector)
    spec = f"longformer(window={window}, projections=own)"
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern).to(vector.dtype).eval()
    assert isinstance(layer, Longformer)
    is_global = vector.arrays["param_global_mask"]
    count = is_global.sum(dim=1)
    agree(vector, global_tokens=count.tolist())
    places = is_global.long().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]
    places = places.where(torch.arange(places.shape[1]) < count[:, None], -1)
    layer.global_positions = lambda n, mask, device: places

    # Global tokens may be anywhere only where there is a mask.
    real = torch.ones_like(is_global, dtype=torch.bool) if vector.key_mask is None else vector.key_mask

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        both = (torch.cat([arrays[u], arrays[f"param_{u}_global"]], dim=-1) for u in "qkv")
        return layer.attend(*both, key_mask=real, query_mask=vector.key_mask)

    return Replay(spec, run)
