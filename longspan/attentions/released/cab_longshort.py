"""Causal long-short attention as CAB released it: every softmax includes a memory of zeros before the sequence.

    y_i = softmax over near and far keys of the scores      near  q . k_j / sqrt(c) + u . k_j + (q' + t) . s(i - j) A
                                                            far   q . k'_r / sqrt(c) + q' . (s(summaries between) B + b)

with q' = q / sqrt(c), a sinusoid s of the distance as in Transformer-XL, the `window` last tokens (near) and `rank`
summaries of each earlier `chunk` (far) as in `longshort`, and no biases in the four projections. The idea is a memory
of the last `memory` tokens of the previous segment; the release always has one, and it is zeros: its keys are the
biases of the layer norms, and take weight away from real tokens. The summaries of a memory are pooled head by head
before they are projected. `carried` passes the last tokens on to the next segment, as the authors of the mechanism do.

CAB has `window` = 16. Code: Shark-NLP/CAB, modules/transformer_ls.py, after NVIDIA/transformer-ls,
autoregressive/model_lib/layer.py. As there, padding is not masked. Departs from it in: lengths need not be multiples of
`chunk` or `window`, where the release fails; a decoding step runs the whole history again, where the release forgets
it.
"""

import math
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.gather import TILE, at_distance, windows
from longspan.kernels.precision import at_least_single, without_autocast


class CABLongShort(Attention):
    meta = AttentionMeta(
        title="LongShort (CAB)",
        paper="arXiv:2210.07661",
        family="hybrid",
        cost="n^2",
        patterns=(Pattern.CAUSAL_SELF,),
        dropout="weights",
        fidelity=True,
        remark="A memory of zeros takes a share of every softmax, and padding is not masked.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        window: int = 16,
        chunk: int = 64,
        rank: int = 1,
        memory: int = 1024,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if min(window, chunk, rank) < 1:
            raise UsageError(f"window, chunk and rank must be at least 1, got {window}, {chunk} and {rank}.")
        if memory < 0 or memory % chunk:
            raise UsageError(f"A memory is cut into chunks of {chunk}, got memory={memory}; choose a multiple.")
        self.window, self.chunk, self.rank, self.memory, inner = window, chunk, rank, memory, self.inner
        self.query, self.key, self.value = (nn.Linear(dim, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, dim, bias=False)
        self.near_norm, self.far_norm = nn.LayerNorm(inner), nn.LayerNorm(inner)
        # wrapped, since the backbone initialises bare linear layers
        self.summaries = nn.Sequential(nn.Linear(dim, heads * rank, bias=bias))
        self.near_places = nn.Sequential(nn.Linear(dim, inner, bias=False))
        self.far_places = nn.Sequential(nn.Linear(dim, inner, bias=bias))
        self.near_key_bias, self.near_place_bias = (nn.Parameter(torch.zeros(heads, 1, inner // heads)) for _ in "kp")

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        return self.carried(x, context, mask=mask, context_mask=context_mask)[0]

    def carried(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
        carry: Float[Tensor, "b l d"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b l d"]]:
        """`forward` of a segment after the carried tokens (zeros if none), and its own last tokens, detached."""
        self._source(x, context, mask, context_mask)
        memory = x.new_zeros(len(x), self.memory, self.dim) if carry is None else carry.to(x.dtype)
        tokens = torch.cat([memory, x], dim=1)
        return self._attend(x, memory), tokens[:, tokens.shape[1] - self.memory :].detach()

    def _attend(self, x: Float[Tensor, "b n d"], memory: Float[Tensor, "b l d"]) -> Float[Tensor, "b n d"]:
        n, whole = x.shape[1], x.shape[1] // self.chunk * self.chunk
        near = torch.cat([memory[:, self.memory - min(self.memory, self.window - 1) :], x], dim=1)
        q, k, v = self._split(self.query(x)), *(self._normed(self.near_norm, f(near)) for f in (self.key, self.value))
        old, new = self._pooled(memory, memory), x[:, :whole]
        far_k, far_v = (
            self._normed(self.far_norm, torch.cat([project(old), self._pooled(new, project(new))], dim=1))
            for project in (self.key, self.value)
        )
        # how many summaries lie between each query and each summary; negative if the summary is not visible yet
        older = self.memory // self.chunk * self.rank
        places = torch.arange(n, device=x.device) // self.chunk * self.rank
        behind = places[:, None] - 1 - torch.arange(-older, far_k.shape[2] - older, device=x.device)
        by_near, by_far = self._place_scores(q, far_k.shape[2])
        by_far = at_distance(by_far, behind) - self.near_key_bias.to(q.dtype) @ far_k.mT  # u is for near keys only
        y = windows(
            q + q.shape[-1] ** 0.5 * self.near_key_bias.to(q.dtype), k, v, left=self.window - 1, right=0,
            extra=(far_k, far_v, (behind >= 0).expand(len(x), -1, -1)), bias=(by_near, by_far),
            size=max(TILE, self.window), dropout=self.active_dropout,
        )  # fmt: skip
        return self.out(rearrange(y, "b h n c -> b n (h c)"))

    def _pooled(self, x: Float[Tensor, "b n d"], values: Float[Tensor, "b n e"]) -> Float[Tensor, "b f e"]:
        """Means of the values, head by head, with softmax weights over each chunk of x."""
        logits, u = (
            rearrange(self._split(w), "b h (g s) c -> b h g s c", s=self.chunk) for w in (self.summaries(x), values)
        )
        p = at_least_single(logits).softmax(dim=3).to(u.dtype)
        return rearrange(p.mT @ u, "b h g r c -> b (g r) (h c)")

    def _place_scores(
        self, q: Float[Tensor, "b h n c"], farthest: int
    ) -> tuple[Float[Tensor, "b h n w"], Float[Tensor, "b h n f"]]:
        """The position scores by distance, near and far."""
        q, weight = q / q.shape[-1] ** 0.5, self.out.weight
        distance = torch.arange(max(self.window, farthest), dtype=at_least_single(weight).dtype, device=q.device)
        table = sinusoid(distance, self.dim).to(weight.dtype)
        near = self.near_places(table[: self.window].flip(0))[None]  # farthest first
        far = self.far_places(table[:farthest])[None]
        near, far = self._split(near).mT.to(q.dtype), self._split(far).mT.to(q.dtype)
        return (q + self.near_place_bias.to(q.dtype)) @ near, q @ far

    def _normed(self, norm: nn.LayerNorm, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        """A layer norm over all heads together."""
        with without_autocast(x):
            return self._split(norm(x.to(norm.weight.dtype)).to(x.dtype))


def sinusoid(distance: Float[Tensor, " s"], width: int) -> Float[Tensor, "s width"]:
    """Sines and then cosines of the distance, at frequencies from 1 down to 1 / 10000."""
    half = torch.arange(0, width, 2, dtype=distance.dtype, device=distance.device)
    angle = distance[:, None] * torch.exp(half * (-math.log(10_000) / width))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :width]
