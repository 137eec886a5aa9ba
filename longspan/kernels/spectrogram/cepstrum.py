"""Mel powers and mel-frequency cepstra as torchaudio's transforms compute them, with the settings of fairseq's scores.

Powers of 50 ms under a periodic Hann window every 12.5 ms, 80 HTK mels of height 1 from 20 Hz to half the rate,
log(x + 1e-6); the cepstrum is the orthonormal DCT-II of that, cut after 13 coefficients, the first included.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import without_autocast
from longspan.kernels.spectrogram.mel_basis import mel_basis
from longspan.kernels.spectrogram.stft import as_rows, is_real, stft

MELS, COEFFICIENTS, LOWEST_HZ, OFFSET = 80, 13, 20, 1e-6


def frame_step(rate: int) -> int:
    """Samples from one frame to the next: a wave has 1 + samples // step frames.

    >>> frame_step(22_050)
    275
    """
    return int(0.0125 * rate)


def log_mel_power(
    wave: Float[Tensor, "*b n"], lengths: Int[Tensor, " rows"] | None = None, *, rate: int = 22_050
) -> Float[Tensor, "*b frames 80"]:
    """log(mel power + 1e-6), 0 in frames that are padding."""
    n_fft, hop = int(0.05 * rate), frame_step(rate)
    x, lengths = as_rows(wave, lengths)
    with without_autocast(x):
        power = stft(x, lengths, n_fft, hop, torch.hann_window(n_fft)).abs().square()
        basis = mel_basis(rate, n_fft, MELS, LOWEST_HZ, rate // 2, scale="htk", norm="none")
        logs = (power @ basis.to(power) + OFFSET).log()
    logs = logs * is_real(1 + lengths // hop, logs.shape[1])[..., None]
    return logs.reshape(*wave.shape[:-1], *logs.shape[1:])


def mfcc(
    wave: Float[Tensor, "*b n"], lengths: Int[Tensor, " rows"] | None = None, *, rate: int = 22_050
) -> Float[Tensor, "*b frames 13"]:
    """The first 13 cepstral coefficients of each frame, 0 in frames that are padding."""
    return cepstrum(log_mel_power(wave, lengths, rate=rate))


def cepstrum(logs: Float[Tensor, "*b frames 80"]) -> Float[Tensor, "*b frames 13"]:
    """The coefficients of log mel powers."""
    with without_autocast(logs):
        return logs @ _cosines(MELS, COEFFICIENTS).to(logs)


@lru_cache(maxsize=4)
def _cosines(size: int, kept: int) -> Float[Tensor, "size kept"]:
    """The orthonormal DCT-II as a matrix."""
    place, wave = torch.arange(size, dtype=torch.float64)[:, None] + 0.5, torch.arange(kept, dtype=torch.float64)
    cosines = torch.cos(math.pi / size * place * wave) * math.sqrt(2 / size)
    cosines[:, 0] /= math.sqrt(2)
    return cosines.float()
