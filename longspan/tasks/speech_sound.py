"""From spectrograms to sound: waveforms to be compared, clips to be listened to, and a voice that speaks."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.kernels.spectrogram import HOP, RATE, as_stored, griffin_lim, to_pcm16
from longspan.metrics.speech import Distortion, mcd_msd
from longspan.tasks.speech_feed import SpeechFeed

LOUDEST = 20.0  # of a log mel: speech stays below 3, and the exponential of a diverged network must be finite
KEPT = 2  # clips to be listened to


class Sound(NamedTuple):
    """Waveforms of a batch with the log mels they come from, and how much of each belongs to a row."""

    mel: Float[Tensor, "b n mels"]
    frames: Int[Tensor, " b"]
    wave: Float[Tensor, "b t"]
    samples: Int[Tensor, " b"]


def sound(feed: SpeechFeed, mel: Float[Tensor, "b n mels"], frames: Int[Tensor, " b"], turns: int) -> Sound:
    """Normalised mels as waveforms, as if written to a file and read; a row without frames is one frame of zeros.

    All rows begin with phases from the same seed, so that no clip depends on the others.
    """
    logs = feed.log_mel(mel).clamp(max=LOUDEST).masked_fill((frames == 0)[:, None, None], 0)
    frames = frames.clamp(min=1)
    width = max(2, int(frames.max()))  # a waveform of one frame has no sample, and a batch of these no width
    logs = F.pad(logs, (0, 0, 0, max(0, width - logs.shape[1])))[:, :width]
    wave = griffin_lim(logs, turns, torch.Generator().manual_seed(0), frames=frames)
    return Sound(logs, frames, as_stored(wave), (frames - 1) * HOP)


def distortion(reference: Sound, made: Sound) -> Distortion:
    """How far the generated sound of each clip is from its reference."""
    lengths = {"reference_lengths": reference.samples, "made_lengths": made.samples}
    return mcd_msd(reference.wave, made.wave, **lengths, rate=RATE)


class Samples:
    """The first clips of a split, generated and true, as they are kept beside a card."""

    def __init__(self, texts: Any):
        self.texts, self.clips = texts, {}

    def add(self, rows: np.ndarray, made: Sound, true: Sound) -> None:
        for place, row in enumerate(rows.tolist()):
            if row < KEPT:
                self.clips[row] = {"made": _clip(made, place), "true": _clip(true, place)}

    def arrays(self) -> dict[str, np.ndarray]:
        rows = sorted(self.clips)
        if not rows:
            return {}
        found: dict[str, np.ndarray] = {
            "kind": np.array("speech"),
            "text": np.array([str(self.texts[row]) for row in rows]),
            "rate": np.array(RATE),
        }
        for name in ("made", "true"):
            for part in ("wave", "mel"):
                pieces = [self.clips[row][name][part] for row in rows]
                found[f"{name}_{part}"] = np.concatenate(pieces)
                found[f"{name}_{part}_edges"] = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return found


def _clip(heard: Sound, place: int) -> dict[str, np.ndarray]:
    wave = to_pcm16(heard.wave[place, : int(heard.samples[place])])
    mel = heard.mel[place, : int(heard.frames[place])]
    return {"wave": wave.cpu().numpy(), "mel": mel.half().cpu().numpy()}


class Voice:
    """A trained network that speaks: `wave = voice.speak("Hello, world.")`, float32 at 22,050 Hz."""

    rate = RATE

    def __init__(self, task: Any, model: nn.Module, feed: SpeechFeed):
        self.task, self.model, self.feed = task, model, feed

    @torch.no_grad()
    def speak(self, text: str) -> np.ndarray:
        mel, frames = self.task.speak(self.model, self.feed.text(list(self.feed.split.phonemes(text))))
        heard = sound(self.feed, mel, frames, self.feed.hearing.turns)
        return heard.wave[0, : int(heard.samples[0])].float().cpu().numpy()
