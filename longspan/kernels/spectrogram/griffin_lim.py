"""Griffin-Lim: the wave whose spectrogram is closest to a log mel, by alternating between phases and waves (1984).

The mel filters are undone by their pseudo-inverse, negative magnitudes set to 0. Each iteration takes the phases of the
last wave, combines them with the wanted magnitudes, transforms back and divides by the sum of the squared windows that
overlap.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.spectrogram.mel import HOP, N_FFT, speech_basis
from longspan.kernels.spectrogram.stft import framed_spectrum, is_real, reflection

TINY = 1.1754944e-38  # where the windows' squares sum to less, nothing is divided
NEARLY_0 = 1e-30  # gives silence the phase 0


def griffin_lim(
    log_mel: Float[Tensor, "b t 80"],
    iterations: int,
    generator: torch.Generator,
    *,
    frames: Int[Tensor, " b"] | None = None,
) -> Float[Tensor, "b n"]:
    """Waves of 256 (frames - 1) samples, as the 512 samples at both ends are cut off; 0 after them.

    The first phases are drawn from `generator`, a CPU generator, once for all rows: each clip gets what a generator of
    its own in the same state would give it, in any batch and on any device.
    """
    mel = at_least_single(log_mel)
    rows, width, _ = mel.shape
    frames = torch.full((rows,), width, device=mel.device) if frames is None else frames.to(mel.device)
    lengths = (frames - 1).clamp(min=0) * HOP
    real = is_real(frames, width)[..., None]
    with without_autocast(mel):
        magnitude = (mel.exp() @ _inverse_basis().to(mel)).clamp(min=0).masked_fill(~real, 0)
    window = torch.hann_window(N_FFT).to(mel)
    squares = _inside(_overlap_add(window.square() * real))
    scale = torch.where(squares > TINY, 1 / squares, 1) * is_real(lengths, squares.shape[1])
    at = reflection(lengths, squares.shape[1], N_FFT, HOP)
    angle = 2 * math.pi * torch.rand(width, magnitude.shape[-1], generator=generator, device=generator.device)
    spectrum = magnitude * torch.polar(torch.ones_like(angle), angle).to(mel.device)
    for _ in range(iterations):
        wave = _inside(_overlap_add(torch.fft.irfft(spectrum, n=N_FFT) * window)) * scale
        spectrum = framed_spectrum(wave, at, N_FFT, HOP, window) + NEARLY_0
        spectrum = spectrum * (magnitude / spectrum.abs())
    return _inside(_overlap_add(torch.fft.irfft(spectrum, n=N_FFT) * window)) * scale


def _inside(x: Float[Tensor, "b n"]) -> Float[Tensor, "b inside"]:
    return x[:, N_FFT // 2 : -N_FFT // 2]


def _overlap_add(framed: Float[Tensor, "b t 1024"]) -> Float[Tensor, "b n"]:
    """The sum of the frames, each 256 samples after the one before."""
    rows, width, _ = framed.shape
    parts = framed.unflatten(-1, (-1, HOP))
    total = framed.new_zeros(rows, width + parts.shape[2] - 1, HOP)
    for i, part in enumerate(parts.unbind(2)):
        total[:, i : i + width] += part
    return total.flatten(1)


@lru_cache(maxsize=1)
def _inverse_basis() -> Float[Tensor, "80 513"]:
    return torch.linalg.pinv(speech_basis().double()).float()
