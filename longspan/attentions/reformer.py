"""Reformer: queries and keys are one vector, and a token attends to those that hash into the same bucket.

    z = x W_qk      k_j = z_j / |z_j|      bucket_r(i) = argmax [z_i R_r, -z_i R_r]      R_r Gaussian, r = 1 ... rounds
    y_i = sum_r sum_{j in V_r(i)} exp(z_i . k_j) v_j / sum_r sum_{j in V_r(i)} exp(z_i . k_j)

that is, each round is a softmax over V_r(i) and the rounds are weighed by their sums. A token sees itself only where it
sees nothing else in any round. `scale` multiplies the logits (1 is the paper's; the common PyTorch port uses c^-1/2).

    mode = "bucket"   V_r(i) = real tokens of i's bucket: the `chunk` before i and the `chunk` after it, or when
                      causal the 2 chunk - 1 before it. So what i sees depends on real tokens alone, and when causal
                      on none after i.
    mode = "chunk"    Hugging Face's: tokens sorted by bucket are cut into chunks, and V_r(i) = the tokens of any bucket
                      in i's chunk, in `chunks_before` before it and `chunks_after` after it, in a ring through all
                      rounds (only those before i when causal). A fidelity setting: all tokens together decide where
                      chunks end, so that later tokens choose what earlier ones see, and padding moves the chunks.

More than 128 buckets are numbered by a pair of such hashes, f1 f2 = `buckets`, both even and as equal as can be, with
columns of R for each: bucket = f2 b1 + b2. So a token is compared with f1 + f2 directions, not with all buckets.

The rotations R are drawn once and saved with the weights. The hash is taken in single precision also under autocast: a
rounded z sends some tokens to another bucket, where all they see is different. So where z is rounded, tokens are hashed
by x (W_qk R) in place of z R. Paper: arXiv:2001.04451. Departs from the paper in: what a token sees is counted within
its bucket (chunks leak the future); the number of buckets follows the greatest length, so that a bucket holds about
half a chunk of it, and not the length at hand; many buckets are pairs of hashes, as in the authors' code; a key met in
several rounds counts each time; rotations are not drawn anew in training; the reversible layers are no part of it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, History, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.bf16x3_matmul import bf16x3_matmul
from longspan.kernels.lsh_attention import chunked, keys, lsh_attention, reference
from longspan.kernels.nearest_direction import nearest_direction
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import at_least_single, without_autocast

DIRECTLY = 128  # buckets that one hash may have


@dataclass
class Hashed(DecodeState):
    """All keys, values and buckets so far, left-aligned."""

    k: Float[Tensor, "b t h c"]
    v: Float[Tensor, "b t h e"]
    buckets: Int[Tensor, "b t h r"]
    lengths: Int[Tensor, " b"]


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
        mode: Literal["bucket", "chunk"] = "bucket",
        chunks_before: int = 1,
        chunks_after: int = 0,
        scale: float = 1.0,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if rounds < 1 or chunk < 1:
            raise UsageError(
                f"reformer needs at least 1 round and 1 token a chunk, got rounds={rounds}, chunk={chunk}."
            )
        if buckets is None:
            buckets = usual_buckets(self.max_length, chunk)
        if buckets < 2 or buckets % 2:
            raise UsageError(
                f"Buckets come in pairs of opposite directions, got buckets={buckets}; choose an even number."
            )
        if min(chunks_before, chunks_after) < 0 or (mode == "bucket" and (chunks_before, chunks_after) != (1, 0)):
            raise UsageError(
                f"chunks_before and chunks_after count chunks of mode='chunk', got {chunks_before} and {chunks_after} "
                f"with mode={mode!r}; leave them out, or give numbers from 0 on with mode='chunk'."
            )
        self.buckets, self.chunk, self.mode, self.scale = buckets, chunk, mode, scale
        self.factors = factors_of(buckets)
        self.chunks_before, self.chunks_after = chunks_before, chunks_after
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
        return self._map_out(self._mix(*self._project(x), mask=mask))

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        z, v, buckets = map(layout.unpack, self._project(x))
        return self._map_out(layout.pack(self._mix(z, v, buckets, mask=layout.mask)))

    def attend(
        self,
        z: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        buckets: Int[Tensor, "b h r n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """The mechanism between the projections; a padded token gives 0, except in mode `chunk`.

        `buckets` are those of z, unless somebody knows them better who has seen it before it was rounded.
        """
        buckets = self._apart(self.hash(z) if buckets is None else buckets, mask)
        buckets = buckets.to(torch.int16 if self.buckets < 2**15 else torch.int32)  # quicker to sort
        dropout = self.dropout if self.training else 0.0
        if self.mode == "bucket":
            y = lsh_attention(z, v, buckets, left=self.left, right=self.right, scale=self.scale, dropout=dropout)
            return y if mask is None else y.masked_fill(~mask[:, None, :, None], 0)
        return chunked(
            *(z.to(v.dtype), keys(z, self.scale).to(v.dtype), v, buckets),
            chunk=self.chunk,
            before=self.chunks_before,
            after=self.chunks_after,
            causal=self.pattern.causal,
            key_mask=mask,
            dropout=dropout,
        )

    def weights(
        self, z: Float[Tensor, "b h n c"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b h n n"]:
        """The matrix of attention weights, all rounds together."""
        buckets, k = self.hash(z, mask), keys(z, self.scale)
        if self.mode == "bucket":
            p = reference.weights(z, k, reference.times_bucketed(buckets, left=self.left, right=self.right))
            return p if mask is None else p.masked_fill(~mask[:, None, :, None], 0)
        around = {"chunk": self.chunk, "before": self.chunks_before, "after": self.chunks_after}
        causal = self.pattern.causal
        return reference.weights(z, k, reference.times_chunked(buckets, **around, causal=causal, key_mask=mask))

    def hash(self, z: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None = None) -> Int[Tensor, "b h r n"]:
        """The bucket of each token in each round; padded tokens share one more bucket, the last."""
        buckets = self._hash_vectors(rearrange(z, "b h n c -> b n h c"))
        return self._apart(rearrange(buckets, "b n h r -> b h r n"), mask)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        self._needs_decoding()
        if self.mode == "chunk":  # its chunks move with every token
            return super().prefill(x, context, mask=mask, context_mask=context_mask)
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        z, v, buckets = self._project(x)
        k = keys(z, self.scale).to(v.dtype)
        (k, lengths), (v, _), (buckets, _) = (left_align(u, mask) for u in (k, v, buckets))
        return y, Hashed(k, v, buckets, lengths)

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        if isinstance(state, History):
            return super().step(x_t, state)
        z, v_t, bucket = self._project(x_t)
        k_t = keys(z, self.scale).to(v_t.dtype)
        k, v, buckets = (
            _append(kept, new, state.lengths) for kept, new in ((state.k, k_t), (state.v, v_t), (state.buckets, bucket))
        )
        lengths = state.lengths + 1
        here = real(lengths, k.shape[1]) & ~real(state.lengths, k.shape[1])  # the new token itself
        same = (buckets == bucket[:, None]) & real(lengths, k.shape[1])[:, :, None, None]
        same = rearrange(same, "b t h r -> b h r t").contiguous()  # sums run along what lies side by side
        seen = same.cumsum(dim=3, dtype=torch.int32)
        lag = seen[..., -1:] - seen  # how many tokens of the bucket came after each
        times = (same & (lag <= self.left) & ~here[:, None, None]).sum(dim=2)
        times = torch.where(times.sum(dim=2, keepdim=True) == 0, here[:, None], times)
        scores = at_least_single(einsum(z.to(k.dtype), k, "b h c, b t h c -> b h t"))
        scores = scores + times.to(scores.dtype).log()
        y = einsum(scores.softmax(dim=2).to(v.dtype), v, "b h t, b t h e -> b h e")
        return self._map_out(y), Hashed(k, v, buckets, lengths)

    def _project(
        self, x: Float[Tensor, "*n d"]
    ) -> tuple[Float[Tensor, "*n h c"], Float[Tensor, "*n h e"], Int[Tensor, "*n h r"]]:
        """z, the values and the buckets."""
        z, v = (project(x).unflatten(-1, (self.heads, -1)) for project in (self.query_key, self.value))
        return z, v, self._hash_tokens(x) if z.element_size() < 4 else self._hash_vectors(z)

    def _hash_vectors(self, z: Float[Tensor, "*n h c"]) -> Int[Tensor, "*n h r"]:
        with torch.no_grad(), without_autocast(z):
            z = at_least_single(z)
            u = einsum(z, self.rotations.to(z.dtype), "... h c, h c r half -> ... h r half")
            return nearest_direction(u, self.factors)

    def _hash_tokens(self, x: Float[Tensor, "*n d"]) -> Int[Tensor, "*n h r"]:
        """The buckets of z in single precision, where there is only a rounded z."""
        with torch.no_grad(), without_autocast(x):
            weight = at_least_single(self.query_key.weight).unflatten(0, (self.heads, -1))
            rotations, offset = self.rotations.to(weight.dtype), None
            directions = einsum(weight, rotations, "h c d, h c r half -> d h r half")
            if self.query_key.bias is not None:
                bias = self.query_key.bias.to(weight.dtype).unflatten(0, (self.heads, -1))
                offset = einsum(bias, rotations, "h c, h c r half -> h r half").flatten(0, 1)
            u = bf16x3_matmul(x.flatten(0, -2), directions.flatten(1))
            buckets = nearest_direction(u.unflatten(-1, (-1, rotations.shape[-1])), self.factors, offset)
        return buckets.view(*x.shape[:-1], self.heads, rotations.shape[2])

    def _mix(
        self,
        z: Float[Tensor, "b n h c"],
        v: Float[Tensor, "b n h e"],
        buckets: Int[Tensor, "b n h r"],
        *,
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b n h e"]:
        """`attend` for tensors that lie token by token."""
        z, v = (rearrange(u, "b n h c -> b h n c") for u in (z, v))
        y = self.attend(z, v, mask=mask, buckets=rearrange(buckets, "b n h r -> b h r n"))
        return rearrange(y, "b h n e -> b n h e")

    def _apart(self, buckets: Int[Tensor, "b h r n"], mask: Bool[Tensor, "b n"] | None) -> Int[Tensor, "b h r n"]:
        """Padded tokens in a bucket of their own."""
        return buckets if mask is None else buckets.masked_fill(~mask[:, None, None], self.buckets)

    def _map_out(self, y: Float[Tensor, "*n h e"]) -> Float[Tensor, "*n d"]:
        return self.out(y.flatten(-2))


def _append(kept: Tensor, new: Tensor, lengths: Int[Tensor, " b"]) -> Tensor:
    """One more token behind the last of each row."""
    rows = torch.arange(len(lengths), device=lengths.device)
    longer = torch.cat([kept, torch.zeros_like(new)[:, None]], dim=1)
    return longer.index_put_((rows, lengths), new.to(longer.dtype))


def usual_buckets(max_length: int | None, chunk: int) -> int:
    """The power of two at or below two buckets a chunk of the greatest length; 32 where that is not known.

    >>> usual_buckets(2_001, 64), usual_buckets(10, 64)
    (32, 2)
    """
    return 32 if max_length is None else 2 ** max(1, (2 * max_length // chunk).bit_length() - 1)


def factors_of(buckets: int) -> tuple[int, ...]:
    """The sizes of the hashes that number the buckets together: one, or two even ones as equal as can be.

    >>> factors_of(128), factors_of(512), factors_of(264)
    ((128,), (16, 32), (12, 22))
    """
    if buckets <= DIRECTLY:
        return (buckets,)
    if buckets % 4:
        raise UsageError(
            f"More than {DIRECTLY} buckets are pairs of two even hashes, got buckets={buckets}; choose a multiple of 4."
        )
    quarter = buckets // 4
    less = next(divisor for divisor in range(math.isqrt(quarter), 0, -1) if quarter % divisor == 0)
    return 2 * less, 2 * (quarter // less)
