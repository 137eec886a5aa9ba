"""Super-resolution: from 16 x 16 pixels of a face to 128 x 128, by a diffusion that SR3 has learnt to reverse.

The score is the PSNR of the sampled pictures in decibels (higher is better), with SSIM beside it, and both of the
bicubic and of the nearest-neighbour picture. Chance is the PSNR of the bicubic one. During training, validation uses
the loss at fixed noise levels with fixed noise, since sampling takes 2,000 passes of the network. The mechanism on
trial sits in all slots of the network: pixels are tokens, up to 16,384 of them, in one head of 64 to 512 channels.

`cab-2023` is the recipe of the Comprehensive Attention Benchmark (arXiv:2210.07661), as its code has it: a million
iterations of plain Adam on batches of four with one noise level per batch, and the mean of the weights at the last five
evaluations. Its softmax row had attention at sides 16 to 64 only (`--set model.attn_res=[16,32,64]`), the others at 128
as well. `longspan` shows the network as many pictures in batches of 32, each with a noise level of its own, at a rate
that warms up and falls to zero, and has it predict the velocity instead of the noise; gradients are clipped, an
exponential moving average of the weights is evaluated, and the best validation loss selects, on pictures that are kept
out of training. The lite tier of both is what an H200 does in four minutes, with the network at full size, scored on 16
pictures.
"""

from collections.abc import Iterator
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
from longspan.tasks.row_draws import for_rows

DATA = faces.PRESETS["super_resolution"]
VALIDATED = 8  # noise levels for each validation picture
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
    model=Network(diffusion=Diffusion(predicts="velocity")),
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
    recipe=replace(LONGSPAN.recipe, steps=1_200, batch_size=16, warmup=60, average=0.995, evaluate_every=100),
)
CAB_LITE = replace(CAB, data=DATA["cab-2023", "lite"], recipe=replace(CAB.recipe, steps=4_000, evaluate_every=200))
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Network(
        side=32,
        dim=16,
        multipliers=(1, 2, 2),
        blocks=1,
        attn_res=(16, 32),
        groups=8,
        dropout=0.0,
        diffusion=Diffusion(sampled=20, predicts="velocity"),
    ),
    recipe=replace(
        LONGSPAN.recipe, steps=60, batch_size=8, learning_rate=2e-3, warmup=10, average=0.9, evaluate_every=30
    ),
)
CAB_SMOKE = Protocol(
    data=DATA["cab-2023", "smoke"],
    model=replace(SMOKE.model, levels="batch", diffusion=Diffusion(sampled=20)),
    recipe=replace(CAB.recipe, steps=60, batch_size=8, learning_rate=1e-3, evaluate_every=10),
)


@dataclass(frozen=True)
class Batch:
    """Pictures in bytes, and the noise levels between which each is trained: the same for all, or one for each."""

    upsampled: UInt8[Tensor, "b side side 3"]
    high: UInt8[Tensor, "b side side 3"]
    between: Float[Tensor, "2 levels"]
    diffusion: Diffusion


class PictureFeed(Feed):
    """A split in bytes, on the device if it is not too large for that; pictures become floats in the step itself."""

    def __init__(self, pictures: Pictures, network: Network, device: torch.device | str):
        self.pictures, self.network, self.device = pictures, network, torch.device(device)
        self.levels = torch.from_numpy(network.diffusion.schedule.levels).float().to(self.device)
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
        """A training batch; the steps of the diffusion are drawn here, where every process draws the same."""
        last = self.network.diffusion.steps + 1
        if self.network.levels == "batch":
            step = torch.randint(1, last, (1,), device=self.device)
        else:
            step = for_rows(lambda n: torch.randint(1, last, (n,), device=self.device), len(rows))
        return Batch(*self.pair(rows), self.levels[torch.stack([step - 1, step])], self.network.diffusion)

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
        low, upsampled, high = (rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8) for side in sides)
        return Pictures(low, upsampled, high, np.arange(count))

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
        mirrored = for_rows(lambda n: torch.rand(n, device=device), count) < 0.5
        upsampled, high = (
            torch.where(mirrored[:, None, None, None], x.flip(3), x)
            for x in map(colours, (batch.upsampled, batch.high))
        )
        place = for_rows(lambda n: torch.rand(n, device=device), count)
        level = torch.lerp(batch.between[0], batch.between[1], place)
        noise = for_rows(lambda n: torch.randn_like(torch.cat([high] * (n // count))), count)  # in high's memory format
        answer = model(upsampled, add_noise(high, noise, level), level).float()
        loss = F.l1_loss(answer, batch.diffusion.target(high, noise, level))
        return StepResult(loss, {"loss": loss.detach() * count}, count)

    def validate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        """The loss at evenly spaced steps, with the same noise every time."""
        assert isinstance(feed, PictureFeed)
        steps = np.rint((np.arange(VALIDATED) + 0.5) / VALIDATED * feed.network.diffusion.steps).astype(int)
        found = []
        for first in range(0, len(rows), batch_size):
            chosen = rows[first : first + batch_size]
            upsampled, high = map(colours, feed.pair(chosen))
            errors = []
            for step in steps.tolist():
                level = feed.levels[step].expand(len(chosen))
                noise = normal(step, feed.numbers(chosen), high.shape[1:])
                answer = model(upsampled, add_noise(high, noise, level), level).float()
                target = feed.network.diffusion.target(high, noise, level)
                errors.append((answer - target).abs().mean(dim=(1, 2, 3)))
            found.append(torch.stack(errors).mean(dim=0))
        loss = torch.cat(found).double().cpu().numpy()
        return Evaluation({"loss": float(loss.mean())}, len(rows), {"row": rows, "loss": loss})

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        """Sampled pictures beside the true ones; the noise of picture i is seeded with i."""
        assert isinstance(feed, PictureFeed)
        sampler, found = Sampler(model, feed.network.diffusion), []
        for first in range(0, len(rows), batch_size):
            chosen = rows[first : first + batch_size]
            condition = colours(feed.pair(chosen)[0])
            found.append(to_pictures(sampler(condition, feed.numbers(chosen))))
        restored, pictures = np.concatenate(found), feed.pictures
        where = pictures.rows[rows]
        low, bicubic, truth = (np.asarray(part[where]) for part in (pictures.low, pictures.upsampled, pictures.high))
        plain = nearest(low, truth.shape[1])
        scores = {"psnr": psnr(restored, truth), "ssim": ssim(restored, truth)}
        for name, made in (("bicubic", bicubic), ("nearest", plain)):
            scores |= {f"{name}_psnr": psnr(made, truth), f"{name}_ssim": ssim(made, truth)}
        shown = {"low": low, "bicubic": bicubic, "restored": restored, "truth": truth}
        return Evaluation(
            {name: float(score.mean()) for name, score in scores.items()},
            len(rows),
            {"row": rows, **scores},
            samples={"kind": np.array("pictures")} | {name: part[:SHOWN] for name, part in shown.items()},
        )

    def passes(self, protocol: Protocol) -> tuple[float, float]:
        return VALIDATED, len(protocol.model.diffusion.sampling)

    def user_object(self, model: nn.Module, protocol: Protocol, splits: Splits | None, device: Any) -> "Upscaler":
        return Upscaler(model.to(device), protocol.model, protocol.data.low)

    def chance(self, split: Pictures) -> float:
        """The PSNR of the bicubic pictures."""
        enlarged, truth = (np.asarray(part[split.rows]) for part in (split.upsampled, split.high))
        return float(psnr(enlarged, truth).mean())


class Upscaler:
    """A trained network that makes large pictures from small ones."""

    def __init__(self, network: nn.Module, settings: Network, low: int):
        self.network, self.settings, self.low = network.eval(), settings, low

    @torch.no_grad()
    def upscale(self, image: Any, *, seed: int = 0, steps: int | None = None) -> np.ndarray:
        """A picture in bytes [high high 3] from one of [low low 3], an array or a Pillow image.

        Another `seed` gives another picture that fits; fewer `steps` than the diffusion has are faster and rougher.
        """
        from PIL import Image

        small = np.asarray(image)
        if small.shape != (self.low, self.low, 3) or small.dtype != np.uint8:
            raise UsageError(
                f"upscale takes a picture of {self.low} x {self.low} pixels in colour, in bytes, got {small.dtype} "
                f"{list(small.shape)}; make it smaller first."
            )
        device = next(self.network.parameters()).device
        enlarged = pair_of(Image.fromarray(small), self.low, self.settings.side).upsampled
        condition = colours(torch.from_numpy(enlarged).to(device)[None])
        diffusion = self.settings.diffusion if steps is None else replace(self.settings.diffusion, sampled=steps)
        return to_pictures(Sampler(self.network, diffusion)(condition, torch.tensor([seed], device=device)))[0]


def colours(pictures: UInt8[Tensor, "b side side 3"]) -> Float[Tensor, "b 3 side side"]:
    """Bytes as numbers from -1 to 1."""
    return rearrange(pictures, "b h w c -> b c h w").float() / 127.5 - 1


def to_pictures(x: Float[Tensor, "b 3 side side"]) -> np.ndarray:
    return to_bytes(rearrange(x, "b c h w -> b h w c").double().cpu().numpy())
