"""Waves as 16-bit samples, as libsndfile writes and reads them: the upper half of the rounded 32-bit sample."""

import torch
from jaxtyping import Float, Int16
from torch import Tensor


def as_stored(wave: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """The wave written to a file and read back. NaN stays NaN, so that no score can take it for sound."""
    return ((wave.float() * 2**31).round() / 2**16).floor().clamp(-(2**15), 2**15 - 1) / 2**15


def to_pcm16(wave: Float[Tensor, "*b n"]) -> Int16[Tensor, "*b n"]:
    """The samples of a file, silence where the wave is NaN."""
    return (as_stored(wave) * 2**15).nan_to_num(nan=0.0).to(torch.int16)
