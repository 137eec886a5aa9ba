"""Log mels and energies as fairseq's speech recipes compute them, and CAB after them (LJSpeech, 22,050 Hz).

Magnitudes (not powers) of 1,024 samples under a periodic Hann window every 256, 80 Slaney mels of area 1 between 20 and
8,000 Hz, clamped at 1e-5, natural logarithm. The energy of a frame has no window: the norm of its 513 magnitudes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.precision import without_autocast
from longspan.kernels.spectrogram.mel_basis import mel_basis
from longspan.kernels.spectrogram.stft import as_rows, is_real, stft

RATE, N_FFT, HOP, MELS = 22_050, 1024, 256, 80
LOWEST_HZ, HIGHEST_HZ, FLOOR = 20, 8000, 1e-5


def speech_basis() -> Float[Tensor, "bins mels"]:
    """The 513 x 80 mel filters of these recipes."""
    return mel_basis(RATE, N_FFT, MELS, LOWEST_HZ, HIGHEST_HZ, scale="slaney", norm="area")


def log_mel(wave: Float[Tensor, "*b n"], lengths: Int[Tensor, " rows"] | None = None) -> Float[Tensor, "*b frames 80"]:
    """Natural-log mels, not normalised: 1 + samples // 256 frames, and 0 in frames that are padding.

    >>> log_mel(torch.zeros(22_050)).shape
    torch.Size([87, 80])
    """
    x, lengths = as_rows(wave, lengths)
    with without_autocast(x):
        magnitude = stft(x, lengths, N_FFT, HOP, torch.hann_window(N_FFT)).abs()
        mel = (magnitude @ speech_basis().to(magnitude)).clamp(min=FLOOR).log()
    mel = mel * is_real(1 + lengths // HOP, mel.shape[1])[..., None]
    return mel.reshape(*wave.shape[:-1], *mel.shape[1:])


def energy(wave: Float[Tensor, "*b n"], lengths: Int[Tensor, " rows"] | None = None) -> Float[Tensor, "*b frames"]:
    """The norm of each frame's spectrum without a window, not logged; 0 in frames that are padding."""
    x, lengths = as_rows(wave, lengths)
    norm = stft(x, lengths, N_FFT, HOP).abs().norm(dim=-1)
    norm = norm * is_real(1 + lengths // HOP, norm.shape[1])
    return norm.reshape(*wave.shape[:-1], -1)
