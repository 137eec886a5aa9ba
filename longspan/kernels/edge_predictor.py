"""A predictor that scores all pairs of tokens: which keys it would choose for each query, and how far its scores are
from the weights of exact attention. The scores of all pairs are never stored.

    s_ij = (a_i . o_j + d_{i, j-i}) / sqrt(r)      when causal for j <= i
    loss = mean_i -sum_j p_ij log softmax_j(s_ij)      p_ij = mean over heads of softmax_j(q_i . k_j / sqrt(c))

over the real tokens. d has a column for each distance up to a limit, the outer two also for all beyond. Some queries
are scored at a time. The loss has gradients only with respect to a, o and d, computed along with it, while the scores
are at hand. Each function is one operator for torch.compile, whatever the length. Deterministic. In float32 or better.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.masked import masked_weights
from longspan.kernels.operator import differentiate, operator
from longspan.kernels.precision import at_least_single
from longspan.kernels.query_blocks import count_pairs, query_blocks

QUERIES = 128  # that are scored at a time


def best_edges(
    a: Float[Tensor, "b n r"],
    o: Float[Tensor, "b n r"],
    d: Float[Tensor, "b n distances"],
    mask: Bool[Tensor, "b n"],
    edges: int,
    *,
    causal: bool,
) -> Bool[Tensor, "b n n"]:
    """For each query its own position and the `edges` keys with the largest s."""
    return _best_edges(a.detach(), o.detach(), d.detach(), mask, edges, causal)


def edge_loss(
    a: Float[Tensor, "b n r"],
    o: Float[Tensor, "b n r"],
    d: Float[Tensor, "b n distances"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    mask: Bool[Tensor, "b n"],
    *,
    causal: bool,
) -> Float[Tensor, ""]:
    """The cross-entropy of the predictor with exact attention, the mean over real tokens."""
    return _edge_loss(a, o, d, q.detach(), k.detach(), mask, causal)[0]


def find(a: Tensor, o: Tensor, d: Tensor, mask: Tensor, edges: int, causal: bool) -> Tensor:
    a, o, d = (at_least_single(x) for x in (a, o, d))
    visible = mask.new_zeros(*mask.shape, mask.shape[1])
    for some, seen in query_blocks(a.shape[1], a.shape[1], QUERIES, causal=causal):
        lag, allowed = _lag(some, seen, a.device), _allowed(mask, some, seen, causal)
        others = _scores(a, o, d, lag, some, seen).masked_fill_(~allowed | (lag == 0), -torch.inf)
        best, place = others.topk(min(edges, seen), dim=2)
        chosen = torch.zeros_like(others, dtype=torch.bool).scatter_(2, place, best > -torch.inf)
        visible[:, some, :seen] = chosen | (allowed & (lag == 0))
    return visible


def compare(
    a: Tensor, o: Tensor, d: Tensor, q: Tensor, k: Tensor, mask: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients with respect to a, o and d."""
    kinds = [x.dtype for x in (a, o, d)]
    a, o, d, q, k = (at_least_single(x) for x in (a, o, d, q, k))
    loss, count = a.new_zeros(()), mask.sum().clamp(min=1)
    da, do, dd = (torch.zeros_like(x) for x in (a, o, d))
    for some, seen in query_blocks(a.shape[1], a.shape[1], QUERIES, causal=causal):
        lag, allowed = _lag(some, seen, a.device), _allowed(mask, some, seen, causal)
        target = masked_weights(q[:, :, some], k[:, :, :seen], allowed[:, None]).mean(dim=1).to(a.dtype)
        target.masked_fill_(~mask[:, some, None], 0)
        scores = _scores(a, o, d, lag, some, seen)
        said = scores.masked_fill_(~allowed, torch.finfo(scores.dtype).min).log_softmax(dim=2)
        loss -= (target * said.masked_fill(~allowed, 0)).sum() / count
        ds = (said.exp_().masked_fill_(~allowed, 0) * target.sum(dim=2, keepdim=True)).sub_(target)
        ds.div_(count * a.shape[2] ** 0.5)
        da[:, some] = ds @ o[:, :seen]
        do[:, :seen] += ds.mT @ a[:, some]
        dd[:, some] = _by_distance(ds, lag, d.shape[2] // 2, some)
    da, do, dd = (x.to(kind) for x, kind in zip((da, do, dd), kinds, strict=True))
    return loss, da, do, dd


def _lag(some: slice, seen: int, device: torch.device) -> Tensor:
    """How far each key comes after each query."""
    return torch.arange(seen, device=device) - torch.arange(some.start, some.stop, device=device)[:, None]


def _allowed(mask: Tensor, some: slice, seen: int, causal: bool) -> Tensor:
    allowed = mask[:, None, :seen].expand(-1, some.stop - some.start, -1)
    return allowed.tril(some.start) if causal else allowed


def _scores(a: Tensor, o: Tensor, d: Tensor, lag: Tensor, some: slice, seen: int) -> Tensor:
    farthest = d.shape[2] // 2
    column = (lag.clamp(-farthest, farthest) + farthest).expand(len(a), -1, -1)
    return (a[:, some] @ o[:, :seen].mT + d[:, some].gather(2, column)) / a.shape[2] ** 0.5


def _by_distance(ds: Tensor, lag: Tensor, farthest: int, some: slice) -> Tensor:
    """The sum over keys at each distance; without scatter-add, whose order on a GPU is arbitrary."""
    near = torch.arange(1 - farthest, farthest, device=ds.device)
    key = torch.arange(some.start, some.stop, device=ds.device)[:, None] + near
    there = (key >= 0) & (key < ds.shape[2])
    middle = ds.gather(2, key.clamp(0, ds.shape[2] - 1).expand(len(ds), -1, -1)).masked_fill_(~there, 0)
    before, after = (ds.masked_fill(~far, 0).sum(dim=2, keepdim=True) for far in (lag <= -farthest, lag >= farthest))
    return torch.cat([before, middle, after], dim=2)


def _flops(a: tuple[int, ...], causal: bool, channels: int) -> int:
    """Products of `channels` channels, for all pairs that are scored."""
    return 2 * a[0] * channels * count_pairs(a[1], a[1], QUERIES, causal=causal)


_best_edges = operator(
    "best_edges",
    fake=lambda a, o, d, mask, edges, causal: mask.new_empty(*mask.shape, mask.shape[1]),
    flops=lambda a, o, d, mask, edges, causal: _flops(a, causal, a[2]),
)(find)
_edge_loss = operator(
    "edge_loss",
    fake=lambda a, o, d, q, k, mask, causal: (
        a.new_empty((), dtype=torch.promote_types(a.dtype, torch.float32)),
        *(x.new_empty(x.shape) for x in (a, o, d)),
    ),
    flops=lambda a, o, d, q, k, mask, causal: _flops(a, causal, 3 * a[2] + math.prod(q[1::2])),
)(compare)
differentiate(
    _edge_loss,
    lambda dloss, da, do, dd, *inputs: tuple((dloss * x).to(x.dtype) for x in (da, do, dd)),
    saved=(1, 2, 3),
    unneeded=tuple(range(6)),
)
