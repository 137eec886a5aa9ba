"""Reformer: queries and keys are one vector, and a token attends to those that hash into the same bucket.

    z = x W_qk      k_j = z_j / |z_j|      bucket_r(i) = argmax [z_i R_r, -z_i R_r]      R_r Gaussian, r = 1 ... rounds
    y_i = sum_r sum_{j in V_r(i)} exp(z_i . k_j) v_j / sum_r sum_{j in V_r(i)} exp(z_i . k_j)

that is, each round is a softmax over V_r(i), and the rounds are weighted by their sums. V_r(i) are real tokens in i's
bucket: the `chunk` before i and the `chunk` after it, or when causal the 2 chunk - 1 before it. So what i sees depends
only on real tokens, and when causal on none after i. A token sees itself only if it sees nothing else in any round.
`scale` multiplies the logits (1 is the paper's; the common PyTorch port uses c^-1/2).

With more than 128 buckets, each is a pair of hashes (`kernels/lsh_attention/hash.py`). The rotations R are drawn once
and saved with the weights. Hashes are computed in single precision even under autocast. Hugging Face's code is
`hf_reformer`. Paper: arXiv:2001.04451. Departs from the paper in: what a token sees is counted within its bucket
(chunks leak the future); the number of buckets follows the maximum length, not the current one, so that a bucket holds
about half a chunk of it; many buckets are pairs of hashes, as in the authors' code; a key met in several rounds counts
each time; rotations are not redrawn in training; the reversible layers are not included.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.lsh_attention import keys, lsh_attention, reference
from longspan.kernels.lsh_attention.hash import hash_factors, hash_projected, hash_vectors
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import at_least_single


@dataclass
class HashedCache(KeyValueCache):
    """All keys, values and buckets so far."""

    buckets: Int[Tensor, "b h t r"]


class Reformer(Attention):
    meta = AttentionMeta(
        title="Reformer",
        paper="arXiv:2001.04451",
        family="hashing",
        cost="n log n",
        patterns=SELF_PATTERNS,
        stochastic=True,
        length_bound=True,
        dropout="weights",
        remark="Shares one projection between queries and keys; the chunks of released codes leak the future.",
    )

    rotations: Float[Tensor, "h c r half"]

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        rounds: int = 2,
        buckets: int | None = None,
        chunk: int = 64,
        scale: float = 1.0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if rounds < 1 or chunk < 1:
            raise UsageError(
                f"reformer needs at least 1 round and 1 token a chunk, got rounds={rounds}, chunk={chunk}."
            )
        self.buckets = usual_buckets(self.max_length, chunk) if buckets is None else buckets
        self.factors, self.chunk, self.scale = hash_factors(self.buckets), chunk, scale
        self.left, self.right = (2 * chunk - 1, 0) if self.pattern.causal else (chunk, chunk)
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
        return self.out(self._mix(*self._project(x), mask=mask).flatten(-2))

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        z, v, buckets = self._project(x)
        row = layout.index // layout.mask.shape[1]  # concatenated rows, each with its own buckets
        apart = buckets.to(torch.int32) + self.buckets * row.to(torch.int32)[:, None, None]
        return self.out(self._mix(z[None], v[None], apart[None], mask=None, rows=len(layout.mask))[0].flatten(-2))

    def attend(
        self,
        z: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        buckets: Int[Tensor, "b h r n"] | None = None,
        rows: int = 1,
    ) -> Float[Tensor, "b h n e"]:
        """The mechanism between the projections; a padded token gives 0.

        `buckets` are computed from z unless given, as when they come from z before rounding. With several `rows` packed
        into one sequence there are `rows` times as many buckets.
        """
        buckets = self._apart(self.hash(z) if buckets is None else buckets, mask)
        buckets = buckets.to(torch.int16 if rows * self.buckets < 2**15 else torch.int32)  # faster to sort
        how = {"left": self.left, "right": self.right, "scale": self.scale, "dropout": self.active_dropout}
        y = lsh_attention(z, v, buckets, **how)
        return y if mask is None else y.masked_fill(~mask[:, None, :, None], 0)

    def weights(
        self, z: Float[Tensor, "b h n c"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b h n n"]:
        """The matrix of attention weights, all rounds together."""
        p = reference.weights(z, self.hash(z, mask), left=self.left, right=self.right, scale=self.scale)
        return p if mask is None else p.masked_fill(~mask[:, None, :, None], 0)

    def hash(self, z: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None = None) -> Int[Tensor, "b h r n"]:
        """The bucket of each token in each round; padded tokens share one more bucket, the last."""
        buckets = hash_vectors(rearrange(z, "b h n c -> b n h c"), self.rotations, self.factors)
        return self._apart(rearrange(buckets, "b n h r -> b h r n"), mask)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *_: Any) -> HashedCache:
        z, v, buckets = self._project(x)
        k, v = (rearrange(u, "b n h c -> b h n c") for u in (keys(z, self.scale).to(v.dtype), v))
        return HashedCache.of(k, v, mask, buckets=left_align(buckets, mask)[0].transpose(1, 2))

    def step(self, x_t: Float[Tensor, "b d"], state: HashedCache) -> tuple[Float[Tensor, "b d"], HashedCache]:
        self._needs_decoding()
        z, v_t, bucket = self._project(x_t)
        k_t = keys(z, self.scale).to(v_t.dtype)
        before, state = state.lengths, state.plus(k_t, v_t, buckets=append(state.buckets, bucket, state.lengths))
        tokens = real(state.lengths, state.k.shape[2])
        itself = tokens & ~real(before, state.k.shape[2])
        same = (state.buckets == bucket[:, :, None]) & tokens[:, None, :, None]
        same = rearrange(same, "b h t r -> b h r t").contiguous()  # sums run along contiguous memory
        seen = same.cumsum(dim=3, dtype=torch.int32)
        lag = seen[..., -1:] - seen  # how many tokens of the bucket follow each one
        times = (same & (lag <= self.left) & ~itself[:, None, None]).sum(dim=2)
        times = torch.where(times.sum(dim=2, keepdim=True) == 0, itself[:, None], times)
        scores = at_least_single(einsum(z.to(state.k.dtype), state.k, "b h c, b h t c -> b h t"))
        scores = scores + times.to(scores.dtype).log()
        y = einsum(scores.softmax(dim=2).to(v_t.dtype), state.v, "b h t, b h t e -> b h e")
        return self.out(y.flatten(-2)), state

    def _project(
        self, x: Float[Tensor, "*n d"]
    ) -> tuple[Float[Tensor, "*n h c"], Float[Tensor, "*n h e"], Int[Tensor, "*n h r"]]:
        """z, the values and the buckets, which are those of z before any rounding."""
        z, v = (project(x).unflatten(-1, (self.heads, -1)) for project in (self.query_key, self.value))
        if z.element_size() >= 4:
            return z, v, hash_vectors(z, self.rotations, self.factors)
        return z, v, hash_projected(x, self.query_key.weight, self.query_key.bias, self.rotations, self.factors)

    def _mix(
        self,
        z: Float[Tensor, "b n h c"],
        v: Float[Tensor, "b n h e"],
        buckets: Int[Tensor, "b n h r"],
        *,
        mask: Bool[Tensor, "b n"] | None,
        rows: int = 1,
    ) -> Float[Tensor, "b n h e"]:
        """`attend` for tensors laid out token by token."""
        z, v = (rearrange(u, "b n h c -> b h n c") for u in (z, v))
        y = self.attend(z, v, mask=mask, buckets=rearrange(buckets, "b n h r -> b h r n"), rows=rows)
        return rearrange(y, "b h n e -> b n h e")

    def _apart(self, buckets: Int[Tensor, "b h r n"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, "b h r n"]:
        """The buckets, with padded tokens in one of their own."""
        return buckets if mask is None else buckets.masked_fill(~mask[:, None, None], self.buckets)


def usual_buckets(max_length: int | None, chunk: int) -> int:
    """The power of two at or below two buckets per chunk of the maximum length; 32 if that is unknown.

    >>> usual_buckets(2_001, 64), usual_buckets(10, 64)
    (32, 2)
    """
    return 32 if max_length is None else 2 ** max(1, (2 * max_length // chunk).bit_length() - 1)
