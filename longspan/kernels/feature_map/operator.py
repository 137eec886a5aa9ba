"""Feature maps as torch operators, and the shapes their kernels are compiled for."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from longspan.kernels.launch import Shape, empty_like, next_power_of_2, readable
from longspan.kernels.operator import differentiate, like, operator


@dataclass(frozen=True)
class FeatureShape(Shape):
    PROGRAMS: ClassVar[int] = 2048  # they write no sums that would have to be merged, or small ones

    c: int
    features: int  # nu, or rows of the matrix

    @classmethod
    def of(cls, x: Tensor, features: int) -> "FeatureShape":
        return cls(x.shape[0] * x.shape[1], x.shape[3], features)

    @property
    def dpfp(self) -> dict[str, Any]:
        return {"c": self.c, "C": next_power_of_2(self.c), "U": 2 * next_power_of_2(self.c), "NU": self.features} | TILE

    @property
    def waves(self) -> dict[str, Any]:
        widths = {"c": self.c, "C": next_power_of_2(self.c), "r": self.features, "R": next_power_of_2(self.features)}
        return widths | TILE


TILE = {"T": 32, "num_warps": 4, "num_stages": 2}


@operator("dpfp_features", fake=lambda x, nu: empty_like(x, 2 * x.shape[3] * nu, x.dtype))
def dpfp(x: Tensor, nu: int) -> Tensor:
    from longspan.kernels.feature_map import triton

    x = readable(x)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.dpfp(FeatureShape.of(x, nu), x)


@operator("dpfp_features_backward", fake=lambda dphi, x, nu: like(x)[0])
def dpfp_backward(dphi: Tensor, x: Tensor, nu: int) -> Tensor:
    from longspan.kernels.feature_map import triton

    x = readable(x)
    with torch.cuda.device_of(x):
        return triton.dpfp_backward(FeatureShape.of(x, nu), readable(dphi), x)


differentiate(dpfp, dpfp_backward)


def _flops(x, matrix, *rest) -> int:
    return 2 * math.prod(x) * matrix[1]


@operator("waves", fake=lambda x, matrix, scale: empty_like(x, 2 * matrix.shape[1], x.dtype), flops=_flops)
def waves(x: Tensor, matrix: Tensor, scale: float) -> Tensor:
    from longspan.kernels.feature_map import triton

    x = readable(x)
    with torch.cuda.device_of(x):
        return triton.waves(FeatureShape.of(x, matrix.shape[1]), x, matrix.contiguous(), scale)


@operator(
    "waves_backward",
    fake=lambda dphi, x, matrix, scale: (*like(x), torch.empty_like(matrix)),
    flops=lambda dphi, *inputs: 3 * _flops(*inputs),  # the angles again, and both gradients
)
def waves_backward(dphi: Tensor, x: Tensor, matrix: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the matrices."""
    from longspan.kernels.feature_map import triton

    x = readable(x)
    with torch.cuda.device_of(x):
        shape = FeatureShape.of(x, matrix.shape[1])
        dx, parts = triton.waves_backward(shape, readable(dphi), x, matrix.contiguous(), scale)
    _, r, c = matrix.shape
    return dx, parts.sum(dim=(0, 1))[:, :r, :c].to(matrix.dtype, copy=True)


differentiate(waves, waves_backward)
