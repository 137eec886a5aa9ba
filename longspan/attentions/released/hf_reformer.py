"""Reformer as Hugging Face released it: attention within chunks of the sorted tokens, whatever buckets they contain.

    z = x W_qk      k_j = z_j / |z_j|      bucket_r(i) = argmax [z_i R_r, -z_i R_r]      r = 1 ... rounds
    y_i = sum_r sum_{j in V_r(i)} exp(z_i . k_j) v_j / sum_r sum_{j in V_r(i)} exp(z_i . k_j)

The idea (`reformer`) is attention among tokens of one bucket. Here the tokens of every round are sorted by bucket and
cut into chunks, and V_r(i) are the tokens in i's chunk, in the `chunks_before` chunks before it and in the
`chunks_after` chunks after it, in a ring through all rounds; when causal only those before i. i itself is seen only if
there is no other. So chunk boundaries depend on all tokens: later tokens affect what earlier ones see, and padding
moves the chunks. With more than 128 buckets, each is a pair of hashes.

Code: huggingface/transformers, models/reformer, LSHSelfAttention. Departs from it in: rotations are drawn once and
saved with the weights; a row need not be a multiple of `chunk`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.lsh_attention import keys, merge_rounds
from longspan.kernels.lsh_attention.hash import hash_factors, hash_vectors
from longspan.kernels.precision import at_least_single


class HFReformer(Attention):
    meta = AttentionMeta(
        title="Reformer (Hugging Face)",
        paper="arXiv:2001.04451",
        family="hashing",
        cost="n log n",
        patterns=SELF_PATTERNS,
        stochastic=True,
        length_bound=True,
        dropout="weights",
        fidelity=True,
        remark="Later tokens choose what earlier ones see, and padding moves the chunks.",
    )

    rotations: Float[Tensor, "h c r half"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        rounds: int = 2,
        buckets: int = 32,
        chunk: int = 64,
        chunks_before: int = 1,
        chunks_after: int = 0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if min(rounds, chunk) < 1 or min(chunks_before, chunks_after) < 0:
            raise UsageError(
                f"hf_reformer needs at least 1 round and 1 token a chunk, and counts neighbours from 0 on, got "
                f"rounds={rounds}, chunk={chunk}, chunks_before={chunks_before}, chunks_after={chunks_after}."
            )
        self.buckets, self.factors, self.chunk = buckets, hash_factors(buckets), chunk
        self.neighbours = range(-chunks_before, chunks_after + 1)
        self.query_key = nn.Linear(dim, self.inner, bias=bias)
        self.value = nn.Linear(dim, self.inner, bias=bias)
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.register_buffer("rotations", torch.randn(heads, self.inner // heads, rounds, sum(self.factors) // 2))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        z, v = (rearrange(p(x), "b n (h c) -> b h n c", h=self.heads) for p in (self.query_key, self.value))
        return self.out(rearrange(self.attend(z, v, mask=mask), "b h n e -> b n (h e)"))

    def attend(
        self, z: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b h n e"]:
        """The mechanism between the projections."""
        order, k = self.hash(z, mask).argsort(dim=-1, stable=True), keys(z, 1.0).to(v.dtype)
        q, k, values = (self._chunks(_gather(u[:, :, None], order)) for u in (z.to(v.dtype), k, v))
        real = torch.ones_like(order) if mask is None else mask[:, None, None].expand_as(order).gather(-1, order)
        real, position = self._around(self._chunks(real.bool())), self._chunks(order)
        visible = real[..., None, :] & (position[..., :, None] != self._around(position)[..., None, :])
        if self.pattern.causal:
            visible = visible & (position[..., :, None] > self._around(position)[..., None, :])

        scores = at_least_single(q @ self._around(k).mT).masked_fill(~visible, -torch.inf)
        largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min / 4)
        weights = (scores - largest).exp()
        total = weights.sum(dim=-1, keepdim=True)
        y = F.dropout(weights, self.dropout, self.training).to(v.dtype) @ self._around(values)

        inverse, (rounds, n) = order.argsort(dim=-1), order.shape[2:]
        chunks = (rearrange(u, "b h (r g) s c -> b h r (g s) c", r=rounds)[:, :, :, :n] for u in (y, total, largest))
        y, total, largest = (_gather(u, inverse) for u in chunks)
        return merge_rounds(y, total, largest, v)

    def hash(self, z: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None = None) -> Int[Tensor, "b h r n"]:
        """The bucket of each token in each round; padded tokens share one more bucket, the last."""
        buckets = hash_vectors(rearrange(z, "b h n c -> b n h c"), self.rotations, self.factors)
        buckets = rearrange(buckets, "b n h r -> b h r n")
        return buckets if mask is None else buckets.masked_fill(~mask[:, None, None], self.buckets)

    def _chunks(self, x: Shaped[Tensor, "b h r n *c"]) -> Shaped[Tensor, "b h rg s *c"]:
        """One chunk after the other, the rounds in sequence; the last chunk of each round is padded with 0."""
        x = F.pad(x, (0, 0) * (x.ndim - 4) + (0, -x.shape[3] % self.chunk))
        return x.unflatten(3, (-1, self.chunk)).flatten(2, 3)

    def _around(self, x: Shaped[Tensor, "b h g s *c"]) -> Shaped[Tensor, "b h g span *c"]:
        """Each chunk with its neighbours, in a ring."""
        return torch.cat([x.roll(-step, dims=2) for step in self.neighbours], dim=3)


def _gather(x: Shaped[Tensor, "b h #r n c"], order: Int[Tensor, "b h r n"]) -> Shaped[Tensor, "b h r n c"]:
    x = x.expand(-1, -1, order.shape[2], -1, -1)
    return x.gather(3, order[..., None].expand_as(x))
