"""Point proxies: a few points of a cloud, each with features of its surroundings (the grouper of PoinTr, after DGCNN).

    f_i <- max_j LeakyReLU(GroupNorm(W [f_j - f_i, f_i]))      over the nearest points j of i, four times

The second and the fourth time only farthest points are kept. W is applied before neighbours are gathered, in two
halves: W [f_j - f_i, f_i] = W_1 f_j + (W_2 - W_1) f_i. Papers: arXiv:1801.07829, arXiv:2108.08839.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.kernels.point_cloud import k_nearest, take

SLOPE = 0.2  # of every LeakyReLU
PROXY_WIDTH = 128  # channels


class Pointwise(nn.Linear):
    """A linear map that the authors wrote as a convolution of width one, which they initialise differently."""


class Grouper(nn.Module):
    """From points to fewer points with features of their surroundings: four edge layers and farthest point sampling."""

    def __init__(self, neighbours: int, proxies: int):
        super().__init__()
        self.neighbours, self.proxies = neighbours, proxies
        self.embedding = Pointwise(3, 8)
        self.edges = nn.ModuleList([Edges(8, 32), Edges(32, 64), Edges(64, 64), Edges(64, PROXY_WIDTH)])

    def forward(
        self, points: Float[Tensor, "b n 3"], chosen: Int[Tensor, "b sample"]
    ) -> tuple[Float[Tensor, "b proxies 3"], Float[Tensor, "b proxies c"]]:
        """`chosen` are farthest points. So is any prefix of them, which is why the second stage needs no sampling."""
        first, second, third, fourth = self.edges
        x, near = self.embedding(points), k_nearest(points, points, self.neighbours)
        x = first(x, x, near)
        x = second(take(x, chosen), x, take(near, chosen))
        sample = take(points, chosen)
        near = k_nearest(sample, sample, self.neighbours)
        x = third(x, x, near)
        x = fourth(x[:, : self.proxies], x, near[:, : self.proxies])
        return sample[:, : self.proxies], x


class Edges(nn.Module):
    """max_j LeakyReLU(GroupNorm(W [f_j - f_i, f_i])) over the neighbours j of each target i."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, 2 * inputs))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as torch draws a convolution
        self.norm = nn.GroupNorm(4, outputs)

    def forward(
        self, target: Float[Tensor, "b n c"], source: Float[Tensor, "b m c"], near: Int[Tensor, "b n k"]
    ) -> Float[Tensor, "b n e"]:
        by_difference, by_self = self.weight.chunk(2, dim=1)
        y = take(F.linear(source, by_difference), near) + F.linear(target, by_self - by_difference)[:, :, None]
        y = F.leaky_relu(self.norm(rearrange(y, "b n k e -> b e n k")), SLOPE)
        return y.max(dim=3).values.mT
