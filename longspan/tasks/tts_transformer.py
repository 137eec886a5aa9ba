"""Speech from phones by Transformer-TTS, four frames a step, one step after another (LJSpeech, as in CAB).

The score is the mel-cepstral distortion of free-running synthesis (`tasks/speech.py`); `length_error` is how far the
number of frames is off, as a share of the true one. The loss is L1 and squared error, each before and after the
post-net, and the cross entropy of stopping, in which the last step has weight five.

`cab-2023` is fairseq's recipe as CAB ran it: 200,000 updates of 48 clips in 8 parts, the gradients of the parts' means
summed and divided by the number of steps, about 48 x 141; padding is masked in attention only; and a row that has
stopped continues until its batch of 6 has, which its post-net sees. The weights that are best up to update 20,000, the
number in CAB's table, are scored as well. `longspan` fixes what can be fixed without changing the model: 20,000
updates, the plain mean over the parts, padding that no layer sees, and a row that ends where it stops. Its lite tier
has 8,000 updates in 2 parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.slots import AttentionFactory
from longspan.backbones.transformer_tts import Sizes, TransformerTTS
from longspan.datasets import ljspeech
from longspan.kernels.packing import real
from longspan.tasks.base import Protocol
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.speech import Mels, SpeechTask, masked_mean, speech_task
from longspan.tasks.speech_feed import Batch, Hearing
from longspan.tasks.speech_rules import CAB_RECIPE, LITE_RECIPE, LONGSPAN_RECIPE, SMOKE_RECIPE, speech_protocols

LAST = 5.0  # the weight of the step at which a clip ends


@dataclass(frozen=True)
class Network(Hearing, Sizes):
    vocabulary: int = 81


DATA = ljspeech.PRESETS["tts_transformer"]
CAB = Protocol(data=DATA["cab-2023", "full"], model=Network(pads="seen", together=True, heard=None), recipe=CAB_RECIPE)
LONGSPAN = Protocol(data=DATA["longspan", "full"], model=Network(), recipe=LONGSPAN_RECIPE)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Network(
        dim=64,
        layers=1,
        mlp=128,
        convolutions=1,
        postnet=48,
        postnet_layers=2,
        prenet=48,
        dropout=0.0,
        attention_dropout=0.0,
        convolution_dropout=0.0,
        source_places=256,
        longest=256,
        heard=4,
    ),
    recipe=SMOKE_RECIPE,
)


class TTSTransformer(SpeechTask):
    meta = speech_task(
        "TTS, Transformer-TTS",
        "transformer_tts",
        {"encoder": Pattern.NONCAUSAL_SELF, "decoder": Pattern.CAUSAL_SELF, "cross": Pattern.CAUSAL_CROSS},
    )
    protocols = speech_protocols(CAB, LONGSPAN, SMOKE, lite=replace(LITE_RECIPE, steps=8_000, evaluate_every=1_000))
    presets = {"cab-2023": cab_presets("tts_transformer")}
    terms = ("mel", "stop")
    packed = Sizes.packed

    def model(self, attention: AttentionFactory, protocol: Protocol) -> TransformerTTS:
        return TransformerTTS(attention, protocol.model, vocabulary=protocol.model.vocabulary)

    def passes(self, protocol: Protocol) -> tuple[float, float]:
        """Steps are generated one after another, which takes about as long as twenty passes over all of them."""
        return 20.0, 40.0

    def speak(self, model: nn.Module, batch: Batch) -> tuple[Mels, Int[Tensor, " b"]]:
        made = model(batch.tokens, batch.lengths, rows=batch.row)
        return unpack(made.after, self.packed), made.lengths * self.packed

    def teacher_forced(self, model: nn.Module, batch: Batch) -> tuple[Mels, dict[str, Tensor], Any]:
        target, steps = pack(batch.mel, self.packed), batch.frames // self.packed
        said = model(batch.tokens, batch.lengths, target, steps, rows=batch.row)
        step, away = real(steps, target.shape[1]), [u.float() - target for u in (said.before, said.after)]
        before, after = (masked_mean((u.abs() + u.square()).mean(dim=-1), step) for u in away)
        means = {"mel": before + after, "stop": stop_loss(said.stop, steps)}
        return unpack(said.after, self.packed), means, None

    def counts(self, batch: Batch) -> Mapping[str, int | Tensor]:
        return dict.fromkeys(self.terms, self.samples_in(batch))

    def samples_in(self, batch: Batch) -> Tensor:
        """Packed steps."""
        return (batch.frames // self.packed).sum()


def pack(mel: Mels, size: int) -> Float[Tensor, "b s f"]:
    """`size` consecutive frames side by side; what is left at the end is dropped.

    >>> pack(torch.arange(10.0).view(1, 10, 1), 4).tolist()
    [[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]]
    """
    return mel[:, : mel.shape[1] // size * size].unflatten(1, (-1, size)).flatten(2)


def unpack(steps: Float[Tensor, "b s f"], size: int) -> Mels:
    """The frames of `pack`."""
    return steps.unflatten(2, (size, -1)).flatten(1, 2)


def stop_loss(logits: Float[Tensor, "b s"], steps: Int[Tensor, " b"]) -> Float[Tensor, ""]:
    """The mean cross entropy of stopping at the last step of each row and not before.

    >>> round(float(stop_loss(torch.zeros(1, 3), torch.tensor([3]))), 6)
    1.617343
    """
    last = (torch.arange(logits.shape[1], device=logits.device) == steps[:, None] - 1).float()
    weight = 1 + (LAST - 1) * last
    each = F.binary_cross_entropy_with_logits(logits.float(), last, weight=weight, reduction="none")
    return masked_mean(each, real(steps, logits.shape[1]))
