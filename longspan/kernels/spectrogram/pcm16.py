"""Waves as 16-bit samples, as libsndfile writes and reads them: floor(32,768 x), clipped."""

import torch
from jaxtyping import Float, Int16
from torch import Tensor


def as_stored(wave: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """The wave written to a file and read back. What is not a number stays so, and no score can take it for sound."""
    return (wave.float() * 2**15).floor().clamp(-(2**15), 2**15 - 1) / 2**15


def to_pcm16(wave: Float[Tensor, "*b n"]) -> Int16[Tensor, "*b n"]:
    """The samples of a file, silence where the wave is not a number."""
    return (as_stored(wave) * 2**15).nan_to_num(nan=0.0).to(torch.int16)
