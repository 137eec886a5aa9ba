"""Vectors of Sinkhorn attention: the package most people ran, in which some of the values are keys."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.func import functional_call

from longspan import attentions
from longspan.attentions.sinkhorn import Sinkhorn
from longspan.kernels.block_sparse import groups
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from longspan.kernels.sinkhorn_normalize.reference import top_softmax
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("simple_sort_net"):
        return "a linear map of all blocks at once sorts there; here it is one of each block"
    if vector.pattern.cross:
        return "blocks of queries are matched with blocks of keys of another sequence; here cross attention is SortCut"
    if sizes.get("sortcut"):
        return "SortCut queries see their own block as well there"
    if vector.key_mask is not None:
        return "padded keys are part of the block means there"
    if vector.pattern.causal:
        spec = f"sinkhorn(net=attention, block={sizes['block']}, top={sizes['top_blocks']}, temperature=1.0)"
        return Replay(spec, lambda arrays: _causal(_layer(spec, vector), sizes["block"], arrays))
    spec = f"sinkhorn(net=attention, block={sizes['key_block']}, temperature=1.0)"
    return Replay(spec, lambda arrays: _with_keys_as_sorted_values(_layer(spec, vector), vector, arrays))


def _layer(spec: str, vector: Vector) -> Sinkhorn:
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern).to(vector.dtype).eval()
    assert isinstance(layer, Sinkhorn)
    return layer


def _causal(layer: Sinkhorn, block: int, arrays: Mapping[str, Tensor]) -> Tensor:
    """The second half of the heads begins its blocks one token before their end; what is cut off attends to itself."""
    q, k, v = (arrays[name] for name in "qkv")
    nulls = {"layer.null_key": arrays["param_null_keys"], "layer.null_value": arrays["param_null_values"]}
    core, half, cut = _Core(layer), layer.heads // 2, block - 1
    whole = functional_call(core, nulls, (q, k, v))
    shifted = functional_call(core, nulls, (q[:, :, cut:], k[:, :, cut:], v[:, :, cut:]))
    alone = F.scaled_dot_product_attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], is_causal=True)
    return torch.cat([whole[:, :half], torch.cat([alone, shifted], dim=2)[:, half:]], dim=1)


class _Core(nn.Module):
    def __init__(self, layer: Sinkhorn):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.layer.attend(q, k, v)


def _with_keys_as_sorted_values(layer: Sinkhorn, vector: Vector, arrays: Mapping[str, Tensor]) -> Tensor:
    """The package's slip, put together from our parts: what is sorted to a block has its keys for values."""
    q, k, v = (groups.in_blocks(arrays[name], layer.block) for name in "qkv")
    real = groups.real_in_blocks(None, arrays["k"], layer.block)
    logits = groups.block_scores(q, k, real, causal=False)
    allowed = torch.ones(1, 1, *logits.shape[2:], dtype=torch.bool)
    sizes = vector.meta["hyperparameters"]
    if sizes["permutative"]:
        noise = -torch.log(-torch.log(arrays["param_uniform"] + 1e-6) + 1e-6)
        logits = (torch.log(torch.relu(logits) + 1e-6) + noise) / sizes["temperature"]
        matrix = sinkhorn_normalize(logits, allowed, sizes["iterations"])[:, :, :, None]
    else:
        matrix = top_softmax(logits, allowed, sizes["top_blocks"])[0]
    keys = groups.mix_blocks(matrix, k, None, 0).flatten(3, 4)
    y = groups.attend_groups(q, [(keys, keys, None), (k, v, None)])
    return rearrange(y, "b h g s e -> b h (g s) e")
