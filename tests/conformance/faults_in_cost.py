"""Mechanisms that declare cost n and cost more: by a logarithm, in the backward pass, or where torch cannot see it.

Work that torch does not see is found by its CPU time. Here a `WorkClock` replaces the CPU clock, and hidden work only
advances it, so tests give the same result on any machine and under any load.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from longspan.attentions import Pattern
from tests.conformance.right import Plain, declare

CS = Pattern.CAUSAL_SELF
CLAIM = declare(exact=False, cost="n", patterns=(Pattern.NONCAUSAL_SELF,))


class WorkClock:
    """A clock that goes by work: a step for each time it is read, which is twice per operator, and what `work` adds."""

    STEP, OTHER = 1e-5, 1e-6  # seconds

    def __init__(self):
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += self.STEP
        return self.seconds


CLOCK = WorkClock()


@contextmanager
def time_is_work() -> Iterator[None]:
    """CPU time is read from `CLOCK`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longspan.conformance.counting.process_time", CLOCK)
        yield


def work(steps: int) -> None:
    """Spend the time of this many steps, as numpy, Python or an external operator would."""
    CLOCK.seconds += steps * CLOCK.OTHER


class Mean(Plain):
    """A mean of the values, gated by the query; right by itself, and linear."""

    meta = CLAIM

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is None:
            key_mask = torch.ones_like(v[:, 0, :, 0], dtype=torch.bool)
        real = key_mask[:, None, :, None]
        mean = (v * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)
        return self.more(q, k, v, real) + mean * torch.sigmoid(q)

    def more(self, q, k, v, real):
        """What a faulty mechanism adds."""
        return torch.zeros_like(q)


class LogRounds(Mean):
    """A mean over windows of 1, 2, 4 ... tokens: as many rounds as the length has binary digits."""

    meta = declare(exact=False, cost="n", patterns=(CS,))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is not None:
            v = v * key_mask[:, None, :, None]
        y, reach = v.to(torch.promote_types(v.dtype, torch.float32)), 1
        while reach < v.shape[2]:
            y = y + 0.9**reach * F.pad(y, (0, 0, reach, 0))[:, :, : v.shape[2]]
            reach *= 2
        return y.to(v.dtype) * torch.sigmoid(q)


class FourierConvolution(Mean):
    """A decaying sum of the past by Fourier transforms."""

    meta = declare(exact=False, cost="n", patterns=(CS,))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = torch.ones_like(v[:, 0, :, 0], dtype=torch.bool) if key_mask is None else key_mask
        u = (v * real[:, None, :, None]).to(torch.promote_types(v.dtype, torch.float32))
        n, size = u.shape[2], 2 * u.shape[2]
        decay = 0.9 ** torch.arange(n, dtype=u.dtype, device=u.device)
        spectrum = torch.fft.rfft(u, size, dim=2) * torch.fft.rfft(decay, size)[:, None]
        y = torch.fft.irfft(spectrum, size, dim=2)[:, :, :n].to(v.dtype) * torch.sigmoid(q)
        return y * (real.cumsum(dim=1) > 0)[:, None, :, None]


class _Nothing(torch.autograd.Function):
    """Zeros forward; backward makes the matrix of all pairs."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return torch.zeros_like(q)

    @staticmethod
    def backward(ctx, gradient):
        q, k = ctx.saved_tensors
        return 0 * ((q @ k.mT) @ gradient), torch.zeros_like(k)


class QuadraticBackward(Mean):
    def more(self, q, k, v, real):
        return _Nothing.apply(q, k)


class _OfPairs(torch.autograd.Function):
    """A bias of all pairs of positions, made out of torch's sight: nothing that depends on the tokens."""

    @staticmethod
    def forward(ctx, v):
        work(v.shape[2] ** 2)
        return torch.zeros_like(v)

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class QuadraticInNumpy(Mean):
    def more(self, q, k, v, real):
        return _OfPairs.apply(v)


class QuadraticInPython(Mean):
    def more(self, q, k, v, real):
        work(v.shape[2] ** 2)
        return torch.zeros_like(q)


@torch.library.custom_op("longspan_faults::pairs", mutates_args=())
def pairs(v: torch.Tensor) -> torch.Tensor:
    """An operator whose work torch cannot see, as one in C++ would be."""
    work(v.shape[2] ** 2)
    return torch.zeros_like(v)


pairs.register_autograd(lambda ctx, gradient: torch.zeros_like(gradient))


class QuadraticOperator(Mean):
    def more(self, q, k, v, real):
        return pairs(v)
