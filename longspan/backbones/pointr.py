"""PoinTr: from the scan of one side of an object to its whole surface, as points.

    proxies, x = Grouper(points)                      a few points that stand for their surroundings
    x <- EncoderBlock(x + position(proxies))          for every block; slots: noncausal self
    coarse = MLP(max_i f(x_i))                        one point for each query, predicted
    q = MLP([max_i f(x_i), coarse])
    q <- DecoderBlock(q, x)                           slots: noncausal self, then noncausal cross
    dense = coarse + Fold(grid, q) and the input      a small patch for each query

Blocks are pre-norm. The first of each kind also looks at the eight nearest points: max_j LeakyReLU(W [n_j - n_i, n_i])
is combined with the output of attention by one more map. The others have these two maps as well and never use them, as
in the authors' code; they count as parameters and are not trained.

A noncausal self mechanism on trial fills the slots of the encoder; `decoder_self` says what the decoder's self slots
have, "trial" for the same. `qkv_bias` says which slots have biases on queries, keys and values: "none" is the
original's rule for every mechanism, "inexact" matches CAB's published counts, where CAB's own modules have biases and
the original's softmax has none, "all" is all. The output map of a slot always has a bias.

Linear maps of a concatenation are computed part by part, so that what is the same for a whole cloud is computed once,
and those of neighbours are computed before gathering; the functions are the same. Coordinates stay in float32 under
autocast.

Paper: arXiv:2108.08839, in the sizes of CAB (arXiv:2210.07661), with the initialisation of the authors' code. Departs
from that code in: neighbours are found by squared differences instead of the expanded form.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.backbones.batch_norm import BatchNorm
from longspan.backbones.carrying import carried_by_layers
from longspan.backbones.point_proxies import PROXY_WIDTH, SLOPE, Grouper, Pointwise
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, mlp_beside
from longspan.core.errors import UsageError
from longspan.kernels.point_cloud import Skip, farthest_points, k_nearest, take
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network, and which rules it follows.

    The coarse cloud is the predicted points, followed by as many farthest points of the input ("sampled", which repeats
    a point once there are no more), or by the input itself ("input").
    """

    dim: int = 384
    heads: int = 6
    encoder_layers: int = 6
    decoder_layers: int = 8
    mlp: int = 768
    whole: int = 1024  # channels that describe a whole cloud
    sample: int = 1536  # points that the first stage of the grouper keeps
    proxies: int = 1536  # of these, after its second stage
    queries: int = 3584
    predicted: int = 14_336  # points in total, as closely as square patches allow
    neighbours: int = 16  # in the grouper
    geometry: int = 8  # neighbours in the first blocks
    attention_dropout: float = 0.0
    decoder_self: str = "softmax"
    qkv_bias: Literal["none", "inexact", "all"] = "none"
    skip: Skip = "zero"
    coarse: Literal["input", "sampled"] = "input"

    def __post_init__(self):
        counts = ("dim", "heads", "encoder_layers", "decoder_layers", "mlp", "whole", "sample", "proxies", "queries")
        check_sizes(self, *counts, "predicted", "neighbours", "geometry")
        if not max(self.neighbours, self.proxies) <= self.sample or self.geometry > min(self.proxies, self.queries):
            raise UsageError(
                f"The network needs neighbours and proxies <= sample and geometry <= proxies and queries, got "
                f"neighbours={self.neighbours}, proxies={self.proxies}, sample={self.sample}, "
                f"geometry={self.geometry} and queries={self.queries}."
            )

    @property
    def side(self) -> int:
        """The side of the square patch of each query.

        >>> Sizes().side, Sizes(queries=224).side
        (2, 8)
        """
        return max(1, int((self.predicted // self.queries) ** 0.5 + 0.5))


class PoinTr(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes):
        super().__init__()
        self.sizes, d, whole = sizes, sizes.dim, sizes.whole
        own = attention if sizes.decoder_self == "trial" else attentions.get(sizes.decoder_self)
        self.grouper = Grouper(sizes.neighbours, sizes.proxies)
        self.position = NormedMLP(3, 128, d)
        self.embedding = NormedMLP(PROXY_WIDTH, d, d)
        self.encoder = nn.ModuleList(EncoderBlock(attention, sizes, i == 0) for i in range(sizes.encoder_layers))
        self.summary = NormedMLP(d, whole, whole)
        self.coarse = nn.Sequential(nn.Linear(whole, whole), nn.ReLU(), nn.Linear(whole, 3 * sizes.queries))
        self.query = Pointwise(whole + 3, whole)
        self.query_mlp = nn.Sequential(
            nn.LeakyReLU(SLOPE), Pointwise(whole, whole), nn.LeakyReLU(SLOPE), Pointwise(whole, d)
        )
        self.decoder = nn.ModuleList(DecoderBlock(attention, own, sizes, i == 0) for i in range(sizes.decoder_layers))
        self.apply(initialise)
        self.output_summary = NormedMLP(d, whole, whole)  # from here on torch's own initialisation
        self.reduce = nn.Linear(whole + d + 3, d)
        self.folds = nn.ModuleList([Fold(2, d), Fold(3, d)])
        self.register_buffer("grid", grid(sizes.side), persistent=False)

    def forward(self, points: Float[Tensor, "b n 3"]) -> tuple[Float[Tensor, "b coarse 3"], Float[Tensor, "b dense 3"]]:
        """The coarse cloud and the dense one, whose last points are the input."""
        sizes, points = self.sizes, at_least_single(points)
        sampled = sizes.coarse == "sampled"
        chosen = farthest_points(points, max(sizes.sample, sizes.queries * sampled), skip=sizes.skip)
        proxies, x = self.encode(points, chosen[:, : sizes.sample])
        centres, q = self.ask(x)
        near, near_proxies = (k_nearest(centres, cloud, sizes.geometry) for cloud in (centres, proxies))
        carry = None
        for block in self.decoder:
            q, carry = block(q, x, near, near_proxies, carry)
        known = take(points, chosen[:, : sizes.queries]) if sampled else points
        return torch.cat([centres, known], dim=1), torch.cat([self.rebuild(centres, q), points], dim=1)

    def encode(
        self, points: Float[Tensor, "b n 3"], chosen: Int[Tensor, "b sample"]
    ) -> tuple[Float[Tensor, "b proxies 3"], Float[Tensor, "b proxies d"]]:
        """Proxies, and what the encoder makes of them."""
        with without_autocast(points):
            proxies, features = self.grouper(points, chosen)
            position = self.position(proxies)
        x, near = self.embedding(features), k_nearest(proxies, proxies, self.sizes.geometry)
        carry = None
        for block in self.encoder:
            x, carry = block(x + position, near, carry)
        return proxies, x

    def ask(self, x: Float[Tensor, "b proxies d"]) -> tuple[Float[Tensor, "b q 3"], Float[Tensor, "b q d"]]:
        """The coarse points, which are predicted first, and the query that starts from each."""
        whole = self.summary(x).max(dim=1).values
        with without_autocast(x):
            centres = rearrange(self.coarse(at_least_single(whole)), "b (q xyz) -> b q xyz", xyz=3)
        return centres, self.query_mlp(of_parts(self.query, whole[:, None], centres))

    def rebuild(self, centres: Float[Tensor, "b q 3"], q: Float[Tensor, "b q d"]) -> Float[Tensor, "b predicted 3"]:
        """A patch of points around each centre, patch after patch."""
        whole = self.output_summary(q).max(dim=1, keepdim=True).values
        r = of_parts(self.reduce, whole, q, centres)
        patch = self.get_buffer("grid").expand(*r.shape[:2], -1, -1)
        for fold in self.folds:
            patch = fold(patch, r)
        return (centres[:, :, None] + patch).flatten(1, 2)


class EncoderBlock(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: Sizes, first: bool):
        super().__init__()
        self.norm = nn.LayerNorm(sizes.dim)
        self.attention = slot(attention, sizes, Pattern.NONCAUSAL_SELF, max_length=sizes.proxies)
        self.geometry = Geometry(sizes.dim, used=first)
        self.mlp = mlp(sizes) if mlp_beside(self.attention) else None

    def forward(
        self, x: Float[Tensor, "b n d"], near: Int[Tensor, "b n k"], carry: Any = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """The tokens, and what the slot passes to the next block."""
        n = self.norm(x)
        y, carry = carried_by_layers(self.attention, n, carry=carry)
        x = x + self.geometry(y, n, n, near)
        return (x if self.mlp is None else x + self.mlp(x)), carry


class DecoderBlock(nn.Module):
    def __init__(self, attention: AttentionFactory, own: AttentionFactory, sizes: Sizes, first: bool):
        super().__init__()
        self.norm, self.query_norm, self.memory_norm = (nn.LayerNorm(sizes.dim) for _ in range(3))
        lengths = {"max_length": sizes.queries}
        self.attention = slot(own, sizes, Pattern.NONCAUSAL_SELF, **lengths)
        self.geometry = Geometry(sizes.dim, used=first)
        self.cross = slot(attention, sizes, Pattern.NONCAUSAL_CROSS, **lengths, max_context=sizes.proxies)
        self.cross_geometry = Geometry(sizes.dim, used=first)
        self.mlp = mlp(sizes) if mlp_beside(self.attention, self.cross) else None

    def forward(
        self,
        q: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b m d"],
        near: Int[Tensor, "b n k"],
        near_memory: Int[Tensor, "b n k"],
        carry: Any = None,
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """The queries, and what their own slot passes to the next block."""
        n = self.norm(q)
        y, carry = carried_by_layers(self.attention, n, carry=carry)
        q = q + self.geometry(y, n, n, near)
        n, m = self.query_norm(q), self.memory_norm(memory)
        q = q + self.cross_geometry(self.cross(n, m), n, m, near_memory)
        return (q if self.mlp is None else q + self.mlp(q)), carry


class Geometry(nn.Module):
    """Attention output combined with max_j LeakyReLU(W [s_j - x_i, x_i]) over near places j; passed on if unused."""

    def __init__(self, dim: int, *, used: bool):
        super().__init__()
        self.used = used
        self.neighbours, self.join = nn.Linear(2 * dim, dim), nn.Linear(2 * dim, dim)
        self.requires_grad_(used)

    def forward(
        self,
        y: Float[Tensor, "b n d"],
        x: Float[Tensor, "b n d"],
        source: Float[Tensor, "b m d"],
        near: Int[Tensor, "b n k"],
    ) -> Float[Tensor, "b n d"]:
        if not self.used:
            return y
        by_difference, by_self = self.neighbours.weight.chunk(2, dim=1)
        nearest = take(F.linear(source, by_difference), near).max(dim=2).values  # LeakyReLU is monotonic
        nearest = nearest + F.linear(x, by_self - by_difference, self.neighbours.bias)
        return of_parts(self.join, y, F.leaky_relu(nearest, SLOPE))


class Fold(nn.Module):
    """A patch of points folded once: [point, description of the patch] -> point."""

    def __init__(self, axes: int, dim: int, hidden: int = 256):
        super().__init__()
        self.first, self.second = nn.Linear(axes + dim, hidden), nn.Linear(hidden, hidden // 2)
        self.third = nn.Linear(hidden // 2, 3)
        self.first_norm, self.second_norm = BatchNorm(hidden), BatchNorm(hidden // 2)

    def forward(self, patch: Float[Tensor, "b q s axes"], r: Float[Tensor, "b q d"]) -> Float[Tensor, "b q s 3"]:
        x = F.relu(normed(self.first_norm, of_parts(self.first, patch, r[:, :, None]).flatten(1, 2)))
        x = F.relu(normed(self.second_norm, self.second(x)))
        with without_autocast(x):
            return self.third(at_least_single(x)).unflatten(1, patch.shape[1:3])


class NormedMLP(nn.Module):
    """Two linear maps, batch norm and LeakyReLU between them."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.first, self.norm, self.second = Pointwise(inputs, hidden), BatchNorm(hidden), Pointwise(hidden, outputs)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        return self.second(F.leaky_relu(normed(self.norm, self.first(x)), SLOPE))


def normed(norm: BatchNorm, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
    return norm(x.mT).mT


def mlp(sizes: Sizes) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, sizes.mlp), nn.GELU(), nn.Linear(sizes.mlp, sizes.dim)
    )


def of_parts(linear: nn.Linear, *parts: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The linear map of concatenated parts, each of which may broadcast; coordinates are not rounded first."""
    weights = linear.weight.split([part.shape[-1] for part in parts], dim=1)
    total, dtype = linear.bias, linear.weight.dtype
    for part, weight in zip(parts, weights, strict=True):
        if part.shape[-1] > 3:
            share = F.linear(part, weight)
            dtype = share.dtype
        else:
            with without_autocast(part):
                share = F.linear(at_least_single(part), weight)
        total = total + share
    return total.to(dtype)


def slot(attention: AttentionFactory, sizes: Sizes, pattern: Pattern, **lengths: int) -> Attention:
    """A mechanism with or without biased queries, keys and values; its output map has a bias either way."""
    shell = {"dropout": sizes.attention_dropout, **lengths}
    layer = attention(sizes.dim, sizes.heads, pattern, bias=sizes.qkv_bias != "none", **shell)
    if sizes.qkv_bias == "inexact" and layer.meta.exact:
        layer = attention(sizes.dim, sizes.heads, pattern, bias=False, **shell)
    out = getattr(layer, "out", None)
    if isinstance(out, nn.Linear) and out.bias is None:
        out.bias = nn.Parameter(torch.zeros(out.out_features))
    return layer


def grid(side: int) -> Float[Tensor, "s 2"]:
    """The points of a square from -1 to 1, the first coordinate fastest."""
    axis = torch.linspace(-1, 1, side)
    return torch.cartesian_prod(axis, axis).flip(dims=[1])


def initialise(module: nn.Module) -> None:
    """As the authors' code initialises its transformer, linear maps inside a mechanism included."""
    if isinstance(module, Pointwise):
        nn.init.xavier_normal_(module.weight)
    elif isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)  # cut off at -2 and 2
        if module.bias is not None:
            nn.init.zeros_(module.bias)
