"""Memory layout: the same tensors [b h n c] with other strides, and how large intermediate tensors become."""

from collections.abc import Sequence

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def token_by_token(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All heads of a token adjacent in memory, as a projection leaves them."""
    return [_like(x, x.detach().transpose(1, 2).contiguous().transpose(1, 2)) for x in tensors]


def channel_by_channel(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [_like(x, x.detach().mT.contiguous().mT) for x in tensors]


def _like(x: Tensor, other: Tensor) -> Tensor:
    return other.requires_grad_(x.requires_grad)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result
