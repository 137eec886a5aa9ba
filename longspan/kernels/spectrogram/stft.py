"""The short-time Fourier transform of a padded batch: every row is reflected at its own ends.

torch's own transform reflects the padded batch, so that the last frames of a short row would contain padding.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single


def as_rows(
    wave: Float[Tensor, "*b n"], lengths: Int[Tensor, " rows"] | None
) -> tuple[Float[Tensor, "rows n"], Int[Tensor, " rows"]]:
    """The waves one below another in float32 or better, and how many samples each has."""
    x = at_least_single(wave).reshape(math.prod(wave.shape[:-1]), wave.shape[-1])
    if lengths is None:
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
    return x, lengths.to(x.device)


def is_real(lengths: Int[Tensor, " b"], width: int) -> Bool[Tensor, "b width"]:
    """True where a position belongs to the row, False where it is padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def stft(
    wave: Float[Tensor, "b n"],
    lengths: Int[Tensor, " b"],
    n_fft: int,
    hop: int,
    window: Float[Tensor, " n_fft"] | None = None,
) -> Complex[Tensor, "b frames bins"]:
    """Centred frames of each row, 1 + samples // hop of them real; a wave without a sample is one frame of silence."""
    return framed_spectrum(wave, reflection(lengths, wave.shape[1], n_fft, hop), n_fft, hop, window)


def reflection(lengths: Int[Tensor, " b"], samples: int, n_fft: int, hop: int) -> Int[Tensor, "b p"]:
    """For each position under the frames the index of its sample: `samples`, one past the last, is silence.

    A wave is reflected at both ends, again and again where it is shorter than half a frame.
    """
    at = torch.arange(samples // hop * hop + n_fft, device=lengths.device) - n_fft // 2
    period = (2 * lengths[:, None] - 2).clamp(min=1)
    at = at % period
    return torch.where(lengths[:, None] > 0, torch.minimum(at, period - at), samples)


def framed_spectrum(
    wave: Float[Tensor, "b n"],
    at: Int[Tensor, "b p"],
    n_fft: int,
    hop: int,
    window: Float[Tensor, " n_fft"] | None = None,
) -> Complex[Tensor, "b frames bins"]:
    """The spectrum of each frame of a wave with the given reflection."""
    frames = F.pad(wave, (0, 1)).gather(1, at).unfold(1, n_fft, hop)
    return torch.fft.rfft(frames if window is None else frames * window.to(frames))
