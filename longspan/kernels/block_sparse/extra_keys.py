"""Exact attention over the keys near a query and over extra keys and values, in one softmax.

    y_i = sum_{j in N(i)} p_ij v_j + sum_{r in R(i)} p_ir v'_r      p_i = softmax_{j, r}(q_i . (k_j, k'_r) / sqrt(c))

`window_with_extra_keys`
    N(i)    the real tokens of the block of `step` tokens that holds i, `left` tokens before and `right` after it
    R(i)    all extra keys, or with a `chunk`, for each of which there are `rank`, those of the chunks before that of i
`block_with_extra_keys`
    N(i)    the real tokens of the block that holds i, when causal up to i
    R(i)    the extra keys of that block

A query that sees no key gives 0. `reference` defines the answer with a matrix of all pairs; `gather` copies the keys of
each group of queries side by side, on any device and with dropout; `triton` reads every key in place, computes only
tiles in which some pair is visible, and is deterministic.
"""

import math
from typing import Any, Literal

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.block_sparse import gather, reference
from longspan.kernels.block_sparse.groups import attend_groups, in_blocks, real_in_blocks
from longspan.kernels.dispatch import choose
from longspan.kernels.launch import as_bytes, empty_like, readable
from longspan.kernels.operator import differentiate, like, operator
from longspan.kernels.precision import without_autocast

Impl = Literal["auto", "reference", "gather", "triton"]

WIDEST = 128  # channels of a head
LARGEST = 64  # tokens of a block, and extra keys of one
HALF = (torch.bfloat16, torch.float16)


def window_with_extra_keys(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    extra_k: Float[Tensor, "b h f c"],
    extra_v: Float[Tensor, "b h f c"],
    *,
    step: int = 1,
    left: int = 0,
    right: int = 0,
    chunk: int | None = None,
    rank: int = 1,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n c"]:
    """Attention over a window and extra keys; a `chunk` makes the extra keys causal.

    >>> y = window_with_extra_keys(q, k, v, far_k, far_v, left=511, chunk=16)      # causal, one far key for 16 tokens
    """
    tensors, reason = (q, k, v, extra_k, extra_v), ""
    if impl == "auto" and q.dtype not in HALF:
        reason = "float32 is faster with copies of the keys"
    impl = _chosen(impl, "window_with_extra_keys", q, reason or _unsupported_reason(tensors, dropout))
    if impl == "triton":
        with without_autocast(q):
            return window_forward(*tensors, key_mask, step, left, right, chunk or 0, rank)[0]
    place, far = (torch.arange(x.shape[2], device=q.device) for x in (q, extra_k))
    seen = far < (place // chunk * rank)[:, None] if chunk else (far >= 0).expand(len(place), -1)
    if impl == "reference":
        near = reference.window(*reference.positions_of(q), left, right, step)
        return reference.attend(q, k, v, near, key_mask=key_mask, extra=(extra_k, extra_v, seen))
    size = max(gather.TILE, left + 1) if chunk else max(gather.TILE, left + 1, extra_k.shape[2])
    extra = extra_k, extra_v, seen.expand(len(q), -1, -1)
    options = {"left": left, "right": right, "key_mask": key_mask, "dropout": dropout}
    return gather.windows(q, k, v, step=step, **options, extra=extra, size=size)


def block_with_extra_keys(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    extra_k: Float[Tensor, "b h g j c"],
    extra_v: Float[Tensor, "b h g j e"],
    *,
    block: int,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    extra_mask: Bool[Tensor, "#b #h g j"] | None = None,
    sees_extra: Bool[Tensor, "b n"] | None = None,
    separate: bool = False,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention of each block to itself and its extra keys: those in `extra_mask`, seen by queries in `sees_extra`.

    `separate` adds up two softmaxes, one over the extra keys and one over the block itself.

    >>> y = block_with_extra_keys(q, k, v, sorted_k, sorted_v, block=64)
    """
    tensors, masks = (q, k, v, extra_k, extra_v), (key_mask, extra_mask, sees_extra)
    impl = _chosen(impl, "block_with_extra_keys", q, _unsupported_block(block, tensors, dropout, separate))
    if impl == "triton":
        with without_autocast(q):
            return block_forward(*tensors, *masks, block, causal)
    if impl == "gather":
        return _gather_blocks(*tensors, *masks, block, causal, separate, dropout)
    i, j = reference.positions_of(q)
    far = repeat(torch.arange(extra_k.shape[2], device=q.device), "g -> (g j)", j=extra_k.shape[3])
    seen = (far == i // block)[None, None]
    seen = seen if extra_mask is None else seen & extra_mask.flatten(2)[:, :, None]
    seen = seen if sees_extra is None else seen & sees_extra[:, None, :, None]
    extra = extra_k.flatten(2, 3), extra_v.flatten(2, 3), seen
    return reference.attend(q, k, v, reference.window(i, j, 0, 0, block), causal=causal, key_mask=key_mask, extra=extra)


def _chosen(impl: Impl, name: str, q: Float[Tensor, "b h n c"], unsupported_reason: str) -> Impl:
    if impl in ("reference", "gather"):
        return impl
    return "triton" if choose(impl, name, q, unsupported_reason) == "triton" else "gather"


def _gather_blocks(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    extra_k: Float[Tensor, "b h g j c"],
    extra_v: Float[Tensor, "b h g j e"],
    key_mask: Bool[Tensor, "b n"] | None,
    extra_mask: Bool[Tensor, "#b #h g j"] | None,
    sees_extra: Bool[Tensor, "b n"] | None,
    block: int,
    causal: bool,
    separate: bool,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    real = real_in_blocks(key_mask, k, block)
    own = None if real is None else rearrange(real, "b g j -> b 1 g 1 j")
    if causal:
        i = torch.arange(block, device=q.device)
        earlier = (i <= i[:, None])[None, None, None]
        own = earlier.expand(-1, -1, extra_k.shape[2], -1, -1) if own is None else own & earlier
    extra = None if extra_mask is None else extra_mask[:, :, :, None]
    if sees_extra is not None:
        seen = real_in_blocks(sees_extra, k, block)
        assert seen is not None
        seen = rearrange(seen, "b g i -> b 1 g i 1")
        extra = seen.expand(-1, -1, -1, -1, extra_k.shape[3]) if extra is None else extra & seen
    q, k, v, n = *(in_blocks(x, block) for x in (q, k, v)), q.shape[2]
    all_see = key_mask is None  # there is a token in every block
    y = attend_groups(q, [(extra_k, extra_v, extra), (k, v, own)], separate=separate, all_see=all_see, dropout=dropout)
    return y.flatten(2, 3)[:, :, :n]


# ------------------------------------------------------------------------------------------------ the Triton operators


def _unsupported_reason(tensors: tuple[Float[Tensor, "..."], ...], dropout: float, separate: bool = False) -> str:
    """Why the kernels cannot take these tensors, or ""."""
    types, widest = {x.dtype for x in tensors}, max(x.shape[-1] for x in tensors)
    if len(types) > 1 or not types <= {torch.float32, *HALF}:
        return f"it takes tensors all in float32 or all in half precision, got {', '.join(sorted(map(str, types)))}"
    if widest > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {widest}"
    if dropout or separate:
        return "it has one softmax, without dropout"
    return "" if tensors[0].numel() else "there are no tokens"


def _unsupported_block(block: int, tensors: tuple[Float[Tensor, "..."], ...], dropout: float, separate: bool) -> str:
    q, extra_k = tensors[0], tensors[3]
    if q.dtype == torch.float32 and q.device.type != "cpu":
        return "on a GPU it takes half precision"  # tiles in float32 do not fit on the chip
    if max(block, extra_k.shape[3]) > LARGEST:
        return f"blocks may have {LARGEST} tokens, got {block} and {extra_k.shape[3]}"
    return _unsupported_reason(tensors, dropout, separate) or ("" if extra_k.numel() else "there are no extra keys")


def _window_flops(q: Any, k: Any, v: Any, extra_k: Any, extra_v: Any, mask: Any, *window: int) -> int:
    """The visible pairs, two products each; near ones block by block, extra ones chunk by chunk."""
    (*pairs, n, c), (step, left, right, chunk, rank) = q, window
    near = sum(
        (min(block + step, n) - block) * (min(block + step + right, n) - max(block - left, 0))
        for block in range(0, n, step)
    )
    starts = range(0, n, chunk) if chunk else ()
    extra = sum((min(start + chunk, n) - start) * (start // chunk * rank) for start in starts)
    return 4 * math.prod(pairs) * c * (near + (extra if chunk else n * extra_k[2]))


@operator(
    "window_with_extra_keys",
    fake=lambda q, *rest: (*like(q), q.new_empty(q.shape[:3], dtype=torch.float32)),
    flops=_window_flops,
)
def window_forward(
    q: Tensor, k: Tensor, v: Tensor, extra_k: Tensor, extra_v: Tensor, key_mask: Tensor | None,
    step: int, left: int, right: int, chunk: int, rank: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, and the log-sum-exp of each query [b h n], for the backward pass. `chunk` = 0 means none."""
    from longspan.kernels.block_sparse import extra_keys_triton

    tensors: Any = tuple(map(readable, (q, k, v, extra_k, extra_v)))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return extra_keys_triton.forward(tensors, as_bytes(key_mask), (step, left, right, chunk, rank))


@operator(
    "window_with_extra_keys_backward",
    fake=lambda dy, y, lse, q, k, v, *extra: (*like(q, k, v), *(x.new_empty(x.shape) for x in extra[:2])),
    flops=lambda dy, y, lse, *call: _window_flops(*call) // 2 * 5,  # the scores again, and four more products
)
def window_backward(
    dy: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, extra_k: Tensor, extra_v: Tensor,
    key_mask: Tensor | None, step: int, left: int, right: int, chunk: int, rank: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, extra_k and extra_v."""
    from longspan.kernels.block_sparse import extra_keys_triton

    tensors: Any = tuple(map(readable, (q, k, v, extra_k, extra_v)))
    dy, y, lse, window = readable(dy), readable(y), lse.contiguous(), (step, left, right, chunk, rank)
    with torch.cuda.device_of(q):
        return extra_keys_triton.backward(dy, y, lse, tensors, as_bytes(key_mask), window)


differentiate(window_forward, window_backward)


def _pairs(q: Any, extra_k: Any, block: int) -> int:
    """Pairs of both blocks, whether or not they are visible."""
    return math.prod(q[:3]) * (block + extra_k[3])


@operator(
    "block_with_extra_keys",
    fake=lambda q, k, v, *rest: empty_like(q, v.shape[3], v.dtype),
    flops=lambda q, k, v, extra_k, *rest: 2 * _pairs(q, extra_k, rest[-2]) * (q[3] + v[3]),
)
def block_forward(
    q: Tensor, k: Tensor, v: Tensor, extra_k: Tensor, extra_v: Tensor, key_mask: Tensor | None,
    extra_mask: Tensor | None, sees_extra: Tensor | None, block: int, causal: bool,
) -> Tensor:  # fmt: skip
    from longspan.kernels.block_sparse import paired_triton

    tensors: Any = *map(readable, (q, k, v)), extra_k.contiguous(), extra_v.contiguous()
    masks: Any = tuple(map(as_bytes, (key_mask, extra_mask, sees_extra)))
    with torch.cuda.device_of(q):
        return paired_triton.forward(tensors, masks, block, causal)


@operator(
    "block_with_extra_keys_backward",
    fake=lambda dy, q, k, v, *extra: (*like(q, k, v), *(x.new_empty(x.shape) for x in extra[:2])),
    # the scores again, and four more products
    flops=lambda dy, q, k, v, extra_k, *rest: 2 * _pairs(q, extra_k, rest[-2]) * (3 * q[3] + 2 * v[3]),
)
def block_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, extra_k: Tensor, extra_v: Tensor, key_mask: Tensor | None,
    extra_mask: Tensor | None, sees_extra: Tensor | None, block: int, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, extra_k and extra_v."""
    from longspan.kernels.block_sparse import paired_triton

    tensors: Any = *map(readable, (q, k, v)), extra_k.contiguous(), extra_v.contiguous()
    masks: Any = tuple(map(as_bytes, (key_mask, extra_mask, sees_extra)))
    with torch.cuda.device_of(q):
        return paired_triton.backward(readable(dy), tensors, masks, block, causal)


differentiate(block_forward, block_backward)
