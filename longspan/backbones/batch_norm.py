"""Batch norm over the whole batch, also where several processes share it.

    y = (x - mean) / sqrt(var + eps) * gamma + beta      mean and var over all rows and places of all processes

torch's own `SyncBatchNorm` does the same, on GPUs only.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` of channels before places, its statistics those of one process with the batches of all."""

    def forward(self, input: Float[Tensor, "b d n"]) -> Float[Tensor, "b d n"]:
        shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not (self.training and shared):
            return super().forward(input)
        x = input.float()
        size = over_processes(x.new_tensor(x.shape[0] * x.shape[2]))
        mean = over_processes(x.sum(dim=(0, 2))) / size
        away = x - mean[:, None]
        var = over_processes(away.square().sum(dim=(0, 2))) / size
        with torch.no_grad():  # for evaluation, the variance unbiased
            self.get_buffer("num_batches_tracked").add_(1)
            self.get_buffer("running_mean").lerp_(mean, self.momentum or 0.0)
            self.get_buffer("running_var").lerp_(var * size / (size - 1), self.momentum or 0.0)
        y = away * (var + self.eps).rsqrt()[:, None] * self.weight[:, None] + self.bias[:, None]
        return y.to(input.dtype)


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
    return Total.apply(mine)  # type: ignore[return-value]


class Total(torch.autograd.Function):
    """A sum, and in the backward pass the sum of what every process made of it."""

    @staticmethod
    def forward(ctx: FunctionCtx, mine: Tensor) -> Tensor:
        total = mine.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return Total.forward(ctx, gradient)
