"""Sound and its spectrograms: log mels, energy, cepstra, and the wave back from a log mel by Griffin-Lim.

    mel = log_mel(wave)  # at 22,050 Hz, as fairseq's speech recipes have it
    wave = griffin_lim(mel, 32, torch.Generator().manual_seed(0))

Clips of different lengths go in one padded batch: `lengths` says how many samples (or frames) of a row are real, and
the real part of a row is what it would be alone.
"""

from longspan.kernels.spectrogram.cepstrum import cepstrum, frame_step, log_mel_power, mfcc
from longspan.kernels.spectrogram.griffin_lim import griffin_lim
from longspan.kernels.spectrogram.mel import HOP, MELS, N_FFT, RATE, energy, log_mel
from longspan.kernels.spectrogram.mel_basis import mel_basis
from longspan.kernels.spectrogram.pcm16 import as_stored, to_pcm16

__all__ = [
    "HOP",
    "MELS",
    "N_FFT",
    "RATE",
    "as_stored",
    "cepstrum",
    "energy",
    "frame_step",
    "griffin_lim",
    "log_mel",
    "log_mel_power",
    "mel_basis",
    "mfcc",
    "to_pcm16",
]
