"""The same tensors [b h n c], lying in memory in another order."""

from collections.abc import Sequence

from torch import Tensor


def token_by_token(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Heads of a token side by side, as a projection leaves them."""
    return [_like(x, x.detach().transpose(1, 2).contiguous().transpose(1, 2)) for x in tensors]


def channel_by_channel(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [_like(x, x.detach().mT.contiguous().mT) for x in tensors]


def _like(x: Tensor, other: Tensor) -> Tensor:
    return other.requires_grad_(x.requires_grad)
