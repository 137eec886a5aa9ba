"""Samples as a browser plays or shows them: waves as WAV, mels and pictures as PNG, points as text for a script."""

import base64
import io
import wave
from itertools import pairwise

import numpy as np

from longspan.results.examples import CloudSample, SpeechSample

PALETTE = ("#0d1117", "#12355b", "#0072b2", "#35c79d", "#f5bd45", "#fff8e6")  # hues of the site, from quiet to loud
POINTS = 2048  # of a cloud on a page
DYNAMIC_RANGE = 7.0  # natural-log units below the loudest that a spectrogram shows, about 60 dB


def wav(samples: np.ndarray, rate: int) -> bytes:
    """One channel of 16-bit samples as a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def mel_pngs(clip: SpeechSample) -> tuple[bytes, bytes]:
    """The spectrograms of the made and of the true speech on one scale, a pixel for each frame and mel."""
    return _mel_png(clip.made_mel, loudest(clip)), _mel_png(clip.true_mel, loudest(clip))


def loudest(clip: SpeechSample) -> float:
    """The top of the scale of a clip: the true speech exceeds it only in a few cells."""
    return float(np.quantile(clip.true_mel.astype(np.float32), 0.999)) if clip.true_mel.size else 0.0


def levels(mel: np.ndarray, top: float) -> np.ndarray:
    """Log mels as numbers from 0 to 1 over the range that is shown."""
    return np.clip((mel.astype(np.float32) - top) / DYNAMIC_RANGE + 1, 0, 1)


def palette() -> np.ndarray:
    """256 colours [256, 3] from quiet to loud, each brighter than the one before."""
    anchors = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in PALETTE], dtype=np.float64)
    steps = np.array_split(np.arange(256), len(anchors) - 1)
    parts = [
        a + (b - a) * np.linspace(0, 1, len(step) + (step[-1] < 255))[: len(step), None]
        for (a, b), step in zip(pairwise(anchors), steps, strict=True)
    ]
    return np.concatenate(parts).round().astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """A picture of bytes [rows, columns, 3], or of palette indices [rows, columns]."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if pixels.ndim == 2:
        image.putpalette(palette().tobytes())
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def points(cloud: CloudSample) -> list[str]:
    """The three clouds in one box from -1 to 1, as base64 of 16-bit numbers, as x, y, z point by point."""
    centre, size = box(cloud)
    scaled = [((few(side) - centre) / size).clip(-1, 1) for side in (cloud.partial, cloud.completed, cloud.truth)]
    return [base64.b64encode((side * 32767).astype("<i2").tobytes()).decode() for side in scaled]


def box(cloud: CloudSample) -> tuple[np.ndarray, float]:
    """The centre of the box around the whole and the partial cloud, and half of its largest side."""
    both = np.concatenate([cloud.truth, cloud.partial])
    low, high = both.min(axis=0), both.max(axis=0)
    return (low + high) / 2, max(float((high - low).max()) / 2, 1e-6)


def few(side: np.ndarray) -> np.ndarray:
    """At most 2,048 of the points, evenly chosen."""
    return side[np.linspace(0, len(side) - 1, min(len(side), POINTS)).round().astype(int)]


def _mel_png(mel: np.ndarray, top: float) -> bytes:
    if not len(mel):
        mel = np.full((1, max(1, mel.shape[1])), top - DYNAMIC_RANGE)  # an empty clip
    return png((levels(mel, top).T[::-1] * 255).round().astype(np.uint8))
