"""Linear attention on ragged rows, by padding them to one length: the law."""

import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.packing import Layout, real
from longspan.kernels.precision import at_least_single


def ragged_linear(
    q: Float[Tensor, "n h r"],
    k: Float[Tensor, "t h r"],
    v: Float[Tensor, "t h e"],
    query_cu_seqlens: Int[Tensor, " b_plus_1"],
    key_offsets: Int[Tensor, " b_plus_1"],
    max_query_seqlen: int,
    longest_key: int,
    elu: bool,
    eps: float,
) -> Float[Tensor, "n h e"]:
    queries, keys = rows(query_cu_seqlens, max_query_seqlen), rows(key_offsets, longest_key)
    # Zeros where a row has ended: such a key adds nothing to any sum.
    fq, fk = queries.unpack(features(q, elu)), keys.unpack(features(k, elu))
    values = keys.unpack(at_least_single(v))
    numerator = einsum(fq, einsum(fk, values, "b m h r, b m h e -> b h r e"), "b n h r, b h r e -> b n h e")
    denominator = einsum(fq, fk.sum(dim=1), "b n h r, b h r -> b n h") + eps
    y = queries.pack(numerator) / queries.pack(denominator)[..., None]
    return y.to(v.dtype)


def rows(cu_seqlens: Int[Tensor, " b_plus_1"], max_seqlen: int) -> Layout:
    return Layout.of_mask(real(cu_seqlens.diff(), max_seqlen))


def features(x: Float[Tensor, "t h r"], elu: bool) -> Float[Tensor, "t h r"]:
    x = at_least_single(x)
    return F.elu(x) + 1 if elu else x
