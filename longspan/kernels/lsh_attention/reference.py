"""The law of attention within buckets: how often each query sees each key, written out as a matrix."""

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single


def lsh_attention(
    z: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    buckets: Int[Tensor, "b h r n"],
    *,
    left: int,
    right: int,
    scale: float,
) -> Float[Tensor, "b h n e"]:
    return weights(z, keys(z, scale), times_bucketed(buckets, left=left, right=right)).to(v.dtype) @ v


def keys(z: Float[Tensor, "*n c"], scale: float) -> Float[Tensor, "*n c"]:
    """z at the length `scale`, and finite where z vanishes; in single precision or better."""
    z = at_least_single(z)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z * (scale * (length.square() + 1e-6 * z.shape[-1]).rsqrt())


def chunked(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    buckets: Int[Tensor, "b h r n"],
    *,
    chunk: int,
    before: int,
    after: int,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    times = times_chunked(buckets, chunk=chunk, before=before, after=after, causal=causal, key_mask=key_mask)
    return weights(q, k, times).to(v.dtype) @ v


def times_bucketed(buckets: Int[Tensor, "b h r n"], *, left: int, right: int) -> Int[Tensor, "b h n n"]:
    """In how many rounds query i sees key j."""
    same = buckets[..., :, None] == buckets[..., None, :]
    rank = same.tril().sum(dim=-1)  # a token's place in its own bucket, from 1 on
    lag = rank[..., None, :] - rank[..., :, None]
    return (same & (lag >= -left) & (lag <= right)).sum(dim=2)


def times_chunked(
    buckets: Int[Tensor, "b h r n"],
    *,
    chunk: int,
    before: int,
    after: int,
    causal: bool,
    key_mask: Bool[Tensor, "b n"] | None,
) -> Int[Tensor, "b h n n"]:
    """How often the chunks that query i sees, over all rounds, hold key j."""
    rounds, n = buckets.shape[2:]
    chunks = -(-n // chunk)
    place = buckets.argsort(dim=-1, stable=True).argsort(dim=-1)
    own = place // chunk + chunks * torch.arange(rounds, device=place.device)[:, None]
    one, other = rearrange(own, "b h r n -> b h r 1 n 1"), rearrange(own, "b h r n -> b h 1 r 1 n")
    met = sum((other - one - step) % (rounds * chunks) == 0 for step in range(-before, after + 1))
    times = reduce(torch.as_tensor(met), "b h r other n m -> b h n m", "sum")
    times = times.tril() if causal else times
    return times if key_mask is None else times * key_mask[:, None, None]


def weights(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], times: Int[Tensor, "b h n n"]
) -> Float[Tensor, "b h n n"]:
    """The softmax of q . k with every key as often as it is seen; oneself only where there is nobody else."""
    oneself = torch.eye(q.shape[2], dtype=times.dtype, device=q.device)
    times = times * (1 - oneself)
    times = torch.where(times.sum(dim=-1, keepdim=True) == 0, oneself, times)
    scores = at_least_single(q.to(k.dtype) @ k.mT)
    return torch.softmax(scores + times.to(scores.dtype).log(), dim=-1)
