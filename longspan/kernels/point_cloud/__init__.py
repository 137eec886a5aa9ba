"""Geometry of point clouds: nearest neighbours with gradients, k nearest neighbours, farthest point sampling.

    nearest             d_i = min_j |a_i - b_j|^2, and the j      dd_i/da_i = 2 (a_i - b_j) = -dd_i/db_j
    nearest_both_ways   the same from a to b and from b to a, each distance computed once
    k_nearest           the k sources j with the smallest |q_i - s_j|^2, nearest first
    farthest_points     i_0 = 0      i_t = argmax_i min_(s < t) |x_i - x_(i_s)|^2

Of equally near or far points the one with the lowest index is taken. Distances are sums of squared differences in
float32 or better, never |a|^2 + |b|^2 - 2 ab, which cancels the digits that tell near points apart. `reference` defines
the answers and holds some distances at a time. `triton` holds only those of its tiles: it finds indices, and distances
and gradients follow from the gathered pairs, in work linear in the points. Everything is deterministic and nothing
waits for the host. A NaN coordinate makes only its own distance NaN.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.point_cloud import operator, reference
from longspan.kernels.point_cloud.operator import MOST_POINTS
from longspan.kernels.precision import at_least_single

Skip = Literal["zero", "near_origin"]
NEAR_ORIGIN = 1e-3  # squared distance, of the kernel that PointNet++ was released with


def nearest(
    a: Float[Tensor, "b n 3"],
    b: Float[Tensor, "b m 3"],
    *,
    mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """The squared distance from each point of a to the nearest point of b, and the index of that point.

    `mask` says which points of b are real. Without any the distance is infinite and the index 0.

    >>> nearest(torch.tensor([[[0.0, 0, 0]]]), torch.tensor([[[3.0, 0, 0], [0, 0, 2]]]))
    (tensor([[4.]]), tensor([[1]]))
    """
    a, b = at_least_single(a), at_least_single(b)
    impl = choose(impl, "nearest", a, _unsupported_reason(a, b))
    search = operator.nearest if impl == "triton" else reference.nearest
    index = search(_seen(a, None, torch.inf), _seen(b, mask, -torch.inf))
    return _distance(a, b, index, mask), index


def nearest_both_ways(
    a: Float[Tensor, "b n 3"],
    b: Float[Tensor, "b m 3"],
    *,
    a_mask: Bool[Tensor, "b n"] | None = None,
    b_mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b m"]]:
    """The squared distances from each point of a to the nearest real one of b, and from b to a, in one pass.

    Those of hidden points are 0, those to a cloud without real points infinite.

    >>> nearest_both_ways(torch.tensor([[[0.0, 0, 0]]]), torch.tensor([[[3.0, 0, 0], [0, 0, 2]]]))
    (tensor([[4.]]), tensor([[9., 4.]]))
    """
    a, b = at_least_single(a), at_least_single(b)
    impl = choose(impl, "nearest_both_ways", a, _unsupported_reason(a, b))
    search = operator.nearest_both_ways if impl == "triton" else reference.nearest_both_ways
    to_b, to_a = search(_seen(a, a_mask, torch.inf), _seen(b, b_mask, -torch.inf))
    there, back = _distance(a, b, to_b, b_mask), _distance(b, a, to_a, a_mask)
    return (
        there if a_mask is None else there.masked_fill(~a_mask, 0),
        back if b_mask is None else back.masked_fill(~b_mask, 0),
    )


@torch.no_grad()
def k_nearest(
    query: Float[Tensor, "b n 3"], source: Float[Tensor, "b m 3"], k: int, *, impl: Implementation = "auto"
) -> Int[Tensor, "b n k"]:
    """The indices of the k sources nearest to each query, in float32; a query among the sources is its own first.

    >>> k_nearest(torch.tensor([[[0.0, 0, 0]]]), torch.tensor([[[3.0, 0, 0], [0, 0, 2], [9, 0, 0]]]), 2)
    tensor([[[1, 0]]])
    """
    if not 1 <= k <= source.shape[1]:
        raise UsageError(f"{k} nearest neighbours were asked for among {source.shape[1]} points; ask for 1 to all.")
    query, source = _seen(query.float(), None, torch.inf), _seen(source.float(), None, -torch.inf)
    reason = _unsupported_reason(query, source) or _too_many(source)
    impl = choose(impl, "k_nearest", query, reason)
    return (operator.k_nearest if impl == "triton" else reference.k_nearest)(query, source, k)


@torch.no_grad()
def farthest_points(
    x: Float[Tensor, "b n 3"], k: int, *, skip: Skip = "zero", impl: Implementation = "auto"
) -> Int[Tensor, "b k"]:
    """The indices of k points, each the farthest from those before it; the first is index 0.

    Rows of zeros, which are padding ("zero"), or all points closer than 0.0316 to the origin ("near_origin") are never
    chosen, except as the first. Once all others are taken, the first of those is repeated.

    >>> farthest_points(torch.tensor([[[1.0, 0, 0], [2, 0, 0], [9, 0, 0], [0, 0, 0]]]), 5)
    tensor([[0, 2, 1, 0, 0]])
    """
    x = at_least_single(x)
    impl = choose(impl, "farthest_points", x, _unsupported_reason(x, x) or _too_many(x))
    allowed = (x != 0).any(dim=-1) if skip == "zero" else reference.squared(x) > NEAR_ORIGIN
    steps = min(k, x.shape[1] + 1)  # by then all are taken
    index = (operator.farthest_points if impl == "triton" else reference.farthest_points)(x, allowed, steps)
    return torch.cat([index, index[:, -1:].expand(-1, k - steps)], dim=1)


def take(x: Shaped[Tensor, "b m c"], index: Int[Tensor, " b *n"]) -> Shaped[Tensor, "b *n c"]:
    """The rows of each cloud at an index, for example nearest neighbours.

    One flat index: torch adds up its gradient in a fixed order, while that of `gather` uses atomics.

    >>> take(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[1, 1, 0]])).tolist()
    [[[2.0], [2.0], [1.0]]]
    """
    first = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return x.flatten(0, 1)[index + first.view(-1, *[1] * (index.ndim - 1))]


def _seen(x: Float[Tensor, "b n 3"], mask: Bool[Tensor, "b n"] | None, far: float) -> Float[Tensor, "b n 3"]:
    """A cloud whose distances can all be compared: points that are hidden or NaN are infinitely far away.

    Also from such points of the other cloud, if its `far` has the opposite sign.
    """
    x = x.detach().nan_to_num(nan=far, posinf=far, neginf=far)
    return x if mask is None else x.masked_fill(~mask[:, :, None], far)


def _distance(
    a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"], index: Int[Tensor, "b n"], mask: Bool[Tensor, "b m"] | None
) -> Float[Tensor, "b n"]:
    """The squared distance from each point of a to the one of b at its index; infinite where none is real."""
    distance = reference.squared(a - take(b, index))
    return distance if mask is None else distance.masked_fill(~mask.any(dim=1, keepdim=True), torch.inf)


def _unsupported_reason(a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"]) -> str:
    if not a.dtype == b.dtype == torch.float32:
        return f"it takes float32, got {a.dtype} and {b.dtype}"
    return "" if a.numel() and b.numel() else "there are no points"


def _too_many(x: Float[Tensor, "b n 3"]) -> str:
    return f"a cloud may have {MOST_POINTS} points, got {x.shape[1]}" if x.shape[1] > MOST_POINTS else ""
