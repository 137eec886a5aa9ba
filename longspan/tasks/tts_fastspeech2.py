"""Speech from phones by FastSpeech 2, all frames at once (LJSpeech, as in CAB).

The score is the mel-cepstral distortion of free-running synthesis (`tasks/speech.py`); `duration_error` is in frames
per phone, `pitch_error_hz` in Hz, both without the end token. The loss is the mean L1 of the mels and the mean squared
errors of log(d + 1), pitch and energy.

`cab-2023` is fairseq's recipe as CAB ran it: 200,000 updates of 48 clips in 8 parts, the gradients of the parts' means
summed and divided by 48; padding is masked in attention only; durations of the Montreal Forced Aligner. The weights
that are best up to update 20,000, the number in CAB's table, are scored as well. `longspan` fixes what can be fixed
without changing the model: 20,000 updates, the plain mean over the parts, padding that no layer sees, and durations
from any source. Its lite tier has 2,000 updates in 2 parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.fastspeech2 import FastSpeech2, Sizes, Spoken, whole_durations
from longspan.backbones.slots import AttentionFactory
from longspan.datasets import ljspeech
from longspan.kernels.packing import real
from longspan.metrics.speech import over_corpus
from longspan.tasks.base import Protocol
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.speech import Mels, SpeechTask, masked_mean, speech_task
from longspan.tasks.speech_feed import Batch, Hearing, SpeechFeed
from longspan.tasks.speech_rules import CAB_RECIPE, LONGSPAN_RECIPE, SMOKE_RECIPE, speech_protocols

MOST = 10_000  # frames that a phone may be predicted to last


@dataclass(frozen=True)
class Network(Hearing, Sizes):
    vocabulary: int = 75


@dataclass(frozen=True)
class AlignedBatch(Batch):
    """Clips with what is known of each phone; `tops` are the largest pitch and energy of the corpus."""

    durations: Int[Tensor, "b m"]
    pitch: Float[Tensor, "b m"]
    energy: Float[Tensor, "b m"]
    tops: Float[Tensor, "2"]


class AlignedFeed(SpeechFeed):
    def __init__(self, split: Any, device: torch.device | str, hearing: Hearing, **how: Any):
        super().__init__(split, device, hearing, **how)
        self.known = [self._numbers(values) for values in (split.durations, split.pitch, split.energy)]
        self.tops = torch.tensor([split.pitch_range[1], split.energy_range[1]], dtype=torch.float32, device=device)

    def batch(self, rows: np.ndarray) -> AlignedBatch:
        batch = super().batch(rows)
        width = batch.tokens.shape[1]
        phone = real(batch.lengths, width)
        durations, pitch, energy = (self.gather(flat, self.token_edges, rows, width) * phone for flat in self.known)
        return AlignedBatch(**vars(batch), durations=durations.long(), pitch=pitch, energy=energy, tops=self.tops)

    def text(self, tokens: list[int]) -> AlignedBatch:
        batch = super().text(tokens)
        none = torch.zeros_like(batch.tokens)
        return AlignedBatch(**vars(batch), durations=none, pitch=none.float(), energy=none.float(), tops=self.tops)


DATA = ljspeech.PRESETS["tts_fastspeech2"]
CAB = Protocol(data=DATA["cab-2023", "full"], model=Network(pads="seen", heard=None), recipe=CAB_RECIPE)
LONGSPAN = Protocol(data=DATA["longspan", "full"], model=Network(), recipe=LONGSPAN_RECIPE)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Network(
        dim=64,
        encoder_layers=1,
        decoder_layers=1,
        mlp=96,
        width=5,
        dropout=0.0,
        attention_dropout=0.0,
        predictor_dropout=0.0,
        source_places=256,
        longest=1_024,
        heard=4,
    ),
    recipe=SMOKE_RECIPE,
)


class TTSFastSpeech2(SpeechTask):
    meta = speech_task(
        "TTS, FastSpeech 2",
        "fastspeech2",
        {"encoder": Pattern.NONCAUSAL_SELF, "decoder": Pattern.NONCAUSAL_SELF},
    )
    protocols = speech_protocols(CAB, LONGSPAN, SMOKE)
    presets = {"cab-2023": cab_presets("tts_fastspeech2")}
    terms = ("mel", "duration", "pitch", "energy")
    feeds = AlignedFeed

    def model(self, attention: AttentionFactory, protocol: Protocol) -> FastSpeech2:
        return FastSpeech2(attention, protocol.model, vocabulary=protocol.model.vocabulary)

    def speak(self, model: nn.Module, batch: AlignedBatch) -> tuple[Mels, Int[Tensor, " b"]]:
        spoken = model(batch.tokens, batch.lengths, batch.tops)
        return spoken.mel, spoken.frames

    def teacher_forced(self, model: nn.Module, batch: AlignedBatch) -> tuple[Mels, dict[str, Tensor], Spoken]:
        known = batch.durations, batch.pitch, batch.energy
        said = model(batch.tokens, batch.lengths, batch.tops, *known, width=batch.mel.shape[1])
        frame, phone = (
            real(lengths, width)
            for lengths, width in ((batch.frames, batch.mel.shape[1]), (batch.lengths, batch.tokens.shape[1]))
        )
        means = {"mel": masked_mean((said.mel.float() - batch.mel).abs().mean(dim=-1), frame)}
        wanted = {"duration": batch.durations.float().log1p(), "pitch": batch.pitch, "energy": batch.energy}
        for (name, truth), guess in zip(wanted.items(), (said.log_durations, said.pitch, said.energy), strict=True):
            means[name] = masked_mean((guess.float() - truth).square(), phone)
        return said.mel, means, said

    def counts(self, batch: AlignedBatch) -> Mapping[str, int | Tensor]:
        phones = batch.lengths.sum()
        return {"mel": batch.frames.sum(), "duration": phones, "pitch": phones, "energy": phones}

    def samples_in(self, batch: AlignedBatch) -> int:
        """Sentences."""
        return len(batch.tokens)

    def errors(self, batch: AlignedBatch, predicted: Spoken) -> dict[str, Tensor]:
        """Without the end token, which has no duration; pitch only of phones that have one."""
        phone = real(batch.lengths - 1, batch.tokens.shape[1])
        sounds = phone & (batch.durations > 0)
        late = whole_durations(predicted.log_durations, MOST) - batch.durations
        hertz = predicted.pitch.float().expm1() - batch.pitch.expm1()
        return {
            "duration_cost": (late.abs() * phone).sum(dim=1),
            "phones": phone.sum(dim=1),
            "pitch_cost": (hertz.abs() * sounds).sum(dim=1),
            "pitched": sounds.sum(dim=1),
        }

    def summary(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        scores = super().summary(predictions)
        if "phones" in predictions:
            scores["duration_error"] = over_corpus(predictions["duration_cost"], predictions["phones"])
            scores["pitch_error_hz"] = over_corpus(predictions["pitch_cost"], predictions["pitched"])
        return scores
