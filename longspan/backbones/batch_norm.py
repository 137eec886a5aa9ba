"""Batch norm over the whole batch, also where several processes share it.

    y = (x - mean) / sqrt(var + eps) * gamma + beta      mean and var over all rows and places of all processes

torch's own `SyncBatchNorm` does the same, on GPUs only. With a mask, mean and var are over the real places alone, so
that they do not depend on how far rows are padded.
"""

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from longspan.kernels.precision import at_least_single


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` on [b d n], with the statistics that one process would compute on the batches of all."""

    def forward(self, input: Float[Tensor, "b d n"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b d n"]:
        if not self.training or (mask is None and not shared()):
            return super().forward(input)
        x = at_least_single(input)
        real = x.new_ones(1, 1, 1) if mask is None else mask[:, None].to(x.dtype)
        size = over_processes(real.expand(len(x), 1, x.shape[2]).sum())
        mean = over_processes((x * real).sum(dim=(0, 2))) / size
        away = x - mean[:, None]
        var = over_processes((away.square() * real).sum(dim=(0, 2))) / size
        with torch.no_grad():  # for evaluation, with the unbiased variance
            self.get_buffer("num_batches_tracked").add_(1)
            self.get_buffer("running_mean").lerp_(mean, self.momentum or 0.0)
            self.get_buffer("running_var").lerp_(var * size / (size - 1), self.momentum or 0.0)
        y = away * (var + self.eps).rsqrt()[:, None] * self.weight[:, None] + self.bias[:, None]
        return y.to(input.dtype)


def shared() -> bool:
    """Whether several processes share a batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def unsynchronised(model: nn.Module) -> list[str]:
    """The batch norms whose statistics would be those of one process alone."""
    kinds = (BatchNorm, nn.SyncBatchNorm)
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, kinds)
    ]


def over_processes(mine: Tensor) -> Tensor:
    """The sum over all processes, through which gradients flow back to all."""
    return Total.apply(mine) if shared() else mine  # type: ignore[return-value]


class Total(torch.autograd.Function):
    """A sum over processes, whose backward pass sums the gradients of all processes."""

    @staticmethod
    def forward(ctx: FunctionCtx, mine: Tensor) -> Tensor:
        total = mine.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return Total.forward(ctx, gradient)
