"""Vectors of Sinkhorn attention: the most widely used package.

Its causal form is that of `sinkhorn`, which is replayed. Its other forms sort differently: without SortCut the sorted
values are keys, with it queries also see their own block, and in cross attention query blocks sort the key blocks.
They are built from the parts of `sinkhorn`: block means, top-k and Sinkhorn normalisation, mixing, reading.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.sinkhorn import Sinkhorn
from longspan.kernels.block_sparse import groups
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from longspan.kernels.sinkhorn_normalize.reference import top_softmax
from tests.attentions.parity import Replay, Vector, call_with


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("simple_sort_net"):
        return "a linear map of all blocks at once sorts there; here it is one of each block"
    if sizes.get("sortcut") and sizes["permutative"]:
        return "with SortCut the package sorts by the best blocks alone"
    if not vector.pattern.causal:
        nearest = f"sinkhorn(block={sizes['key_block']})"  # its parts are used
        return Replay(nearest, lambda arrays: _noncausal(vector, arrays))
    if vector.key_mask is not None:
        return "padded keys are part of the block means there"
    options = f"block={sizes['block']}, top={sizes['top_blocks']}, temperature={sizes['temperature']}"
    spec = f"sinkhorn(net=attention, {options})"
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern).to(vector.dtype).eval()
    return Replay(spec, lambda arrays: _causal(layer, sizes["block"], arrays))


def _causal(layer: nn.Module, block: int, arrays: Mapping[str, Tensor]) -> Tensor:
    """In half of the heads blocks start block - 1 tokens later; the tokens before that attend to one another."""
    q, k, v = (arrays[name] for name in "qkv")
    nulls = {"layer.null_key": arrays["param_null_keys"], "layer.null_value": arrays["param_null_values"]}
    core, half, cut = _Core(layer), q.shape[1] // 2, block - 1
    whole = call_with(core, nulls, (q, k, v))
    shifted = call_with(core, nulls, (q[:, :, cut:], k[:, :, cut:], v[:, :, cut:]))
    alone = F.scaled_dot_product_attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], is_causal=True)
    return torch.cat([whole[:, :half], torch.cat([alone, shifted], dim=2)[:, half:]], dim=1)


class _Core(nn.Module):
    def __init__(self, layer: nn.Module):
        super().__init__()
        assert isinstance(layer, Sinkhorn)
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.layer.attend(q, k, v)


def _noncausal(vector: Vector, arrays: Mapping[str, Tensor]) -> Tensor:
    sizes = vector.meta["hyperparameters"]
    q = groups.in_blocks(arrays["q"], sizes.get("query_block", sizes["key_block"]))
    k, v = (groups.in_blocks(arrays[name], sizes["key_block"]) for name in "kv")
    queries = groups.block_means(q, None)
    if sizes["sortcut"]:  # all blocks share what is sorted to the mean of all blocks
        queries = queries.mean(dim=2, keepdim=True)
    logits = queries @ groups.block_means(k, None).mT / k.shape[-1] ** 0.5
    matrix = repeat(_matrix(logits, sizes, arrays), "b h u r v -> b h (u more) r v", more=q.shape[2] // logits.shape[2])
    keys = groups.mix_blocks(matrix, k, None, 0).flatten(3, 4)
    values = groups.mix_blocks(matrix, v, None, 0).flatten(3, 4) if sizes["sortcut"] else keys
    real = groups.real_in_blocks(vector.key_mask, arrays["k"], sizes["key_block"])
    shown = [(keys, values, None if real is None else _of_the_best(matrix, real))]
    if q.shape[2] == k.shape[2]:  # otherwise no key block belongs to a query block
        shown.append((k, v, None if real is None else rearrange(real, "b g s -> b 1 g 1 s")))
    y = groups.attend_groups(q, shown)
    if real is not None and vector.pattern is Pattern.NONCAUSAL_SELF:  # a padded query sees nothing: uniform weights
        everything = torch.cat([values for _, values, _ in shown], dim=3).mean(dim=3, keepdim=True)
        y = torch.where(rearrange(real, "b g s -> b 1 g s 1"), y, everything)
    return rearrange(y, "b h g s e -> b h (g s) e")


def _matrix(logits: Tensor, sizes: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Tensor:
    """What is sorted to each query block, [b h u r v]: one mixture of all blocks, or several single blocks."""
    allowed = torch.ones(1, 1, *logits.shape[2:], dtype=torch.bool)
    if not sizes["permutative"]:  # no temperature: the package does not pass it on
        return top_softmax(logits, allowed, sizes["sortcut"] or sizes["top_blocks"])[0]
    noise = -torch.log(-torch.log(arrays["param_uniform"] + 1e-6) + 1e-6)
    logits = (torch.log(torch.relu(logits) + 1e-6) + noise) / sizes["temperature"]
    return sinkhorn_normalize(logits, allowed, sizes["iterations"])[:, :, :, None]


def _of_the_best(matrix: Tensor, real: Tensor) -> Tensor:
    """A sorted block takes the mask of the block with the largest weight in it."""
    best = matrix.argmax(dim=-1)
    rows = torch.arange(len(real))[:, None, None, None]
    return rearrange(real.expand(len(best), -1, -1)[rows, best], "b h u r s -> b h u 1 (r s)")
