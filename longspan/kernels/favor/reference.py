"""Attention by positive random features in plain PyTorch: the definition.

Features are kept as logarithms until a maximum is subtracted, which cancels in the quotient. A summary of keys is
(sums, log_scale): sum_s phi(k_s) (v_s, 1)^T, each feature divided by the exponential of its largest logarithm.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.linear_attention.reference import chunked, divided, with_ones
from longspan.kernels.precision import at_least_single


def favor(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    projection: Float[Tensor, "r c"],
    key_mask: Bool[Tensor, "b m"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    log_q, log_k = log_features(q, projection), mask_logs(log_features(k, projection), key_mask)
    if not causal:
        return read_summary(log_q, *summarize(log_k, v)).to(v.dtype)
    # The pair (t, s) is scaled by exp(a_s - m_t), from the maximum a_s of the key to the running maximum m_t.
    (phi_q, _), (phi_k, a) = scale_by_token(log_q), scale_by_token(log_k)
    m = a.cummax(dim=2).values
    decay = F.pad(m[:, :, :-1] - m[:, :, 1:], (1, 0))
    y, _ = chunked(phi_q, phi_k * (a - m).exp()[..., None], with_ones(v), decay)
    return divided(y, floor=smallest_sum(y.dtype)).to(v.dtype)


def log_features(x: Float[Tensor, "b h *n c"], projection: Float[Tensor, "r c"]) -> Float[Tensor, "b h *n r"]:
    """The logarithm of phi."""
    x = at_least_single(x) / x.shape[-1] ** 0.25
    return x @ projection.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2


def mask_logs(logs: Float[Tensor, "b h n r"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n r"]:
    return logs if mask is None else logs.masked_fill(~rearrange(mask, "b n -> b 1 n 1"), -torch.inf)


def summarize(
    log_k: Float[Tensor, "b h m r"], v: Float[Tensor, "b h m e"]
) -> tuple[Float[Tensor, "b h r e_plus_1"], Float[Tensor, "b h r"]]:
    phi_k, log_scale = scale_by_feature(log_k)
    return phi_k.mT @ with_ones(v), log_scale


def update_summary(
    sums: Float[Tensor, "b h r e_plus_1"],
    log_scale: Float[Tensor, "b h r"],
    log_k: Float[Tensor, "b h r"],
    v: Float[Tensor, "b h e"],
) -> tuple[Float[Tensor, "b h r e_plus_1"], Float[Tensor, "b h r"]]:
    """The summary with one more key and value."""
    largest = torch.maximum(log_scale, log_k)
    fade, phi_k = (log_scale - largest).exp()[..., None], (log_k - largest).exp()[..., None]
    return sums * fade + phi_k * with_ones(v)[:, :, None], largest


def read_summary(
    log_q: Float[Tensor, "b h n r"], sums: Float[Tensor, "b h r e_plus_1"], log_scale: Float[Tensor, "b h r"]
) -> Float[Tensor, "b h n e"]:
    y = scale_by_token(log_q + log_scale[:, :, None])[0] @ sums
    return divided(y, floor=smallest_sum(y.dtype))


def scale_by_feature(logs: Float[Tensor, "b h m r"]) -> tuple[Float[Tensor, "b h m r"], Float[Tensor, "b h r"]]:
    """Each feature divided by its maximum over all tokens, which carries no gradient; also the logarithm of that."""
    largest = F.pad(logs.detach(), (0, 0, 1, 0), value=log_of_nothing(logs.dtype)).amax(dim=2)
    return (logs - largest[:, :, None]).exp(), largest


def scale_by_token(logs: Float[Tensor, "*n r"]) -> tuple[Float[Tensor, "*n r"], Float[Tensor, "*n"]]:
    """The features of each token divided by their maximum, which carries no gradient; also the logarithm of that."""
    largest = logs.detach().amax(dim=-1).clamp(min=log_of_nothing(logs.dtype))
    return (logs - largest[..., None]).exp(), largest


def stabilized_features(
    x: Float[Tensor, "b h n c"],
    projection: Float[Tensor, "*h r c"],
    eps: float,
    *,
    over: tuple[int, ...],
    mask: Bool[Tensor, "b n"] | None = None,
    detach: bool = False,
) -> Float[Tensor, "b h n r"]:
    """phi as released code makes it: eps added after subtracting the maximum over these axes, divided by sqrt(r).

    Hidden tokens have no features and no part in the maximum; `detach` lets no gradient through it.
    """
    x = at_least_single(x) / x.shape[-1] ** 0.25
    projected = x @ projection.to(x.dtype).mT
    hidden = None if mask is None else ~rearrange(mask, "b n -> b 1 n 1")
    if hidden is not None:
        projected = projected.masked_fill(hidden, log_of_nothing(x.dtype))
    largest = projected.amax(dim=over, keepdim=True)
    largest = largest.detach() if detach else largest
    phi = (projected - x.square().sum(dim=-1, keepdim=True) / 2 - largest).exp() + eps
    phi = phi / projection.shape[-2] ** 0.5
    return phi if hidden is None else phi.masked_fill(hidden, 0)


def draw_projection(
    features: int,
    width: int,
    scaling: Literal["chi", "sqrt"] = "chi",
    *,
    heads: tuple[int, ...] = (),
    uniform: bool = True,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*heads r c"]:
    """Random rows, orthogonal in blocks of `width`, with the norms of Gaussian vectors or all of norm sqrt(c).

    Directions are uniform on the sphere, unless the signs that QR leaves are kept. Drawn with torch's global seed.
    """
    if generator is None:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
    blocks = -(-features // width)
    q, r = torch.linalg.qr(torch.randn(*heads, blocks, width, width, generator=generator, device="cpu"))
    if uniform:
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    rows = rearrange(q.mT, "... block row c -> ... (block row) c")[..., :features, :]
    if scaling == "sqrt":
        return rows * width**0.5
    return rows * torch.randn(*heads, features, width, generator=generator, device="cpu").norm(dim=-1, keepdim=True)


def log_of_nothing(dtype: torch.dtype) -> float:
    """Stands for the logarithm of 0, but other logarithms can still be subtracted from it."""
    return torch.finfo(dtype).min / 4


def smallest_sum(dtype: torch.dtype) -> float:
    """The smallest sum of weights to divide by: where nothing is visible, or all is too faint for a float, y is 0."""
    return torch.finfo(dtype).tiny ** 0.5
