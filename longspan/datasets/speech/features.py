"""What is computed from one clip: log mel, pitch and energy for every frame, and with a TextGrid those of the cut clip.

Clips are mono. Those of LJSpeech have 22,050 Hz; others may have any rate from 16,000 Hz on (the mels end at 8,000 Hz)
and are resampled by `scipy.signal.resample_poly`. No change of volume, no trimming except by the TextGrid.
"""

import io
import math
from dataclasses import dataclass

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.speech.pitch import fit, needed, track_pitch
from longspan.datasets.speech.textgrid import read_textgrid

VERSION = 1  # raised when the same clip gives different features
RATE, HOP, MELS, WINDOW = 22_050, 256, 80, 1_024
LOWEST_RATE = 16_000
LONGEST_S = 120


@dataclass(frozen=True)
class Clip:
    """A sound file as it was found; `textgrid` is the content of its alignment, where there is one.

    Pitch and energy are computed only if `voice` is set.
    """

    name: str
    content: bytes
    where: str
    official_rate: bool  # whether it must have the rate of LJSpeech
    textgrid: bytes | None = None
    voice: bool = True


def extract(clip: Clip) -> dict[str, np.ndarray]:
    """`mel` [frames 80] float16 and the `rate` of the file; `pitch` in Hz and `energy` [frames].

    With a TextGrid, `pitch` and `energy` are those of the cut clip, with its mel as `cut_mel` and its `phones` and
    `durations`; all are cut or padded to the sum of durations.
    """
    wave, rate = read_wave(clip)
    mel, energy = _spectral(wave)
    if not clip.voice:
        return {"mel": mel, "rate": np.array(rate)}
    if clip.textgrid is None:
        pitch = track_pitch(wave, RATE, HOP)
        return {"mel": mel, "pitch": pitch, "energy": energy, "rate": np.array(rate)}
    alignment = read_textgrid(clip.textgrid, f"The TextGrid of {clip.name}", len(wave) / RATE)
    cut = wave[alignment.samples(RATE)]
    if len(cut) < WINDOW:
        raise CorruptFile(f"The TextGrid of {clip.name} leaves {len(cut)} samples of the clip; get it again.")
    durations = np.array(alignment.durations(RATE, HOP), np.int16)
    frames = int(durations.sum())
    cut_mel, energy = (fit(values, frames) for values in _spectral(cut))
    return {
        "mel": mel,
        "cut_mel": cut_mel,
        "pitch": fit(track_pitch(cut, RATE, HOP), frames),
        "energy": energy,
        "durations": durations,
        "phones": np.array(alignment.phones),
        "rate": np.array(rate),
    }


def _spectral(wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from longspan.kernels.spectrogram import energy, log_mel

    samples = torch.from_numpy(wave)
    return log_mel(samples).numpy().astype(np.float16), energy(samples).numpy()


def read_wave(clip: Clip) -> tuple[np.ndarray, int]:
    """The samples at 22,050 Hz, float32 from -1 to 1, and the rate of the file."""
    soundfile = needed("soundfile")
    again = "get it again."
    content = clip.content
    if content[:4] == b"RIFF" and int.from_bytes(content[4:8], "little") + 8 > len(content):
        raise CorruptFile(f"{clip.where} is cut off after {len(content):,} bytes; {again}")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as sound:
            rate, channels, frames = sound.samplerate, sound.channels, sound.frames
            if channels != 1:
                raise CorruptFile(f"{clip.where} has {channels} channels, expected one; mix it down to mono.")
            if clip.official_rate and rate != RATE:
                raise CorruptFile(f"{clip.where} has {rate:,} Hz, but clips of LJSpeech have {RATE:,}; {again}")
            if not clip.official_rate and not LOWEST_RATE <= rate <= 192_000:
                raise CorruptFile(f"{clip.where} has {rate:,} Hz, but at least {LOWEST_RATE:,} are needed; {again}")
            if frames > LONGEST_S * rate:
                raise CorruptFile(f"{clip.where} lasts more than {LONGEST_S} s; cut it into sentences.")
            wave = sound.read(dtype="float32")
    except soundfile.LibsndfileError as error:
        raise CorruptFile(f"{clip.where} is not a readable sound file ({error}); {again}") from error
    if rate != RATE:
        from scipy.signal import resample_poly

        common = math.gcd(RATE, rate)
        wave = resample_poly(wave.astype(np.float64), RATE // common, rate // common).astype(np.float32)
    if len(wave) < WINDOW or not np.isfinite(wave).all():
        found = f"{len(wave)} samples" if len(wave) < WINDOW else "samples that are no numbers"
        raise CorruptFile(f"{clip.where} has {found}, expected at least {WINDOW:,} finite ones; {again}")
    return wave, rate
