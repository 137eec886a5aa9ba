"""Super-resolution: from 16 x 16 pixels of a face to 128 x 128, by a diffusion that SR3 has learnt to reverse.

The score is the PSNR of the sampled pictures in decibels, the higher, the better; SSIM stands beside it, and so do both
of the bicubic and of the nearest-neighbour picture, whose PSNR is what chance is here. During training the loss at fixed
noise levels with fixed noise is asked for, since sampling takes 2,000 passes of the network. The mechanism on trial sits
in all slots of the network: pixels are tokens, up to 16,384 of them, in one head of 64 to 512 channels.

`cab-2023` is the recipe of the Comprehensive Attention Benchmark (arXiv:2210.07661), as its code has it: a million
iterations of plain Adam on batches of four with one noise level a batch, and the mean of the weights at the last five
evaluations. Its softmax row had attention at sides 16 to 64 only (`--set model.attn_res=[16,32,64]`), the others at 128
as well. `longspan` shows the network as many pictures in batches of 32, each with a noise level of its own, at a rate
that warms up and falls to zero; gradients are clipped, a running mean of the weights is evaluated, and the best
validation loss selects, on pictures that are kept out of training. The lite tier of both is what an H200 does in four
minutes, with the network at full size, scored on 16 pictures.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.slots import AttentionFactory
from longspan.backbones.sr3 import SR3, Sizes
from longspan.core.errors import UsageError
from longspan.datasets import faces
from longspan.datasets.base import Splits
from longspan.datasets.faces import Pictures, nearest
from longspan.datasets.super_resolution.pairs import pair_of
from longspan.metrics.pictures import psnr, ssim, to_bytes
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task, TaskMeta
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.diffusion import Diffusion, Sampler, add_noise, normal

DATA = faces.PRESETS["super_resolution"]
VALIDATED = 8  # noise levels at which each validation picture is asked for
SHOWN = 8  # pictures kept for people to look at
ON_THE_DEVICE = 4 << 30  # bytes; more pictures than this stay on the host


@dataclass(frozen=True)
class Network(Sizes):
    """The sizes of an SR3, its diffusion, and whether a training batch has one noise level or each picture its own."""

    diffusion: Diffusion = field(default_factory=Diffusion)
    levels: Literal["batch", "sample"] = "sample"


CAB = Protocol(
    data=DATA["cab-2023", "full"],
    model=Network(levels="batch"),
    recipe=Recipe(
        steps=1_000_000,
        batch_size=4,
        learning_rate=1e-4,
        warmup=0,
        schedule="constant",
        optimizer="adam",
        weight_decay=0.0,
        betas=(0.9, 0.999),
        eps=1e-8,
        evaluate_every=50_000,
        evaluation_batch=16,
        selection="mean_of_last",
    ),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=Network(),
    recipe=replace(
        CAB.recipe,
        steps=125_000,
        batch_size=32,
        learning_rate=2e-4,
        warmup=1_000,
        schedule="linear",
        clip=1.0,
        average=0.9999,
        evaluate_every=5_000,
        selection="best",
    ),
)
LITE = replace(
    LONGSPAN,
    data=DATA["longspan", "lite"],
    recipe=replace(
        LONGSPAN.recipe, steps=1_200, batch_size=16, learning_rate=3e-4, warmup=60, average=0.995, evaluate_every=100
    ),
)
CAB_LITE = replace(CAB, data=DATA["cab-2023", "lite"], recipe=replace(CAB.recipe, steps=4_000, evaluate_every=200))
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Network(
        side=64,
        dim=16,
        multipliers=(1, 2, 2, 2),
        blocks=1,
        attn_res=(16, 32),
        groups=8,
        dropout=0.0,
        diffusion=Diffusion(sampled=20),
    ),
    recipe=replace(
        LONGSPAN.recipe, steps=80, batch_size=8, learning_rate=2e-3, warmup=10, average=0.9, evaluate_every=40
    ),
)
CAB_SMOKE = Protocol(
    data=DATA["cab-2023", "smoke"],
    model=replace(SMOKE.model, levels="batch"),
    recipe=replace(CAB.recipe, steps=80, batch_size=8, learning_rate=1e-3, evaluate_every=10),
)


@dataclass(frozen=True)
class Batch:
    """Pictures in bytes, and the steps of the diffusion that they are trained at: one for all, or one each."""

    upsampled: UInt8[Tensor, "b side side 3"]
    high: UInt8[Tensor, "b side side 3"]
    step: Int[Tensor, " steps"]


class PictureFeed(Feed):
    """A split in bytes, on the device if it is not too large for that; pictures become numbers in the step itself."""

    def __init__(self, pictures: Pictures, network: Network, device: torch.device | str):
        self.pictures, self.network, self.device = pictures, network, torch.device(device)
        self.held: tuple[Tensor, Tensor] | None = None
        if 2 * len(pictures) * pictures.high[0].size <= ON_THE_DEVICE:
            self.held = self._moved(np.arange(len(pictures)))

    def __len__(self) -> int:
        return len(self.pictures)

    def _moved(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        where = self.pictures.rows[rows]
        upsampled, high = (
            torch.from_numpy(np.asarray(part[where])).to(self.device, non_blocking=True)
            for part in (self.pictures.upsampled, self.pictures.high)
        )
        return upsampled, high

    def pair(self, rows: np.ndarray) -> tuple[UInt8[Tensor, "b side side 3"], UInt8[Tensor, "b side side 3"]]:
        """Enlarged and high pictures."""
        if self.held is None:
            return self._moved(rows)
        row = self.numbers(rows)
        return self.held[0][row], self.held[1][row]

    def numbers(self, rows: np.ndarray) -> Int[Tensor, " b"]:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.device, non_blocking=True)

    def batch(self, rows: np.ndarray) -> Batch:
        """A training batch; the steps are drawn here, where every process draws the same."""
        count = 1 if self.network.levels == "batch" else len(rows)
        step = torch.randint(1, self.network.diffusion.steps + 1, (count,), device=self.device)
        return Batch(*self.pair(rows), step)

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for first in range(0, len(rows), size):
            places = np.arange(first, min(first + size, len(rows)))
            yield places, self.batch(rows[places])


class SuperResolution(Task):
    meta = TaskMeta(
        title="Super-resolution (FFHQ, CelebA-HQ)",
        version=1,
        paper="arXiv:2210.07661",
        score="psnr",
        higher_is_better=True,
        backbone="sr3",
        slots={"pixels": Pattern.NONCAUSAL_SELF},
        unit="plain",
        selected_by="loss",
        selected_higher=False,
    )
    dataset = "faces"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        ("cab-2023", "smoke"): CAB_SMOKE,
        ("longspan", "lite"): LITE,
        ("longspan", "full"): LONGSPAN,
        ("cab-2023", "lite"): CAB_LITE,
        ("cab-2023", "full"): CAB,
    }
    presets = {"cab-2023": cab_presets("super_resolution")}

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.high**2

    def made_up(self, protocol: Protocol, count: int) -> Pictures:
        """Pictures of noise, to be timed and thrown away."""
        rng, data = np.random.default_rng(0), protocol.data
        sides = (data.low, data.high, data.high)
        parts = (rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8) for side in sides)
        return Pictures(*parts, np.arange(count))

    def model(self, attention: AttentionFactory, protocol: Protocol) -> SR3:
        if protocol.model.side != protocol.data.high:
            raise UsageError(
                f"The network draws pictures of side {protocol.model.side}, the data have {protocol.data.high}; "
                "set model.side and data.high alike."
            )
        return SR3(attention, protocol.model)

    def feed(self, split: Pictures, protocol: Protocol, device: torch.device | str) -> PictureFeed:
        return PictureFeed(split, protocol.model, device)

    def loss(self, model: nn.Module, batch: Batch, *, smoothing: float = 0.0) -> StepResult:
        """The mean absolute error of the predicted noise, on pictures of which half are mirrored."""
        count, device = len(batch.high), batch.high.device
        mirrored = torch.rand(count, device=device) < 0.5
        upsampled, high = (
            torch.where(mirrored[:, None, None, None], x.flip(3), x) for x in map(colours, (batch.upsampled, batch.high))
        )
        level = torch.lerp(*self._levels(batch.step, model, device), torch.rand(count, device=device))
        noise = torch.randn_like(high)
        loss = F.l1_loss(model(upsampled, add_noise(high, noise, level), level).float(), noise)
        return StepResult(loss, {"loss": loss.detach() * count}, count)
