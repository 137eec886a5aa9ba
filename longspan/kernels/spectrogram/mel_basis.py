"""Mel filters: triangles over the frequencies of a spectrum, evenly spaced on a mel scale.

`slaney` is linear up to 1,000 Hz and logarithmic above (librosa's default), `htk` is 2595 log10(1 + f / 700)
(torchaudio's default). With the `area` norm every triangle has area 1 over Hz, without one it has height 1.
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Scale = Literal["slaney", "htk"]
BREAK_HZ, BREAK_MEL, LOG_STEP = 1000.0, 15.0, math.log(6.4) / 27  # slaney: 15 mels to 1,000 Hz, then 27 up to 6,400 Hz


@lru_cache(maxsize=16)
def mel_basis(
    rate: int, n_fft: int, mels: int, low: int, high: int, *, scale: Scale = "slaney", norm: Literal["area", "none"]
) -> Float[Tensor, "bins mels"]:
    """The filters as columns, in float32 on the CPU, for a spectrum of n_fft // 2 + 1 bins.

    >>> mel_basis(22050, 1024, 80, 20, 8000, scale="slaney", norm="area").shape
    torch.Size([513, 80])
    """
    if not 0 <= low < high <= rate / 2:
        raise ValueError(f"Mel filters lie between 0 and {rate / 2:g} Hz, half the rate, got {low} to {high} Hz.")
    frequency = torch.linspace(0, rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    ends = torch.linspace(_mel(low, scale), _mel(high, scale), mels + 2, dtype=torch.float64)
    edge = _hertz(ends, scale)
    width = edge.diff()
    distance = frequency[:, None] - edge  # [bins mels+2]
    basis = torch.minimum(distance[:, :-2] / width[:-1], -distance[:, 2:] / width[1:]).clamp(min=0)
    if norm == "area":
        basis = basis * 2 / (edge[2:] - edge[:-2])
    return basis.float()


def _mel(hertz: int, scale: Scale) -> float:
    if scale == "htk":
        return 2595 * math.log10(1 + hertz / 700)
    if hertz < BREAK_HZ:
        return hertz * BREAK_MEL / BREAK_HZ
    return BREAK_MEL + math.log(hertz / BREAK_HZ) / LOG_STEP


def _hertz(mel: Float[Tensor, " mels"], scale: Scale) -> Float[Tensor, " mels"]:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    above = BREAK_HZ * torch.exp(LOG_STEP * (mel - BREAK_MEL))
    return torch.where(mel < BREAK_MEL, mel * BREAK_HZ / BREAK_MEL, above)
