"""Exact attention with labels: how far a key is ahead of a query, or behind it, selects a term of their score.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c) + t_i,l(i,j))

    labelled_window           A(i) = {j : i - left <= j <= i + right} and all global tokens
    labelled_global_queries   A(i) = everything, for a query i that is a global token itself

over the real keys, and only those up to i when causal. Labels are clamped at a distance D, so that there are 2 D + 2:

    l(i, j) = min(lag, D) if lag >= 0, else D + min(-lag, D)      lag = j - i, between global tokens in strides
    l(i, j) = 2 D + 1 for a global and an ordinary token

where `labelled_window` treats every query as an ordinary one. A row that sees no key gives 0. Global tokens are a slice
that starts at the first token: slice(0, 4096, 64) has 64 of them.

`reference` defines the answer. `gather` copies the keys of each tile of queries and expands its terms to one for each
key, on any device; `triton` reads keys and terms in place (`triton.py`), and its global queries pool the ordinary keys
by `landmark`: no tensor has an entry for each pair of query and key.
"""

from collections.abc import Hashable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels import landmark
from longspan.kernels.block_sparse import is_faster, operator, planned, reference, unsupported_reason
from longspan.kernels.block_sparse.gather import windows
from longspan.kernels.block_sparse.plan import distance_of
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.masked import biased_attention, masked_attention
from longspan.kernels.precision import at_least_single, without_autocast


def labelled_window(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    terms: Float[Tensor, "b h n l"] | None,
    *,
    left: int,
    right: int,
    global_tokens: slice,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    cache_key: Hashable | None = None,
    impl: Implementation | Literal["gather"] = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention over a window and global keys, which count once even within the window; pairs have labels if `terms`
    are given.

    A `cache_key` identifies the global tokens: with one, the kernel's plan is cached for calls without `key_mask`.
    """
    n = q.shape[2]
    # by comparing: min() would stay symbolic in a graph compiled for any length
    before, after = (side if side < n else n - 1 for side in (left, right))
    place = torch.arange(n, device=q.device)
    if impl == "triton" or (impl == "auto" and is_faster(q, v, (before, after), 1, dropout)):
        choose("triton", "labelled_window", q, unsupported_reason(q, v, (before, after), 1, dropout))
        rules = {"global_keys": place[global_tokens][None, None], "causal": causal, "key_mask": key_mask}
        with without_autocast(q):
            plan = planned(q, (before, after), block=1, **rules, cache_key=cache_key)
            return operator.forward(q, k, v, terms, *plan)[0]
    is_global = _is_among(place, global_tokens)
    if impl == "reference":
        i, j = reference.positions_of(q)
        allowed, bias = reference.window(i, j, left, right) | is_global, None
        if terms is not None:
            distance = distance_of(terms)
            label = torch.where(is_global, 2 * distance + 1, label_of(j - i, distance))
            bias = terms.gather(-1, label.expand(*terms.shape[:3], -1))
        return reference.attend(q, k, v, allowed, causal=causal, key_mask=key_mask, bias=bias)
    real = q.new_ones(len(q), n, dtype=torch.bool) if key_mask is None else key_mask
    seen = real[:, None, global_tokens].expand(-1, n, -1)
    seen = seen & (place[global_tokens] <= place[:, None]) if causal else seen
    extra = k[:, :, global_tokens], v[:, :, global_tokens], seen
    bias = None if terms is None else _by_place(terms, left, right)
    rules = {"causal": causal, "key_mask": real & ~is_global, "dropout": dropout}
    return windows(q, k, v, left=left, right=right, **rules, extra=extra, bias=bias)


def labelled_global_queries(
    q: Float[Tensor, "b h g c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    terms: Float[Tensor, "b h g l"] | None,
    *,
    global_tokens: slice,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h g e"]:
    """Attention of the global tokens' queries over all keys.

    The term of ordinary keys is subtracted from all scores of a query, so that only global keys need one.
    """
    if impl == "triton":
        choose(impl, "labelled_global_queries", k, "it has no dropout" if dropout else "")
    by_pool = impl == "triton" or (impl == "auto" and not dropout and landmark.is_faster(q, k, v))
    n, place = k.shape[2], torch.arange(k.shape[2], device=k.device)
    real = q.new_ones(len(k), n, dtype=torch.bool) if key_mask is None else key_mask
    bias = None if terms is None else _among_global(terms)
    if by_pool:
        return _pooled(q, k, v, bias, real, place, global_tokens, causal)
    visible = real[:, None, None]
    visible = visible & (place <= place[global_tokens, None]) if causal else visible
    if bias is None:
        return masked_attention(q, k, v, visible, dropout=dropout)
    bias = F.pad(bias.to(q.dtype)[..., None], (0, global_tokens.step - 1)).flatten(-2)
    bias = F.pad(bias, (0, n - global_tokens.stop)) if global_tokens.stop < n else bias[..., :n]
    return biased_attention(q, k, v, bias, visible, dropout=dropout)


def label_of(lag: Int[Tensor, "*any"], distance: int) -> Int[Tensor, "*any"]:
    """The label of a lag: first how far a key is ahead, then how far it is behind.

    >>> label_of(torch.tensor([-5, -1, 0, 1, 5]), 3)
    tensor([6, 4, 0, 1, 3])
    """
    lag = lag.clamp(-distance, distance)
    return torch.where(lag >= 0, lag, distance - lag)


def _pooled(
    q: Float[Tensor, "b h g c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    bias: Float[Tensor, "b h g g"] | None,
    real: Bool[Tensor, "b n"],
    place: Int[Tensor, " n"],
    global_tokens: slice,
    causal: bool,
) -> Float[Tensor, "b h g e"]:
    """Each query pools the ordinary keys into one key, scored by their log-sum-exp, beside the global keys."""
    others = real & ~_is_among(place, global_tokens)
    some = others.cumsum(dim=1)[:, global_tokens] > 0 if causal else others.any(dim=1, keepdim=True)
    visible = real[:, None, None, global_tokens].expand(-1, 1, q.shape[2], -1)
    visible = visible.tril() if causal else visible
    visible = torch.cat([visible, some[:, None, :, None].expand(-1, 1, q.shape[2], -1)], dim=-1)
    with without_autocast(q):
        q = at_least_single(q) / q.shape[-1] ** 0.5
        step = global_tokens.step if causal else None
        y, lse = landmark.landmark_pool(q, k, v, key_mask=others, step=step, impl="triton")
        scores = q @ at_least_single(k[:, :, global_tokens]).mT
        scores = torch.cat([scores if bias is None else scores + bias, lse[..., None]], dim=-1)
        p = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~visible, 0)
        return (p[..., :-1] @ at_least_single(v[:, :, global_tokens]) + p[..., -1:] * y).to(v.dtype)


def _is_among(place: Int[Tensor, " n"], tokens: slice) -> Bool[Tensor, " n"]:
    return (place % tokens.step == 0) & (place < tokens.stop)


def _by_place(
    terms: Float[Tensor, "b h n l"], left: int, right: int
) -> tuple[Float[Tensor, "b h n w"], Float[Tensor, "b h n 1"]]:
    """The terms of the keys i - left ... i + right, and of global keys.

    Labels beyond the greatest distance are expanded, not looked up, so that the gradient is a sum.
    """
    most = distance_of(terms)
    before, ahead = (side if side < most else most for side in (left, right))
    near = [
        terms[..., 2 * most : 2 * most + 1].expand(*terms.shape[:3], left - before),
        terms[..., most + 1 : most + 1 + before].flip(-1),
        terms[..., : 1 + ahead],
        terms[..., most : most + 1].expand(*terms.shape[:3], right - ahead),
    ]
    return torch.cat(near, dim=-1), terms[..., -1:]


def _among_global(terms: Float[Tensor, "b h g l"]) -> Float[Tensor, "b h g g"]:
    """The terms of global keys, minus that of all other keys."""
    number, terms = torch.arange(terms.shape[2], device=terms.device), terms - terms[..., -1:]
    label = label_of(number - number[:, None], distance_of(terms))
    return terms.gather(-1, label.expand(*terms.shape[:3], -1))
