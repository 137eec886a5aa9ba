"""Made-up speech: words of open syllables, whose vowels are tones with formants and whose consonants are noise or hum.

Drawn directly as log mels, so that no audio has to be analysed or aligned: durations, pitch and energy are those that
were drawn.
"""

import itertools
from dataclasses import dataclass

import numpy as np

MELS = 80
FLOOR = -8.0
STEP = 1 / 64  # mels are rounded to this, so that they are the same on every machine
VOWELS = {"a": ("AA1", 34, 46), "e": ("EH1", 24, 56), "i": ("IY1", 12, 66), "o": ("OW1", 22, 36), "u": ("UW1", 12, 30)}
HUMS = {"m": ("M", 10), "n": ("N", 16), "l": ("L", 22)}
NOISES = {"s": ("S", 72), "f": ("F", 60), "k": ("K", 48), "t": ("T", 66)}
LEXICON = {
    first + vowel: f"{phone[0]} {VOWELS[vowel][0]}" for first, phone in (HUMS | NOISES).items() for vowel in VOWELS
}


@dataclass(frozen=True, eq=False)
class MadeUp:
    """A clip: its text, and what `Phones` needs; `mel` [frames 80]."""

    text: str
    phones: list[str]
    durations: np.ndarray
    pitch: np.ndarray
    energy: np.ndarray
    mel: np.ndarray


def make_clip(rng: np.random.Generator) -> MadeUp:
    """Three to five words of one syllable, perhaps with a pause in the middle: 20 to 60 frames."""
    count = int(rng.integers(3, 6))
    pause = int(rng.integers(1, count)) if rng.random() < 0.5 else 0
    words, phones, durations, pitch, columns = [], [], [], [], []
    melody = rng.uniform(110, 140)
    for place in range(count):
        if place and place == pause:
            words[-1] += ","
            phones, durations, pitch = [*phones, "sp"], [*durations, int(rng.integers(3, 6))], [*pitch, melody]
            columns.append(_column(durations[-1], [], 0.0))
        letters = str(rng.choice(list(HUMS | NOISES))) + str(rng.choice(list(VOWELS)))
        words.append(letters)
        height = melody * (1.3 - 0.15 * place)
        for letter in letters:
            name, *peaks = (VOWELS | HUMS | NOISES)[letter]
            frames = int(rng.integers(5, 8) if letter in VOWELS else rng.integers(2, 5))
            phones, durations, pitch = [*phones, name], [*durations, frames], [*pitch, height]
            columns.append(_column(frames, peaks, 3.0 if letter in NOISES else 8.0 if letter in HUMS else 9.0, height))
    mel = np.concatenate(columns) + rng.normal(0, 0.1, (sum(durations), MELS))
    mel = np.round(mel / STEP) * STEP
    loudness = np.exp(mel).sum(axis=1)
    edges = np.concatenate([[0], np.cumsum(durations)])
    energy = [round(float(np.log1p(loudness[a:b].mean())), 3) for a, b in itertools.pairwise(edges)]
    text = " ".join(words).capitalize() + "."
    tones = np.round(np.log1p(pitch), 3)
    return MadeUp(text, phones, np.array(durations), tones, np.array(energy), mel.astype(np.float16))


def _column(frames: int, peaks: list[int], height: float, hertz: float = 0.0) -> np.ndarray:
    """The spectrum of one sound for `frames` frames, louder in the middle; a tone has harmonics `hertz` apart."""
    band = np.arange(MELS)
    spectrum = np.full(MELS, FLOOR)
    for peak in peaks:
        spectrum = np.maximum(spectrum, FLOOR + height * np.exp(-(((band - peak) / 6) ** 2)))
    if height > 5 and hertz:
        spectrum = spectrum + 0.8 * np.cos(2 * np.pi * band * 40 / hertz) * (band < 40)
    swell = np.sin(np.pi * (np.arange(frames) + 0.5) / frames)
    return spectrum + 0.7 * swell[:, None] * (spectrum > FLOOR + 0.5)
