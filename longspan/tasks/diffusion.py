"""Diffusion as SR3 has it: noise is added to a picture, a network predicts it, and sampling takes it out step by step.

    x = gamma y + sqrt(1 - gamma^2) e        gamma^2 is alpha-bar, the product of 1 - beta over the steps so far
    loss = mean |e - network(condition, x, gamma)|        gamma uniform between the levels of steps t - 1 and t

Sampling goes from step T, pure noise, down to 1:

    y' = x / gamma_t - sqrt(1 / gamma_t^2 - 1) network(condition, x, gamma_t)        cut off at -1 and 1
    x <- toward_t y' + stay_t x + std_t z                                            z normal, 0 in the last step

Betas rise linearly. Schedules are computed in double precision, arithmetic on pictures is in single; the network may
run in half. The noise of picture i is that of a generator with the seed i, independent of the batch: a picture is the
same in any batch. Fewer than T `sampled` steps visit levels evenly spaced between T and 1, with the betas that lead
from each to the next.

`predicts="velocity"` makes the network predict gamma e - sqrt(1 - gamma^2) y instead, from which noise and picture
follow with errors no larger than its own. If the picture is computed from predicted noise, its error is that of the
noise times up to 151, which after short training shows as wrong colours. Papers: arXiv:2006.11239, arXiv:2104.07636,
arXiv:2202.00512. Departs from them in: nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.core.cuda_graph import aside, record
from longspan.core.errors import UsageError
from longspan.kernels.row_noise import row_noise

Network = Callable[[Tensor, Tensor, Tensor], Tensor]  # condition, noisy picture, level -> noise
Pictures = Float[Tensor, "b 3 side side"]


@dataclass(frozen=True)
class Diffusion:
    """Settings: the number of steps, the range of betas, how many are sampled (None is all), and what is predicted."""

    steps: int = 2_000
    first_beta: float = 1e-6
    last_beta: float = 1e-2
    sampled: int | None = None
    predicts: Literal["noise", "velocity"] = "noise"

    def __post_init__(self):
        if self.steps < 1 or not 0 < self.first_beta <= self.last_beta < 1:
            raise UsageError(
                f"A diffusion needs at least 1 step and betas that rise between 0 and 1, got steps={self.steps}, "
                f"first_beta={self.first_beta} and last_beta={self.last_beta}."
            )
        if self.sampled is not None and not 1 <= self.sampled <= self.steps:
            raise UsageError(f"Of {self.steps} steps 1 to {self.steps} can be sampled, got sampled={self.sampled}.")

    def target(self, picture: Pictures, noise: Pictures, level: Float[Tensor, " b"]) -> Pictures:
        """What the network should predict."""
        if self.predicts == "noise":
            return noise
        return add_noise(noise, -picture, level)

    def noise_in(self, x: Pictures, answer: Pictures, level: Float[Tensor, " b"]) -> Pictures:
        """The noise that a prediction of the network implies."""
        return answer if self.predicts == "noise" else add_noise(answer, x, level)

    @cached_property
    def schedule(self) -> "Schedule":
        """All steps, as training sees them."""
        return Schedule(np.cumprod(1 - np.linspace(self.first_beta, self.last_beta, self.steps)))

    @cached_property
    def sampling(self) -> "Schedule":
        """The steps that are sampled."""
        count = self.sampled or self.steps
        visited = np.rint(np.linspace(self.steps, 1, count) if count > 1 else np.array([self.steps])).astype(int)
        return Schedule(self.schedule.alpha_bars[visited[::-1] - 1])


class Schedule:
    """Numbers of every step in double precision; entry t - 1 belongs to step t."""

    def __init__(self, alpha_bars: np.ndarray):
        before = np.concatenate([[1.0], alpha_bars[:-1]])
        betas = 1 - alpha_bars / before
        self.alpha_bars, self.betas = alpha_bars, betas
        self.levels = np.sqrt(np.concatenate([[1.0], alpha_bars]))  # this one from step 0 on
        self.variances = betas * (1 - before) / (1 - alpha_bars)
        self.toward = betas * np.sqrt(before) / (1 - alpha_bars)
        self.stay = (1 - before) * np.sqrt(1 - betas) / (1 - alpha_bars)

    def __len__(self) -> int:
        return len(self.alpha_bars)

    def coefficients(self) -> Float[np.ndarray, "steps 6"]:
        """What a step of sampling needs: gamma, 1 / gamma, sqrt(1 / gamma^2 - 1), toward, stay and std."""
        gamma = self.levels[1:]
        columns = (gamma, 1 / gamma, np.sqrt(1 / self.alpha_bars - 1), self.toward, self.stay, np.sqrt(self.variances))
        return np.stack(columns, axis=1)


def add_noise(picture: Pictures, noise: Pictures, level: Float[Tensor, " b"]) -> Pictures:
    gamma = level[:, None, None, None]
    return gamma * picture + (1 - gamma**2).sqrt() * noise


def normal(seed: int | Int[Tensor, " 1"], pictures: Int[Tensor, " b"], shape: Sequence[int]) -> Pictures:
    """Normal noise for pictures by number: the same in any batch, and on any device up to rounding."""
    count = math.prod(shape)
    half = -(-count // 2)
    uniform = row_noise(seed, pictures, 2 * half)
    radius, angle = (-2 * torch.log1p(-uniform[:, :half])).sqrt(), 2 * math.pi * uniform[:, half:]
    noise = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
    return noise[:, :count].float().unflatten(1, tuple(shape))


class Sampler:
    """Pictures from noise, a batch at a time; on a GPU a step is captured once for each batch shape."""

    def __init__(self, network: Network, diffusion: Diffusion):
        self.schedule = diffusion.sampling
        self.network: Network = lambda condition, x, level: diffusion.noise_in(
            x, network(condition, x, level).float(), level
        )
        self._recorded: dict[torch.Size, tuple[Batch, Callable[[], None]]] = {}

    def __call__(self, condition: Pictures, pictures: Int[Tensor, " b"]) -> Pictures:
        """A picture for each condition; `pictures` are the numbers that seed their noise."""
        begun = Batch.begin(condition, pictures, self.schedule)
        if condition.device.type != "cuda":
            for _ in range(len(self.schedule)):
                begun.advance(self.network)
            return begun.x
        with aside(stream := torch.cuda.Stream()):
            if condition.shape not in self._recorded:
                self._recorded[condition.shape] = begun, self._record(begun, stream)
            batch, replay = self._recorded[condition.shape]
            batch.take(Batch.begin(condition, pictures, self.schedule))
            for _ in range(len(self.schedule)):
                replay()
            return batch.x.clone()

    def _record(self, batch: "Batch", stream: Any) -> Callable[[], None]:
        """One step as a CUDA graph, after an eager step that compiles and allocates what it needs."""
        batch.advance(self.network)
        return record(lambda: batch.advance(self.network), stream=stream, capture_error_mode="thread_local")[0]


@dataclass
class Batch:
    """The sampling state of some pictures: before `step`, which counts down; all on the device, changed in place."""

    condition: Pictures
    pictures: Int[Tensor, " b"]
    x: Pictures
    step: Int[Tensor, " 1"]
    coefficients: Float[Tensor, "steps 6"]

    @classmethod
    def begin(cls, condition: Pictures, pictures: Int[Tensor, " b"], schedule: Schedule) -> "Batch":
        zero = torch.zeros(1, dtype=torch.int64, device=condition.device)
        coefficients = torch.from_numpy(schedule.coefficients()).float().to(condition.device)
        x = normal(zero, pictures, condition.shape[1:])
        return cls(condition.clone(), pictures.clone(), x, zero + len(schedule), coefficients)

    def take(self, other: "Batch") -> None:
        """Start over with other pictures."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))

    def advance(self, network: Network) -> None:
        numbers = self.coefficients.index_select(0, self.step - 1)[0]  # a plain index would synchronise
        level, inverse, scale, toward, stay, std = numbers.unbind()
        noise = network(self.condition, self.x, level.expand(len(self.x))).float()
        clean = (inverse * self.x - scale * noise).clamp(-1, 1)
        z = normal(self.step, self.pictures, self.x.shape[1:])
        self.x.copy_(toward * clean + stay * self.x + std * z)  # std is 0 in the last step
        self.step.sub_(1)
