"""Speech from text: what the tasks of both networks share, which is everything but the network.

The score is the mel-cepstral distortion (MCD) of free-running synthesis: the true and the generated spectrogram become
waveforms by Griffin-Lim, the frames of the waveforms are aligned by dynamic time warping, and the costs of all clips
are divided by the generated frames. Lower is better; it is not in decibels. Beside it are the mel-spectral distortion
(MSD), both once more under teacher forcing (`mcd_told`, `msd_told`: true durations, pitch and energy, or true previous
frames), and errors of what else is predicted. Chance is the MCD of the corpus' mean spectrum, repeated for as many
frames as the clip has.

Validation synthesises the first `heard` clips free-running, with 8 iterations of Griffin-Lim, and keeps the weights
with the lowest `mcd_loss`, which divides by the frames of the reference; beside it is the teacher-forced loss of all
clips. `cab-2023` synthesises all of them.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.datasets.base import Splits
from longspan.datasets.speech.view import Speech
from longspan.metrics.speech import over_corpus
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task, TaskMeta
from longspan.tasks.speech_feed import END, Hearing, SpeechFeed
from longspan.tasks.speech_sound import Samples, Voice, distortion, sound

Mels = Float[Tensor, "b n mels"]
TEACHER_FORCED = ("mcd_told", "msd_told")
LONGEST_FRAMES, LONGEST_TOKENS = 870, 174  # of a clip of LJSpeech, about
UNKNOWN = 3


def masked_mean(values: Float[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, ""]:
    """The mean over the mask, 0 if the mask is empty."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def speech_task(title: str, backbone: str, slots: dict[str, Pattern]) -> TaskMeta:
    """What the speech tasks have in common."""
    return TaskMeta(
        title=title,
        version=2,
        paper="arXiv:2210.07661",
        score="mcd",
        higher_is_better=False,
        backbone=backbone,
        slots=slots,
        unit="plain",
        selected_by="mcd_loss",
    )


class SpeechTask(Task):
    """Clips scored by how far their sound is from the truth."""

    dataset = "ljspeech"
    terms: ClassVar[tuple[str, ...]]  # of the loss
    packed: ClassVar[int] = 1  # frames that are predicted at a time
    feeds: ClassVar[type[SpeechFeed]] = SpeechFeed

    @abstractmethod
    def speak(self, model: nn.Module, batch: Any) -> tuple[Mels, Int[Tensor, " b"]]:
        """Normalised mels of free-running synthesis, and the frames of each row."""

    @abstractmethod
    def teacher_forced(self, model: nn.Module, batch: Any) -> tuple[Mels, dict[str, Tensor], Any]:
        """Mels under teacher forcing, the terms of the loss, and what else was predicted."""

    @abstractmethod
    def samples_in(self, batch: Any) -> int | Tensor:
        """What a batch counts as where gradients are divided by samples."""

    @abstractmethod
    def counts(self, batch: Any) -> Mapping[str, int | Tensor]: ...

    def errors(self, batch: Any, predicted: Any) -> dict[str, Tensor]:
        """Errors of each clip other than in its sound, and the counts by which their sums are divided."""
        return {}

    def longest(self, protocol: Protocol) -> int:
        return protocol.model.longest

    def passes(self, protocol: Protocol) -> tuple[float, float]:
        """The network twice, once with teacher forcing, and the waveforms."""
        return 3.0, 6.0

    def feed(self, split: Any, protocol: Protocol, device: torch.device | str) -> SpeechFeed:
        network = protocol.model
        if len(split.vocabulary) > network.vocabulary:
            raise UsageError(
                f"The network has {network.vocabulary} entries, but the texts are written in a vocabulary of "
                f"{len(split.vocabulary)}; set model.vocabulary to that."
            )
        feed = self.feeds(split, device, network, exact=network.pads == "seen", packed=self.packed)
        frames, tokens = int(feed.lengths.max(initial=0)), int(feed.token_lengths.max(initial=0))
        if frames > (most := network.longest * self.packed) or tokens > network.source_places:
            raise UsageError(
                f"Clips of {frames} frames and {tokens} tokens do not fit a network for {most} and "
                f"{network.source_places}; raise model.longest and model.source_places."
            )
        return feed

    def made_up(self, protocol: Protocol, count: int) -> Speech:
        """Clips of noise, as long as the longest of LJSpeech, in which all phones last equally long."""
        network = protocol.model
        each = min(LONGEST_FRAMES, network.longest * self.packed) // LONGEST_TOKENS
        tokens = np.random.default_rng(0).integers(UNKNOWN, network.vocabulary, (count, LONGEST_TOKENS), dtype=np.int16)
        tokens[:, -1] = END
        lasts = np.where(tokens == END, 0, each).astype(np.int16)
        values, mel = (
            np.ones(tokens.size, np.float32),
            np.random.default_rng(1).normal(size=(lasts.sum(), network.mels)),
        )
        names = [str(row) for row in range(count)]
        return Speech(
            tokens=tokens.ravel(),
            token_edges=np.arange(count + 1) * LONGEST_TOKENS,
            mel=mel.astype(np.float16),
            mel_edges=np.arange(count + 1) * int(lasts[0].sum()),
            mean=np.zeros(network.mels, np.float32),
            std=np.ones(network.mels, np.float32),
            ids=names,
            texts=names,
            vocabulary=[str(word) for word in range(network.vocabulary)],
            lexicon={},
            durations=lasts.ravel(),
            pitch=values,
            energy=values,
            pitch_range=(0.0, 1.0),
            energy_range=(0.0, 1.0),
        )

    def loss(self, model: nn.Module, batch: Any, *, smoothing: float = 0.0) -> StepResult:
        if smoothing:
            raise UsageError(f"Speech has no labels to smooth, so recipe.label_smoothing must be 0, got {smoothing}.")
        _, means, _ = self.teacher_forced(model, batch)
        loss, samples, counts = torch.stack(list(means.values())).sum(), self.samples_in(batch), self.counts(batch)
        sums = {name: mean.detach() * samples for name, mean in ({"loss": loss} | means).items()}
        return StepResult(loss, sums, samples, {name: (mean, counts[name]) for name, mean in means.items()})

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The loss is the plain sum of its terms."""
        return {"loss": sum(means[term] for term in self.terms)}

    def validate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        assert isinstance(feed, SpeechFeed)
        means, hearing = Means(), feed.hearing
        for _, batch in feed.in_batches(rows, batch_size):
            means.add(self.teacher_forced(model, batch)[1], self.counts(batch))
        heard, found = rows if hearing.heard is None else rows[rows < hearing.heard], Columns()
        for places, batch in feed.in_batches(heard, batch_size):
            true = sound(feed, batch.mel, batch.frames, hearing.validation_turns)
            made = sound(feed, *self.speak(model, batch), hearing.validation_turns)
            far = distortion(true, made)
            found.add(places, {"mcd_cost": far.mcd, "reference_frames": far.reference_frames})
        metrics, counts = means.means()
        return Evaluation(metrics | self.derived(metrics), len(rows), {"row": heard} | found.arrays(), counts)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        assert isinstance(feed, SpeechFeed)
        means, found, samples, turns = Means(), Columns(), Samples(feed.split.texts), feed.hearing.turns
        for places, batch in feed.in_batches(rows, batch_size):
            spoken_mel, spoken_frames = self.speak(model, batch)
            forced_mel, terms, predicted = self.teacher_forced(model, batch)
            means.add(terms, self.counts(batch))
            true, made = sound(feed, batch.mel, batch.frames, turns), sound(feed, spoken_mel, spoken_frames, turns)
            far = distortion(true, made)
            far_forced = distortion(true, sound(feed, forced_mel, batch.frames, turns))
            found.add(
                places,
                {
                    "mcd_cost": far.mcd,
                    "msd_cost": far.msd,
                    "mcd_told_cost": far_forced.mcd,
                    "msd_told_cost": far_forced.msd,
                    "reference_frames": far.reference_frames,
                    "made_frames": far.made_frames,
                    "frames": spoken_frames,
                    "true_frames": batch.frames,
                    **self.errors(batch, predicted),
                },
            )
            samples.add(rows[places], made, true)
        metrics, counts = means.means()
        predictions = {"row": rows} | found.arrays()
        return Evaluation(metrics | self.derived(metrics), len(rows), predictions, counts, samples.arrays())

    def summary(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Ratios of sums over all clips; validation has only the first ratio."""
        true = predictions["reference_frames"]
        scores = {"mcd_loss": over_corpus(predictions["mcd_cost"], true)}
        if "made_frames" not in predictions:
            return scores
        for name in ("mcd", "msd", *TEACHER_FORCED):
            frames = true if name in TEACHER_FORCED else predictions["made_frames"]
            scores[name] = over_corpus(predictions[f"{name}_cost"], frames)
        away = np.abs(predictions["frames"].astype(np.int64) - predictions["true_frames"])
        scores["length_error"] = over_corpus(away, predictions["true_frames"])
        return scores

    def chance(self, split: Any) -> float | None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        feed, found = SpeechFeed(split, device, Hearing(), packed=self.packed), Columns()
        for places, batch in feed.in_batches(np.arange(len(feed)), 16):
            mels = batch.mel, torch.zeros_like(batch.mel)  # normalised mels have mean 0
            true, mean = (sound(feed, mel, batch.frames, Hearing.turns) for mel in mels)
            far = distortion(true, mean)
            found.add(places, {"mcd_cost": far.mcd, "made_frames": far.made_frames})
        return over_corpus(*found.arrays().values())

    def user_object(self, model: nn.Module, protocol: Protocol, splits: Splits | None, device: Any) -> Any:
        """A voice."""
        if splits is None:
            raise UsageError(
                f"A voice of {self.name} needs the data of its run, which say how words are pronounced and how mels "
                "were normalised; get them with: longspan data import ljspeech PATH"
            )
        return Voice(self, model.to(device).eval(), self.feed(splits.test, protocol, device))


class Means:
    """Means over the counts of each term, of all batches together."""

    def __init__(self):
        self.sums, self.counts = {}, {}

    def add(self, means: Mapping[str, Tensor], counts: Mapping[str, int | Tensor]) -> None:
        for name, mean in means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean.double() * counts[name]
            self.counts[name] = self.counts.get(name, 0) + counts[name]

    def means(self) -> tuple[dict[str, float], dict[str, int]]:
        counts = {name: int(count) for name, count in self.counts.items()}
        return {name: float(total) / max(1, counts[name]) for name, total in self.sums.items()}, counts


class Columns:
    """Numbers of each clip, in the order of the rows that were given."""

    def __init__(self):
        self.places, self.columns = [], {}

    def add(self, places: np.ndarray, numbers: Mapping[str, Tensor]) -> None:
        self.places.append(places)
        for name, values in numbers.items():
            self.columns.setdefault(name, []).append(values.double().cpu().numpy())

    def arrays(self) -> dict[str, np.ndarray]:
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *self.places]))
        return {name: np.concatenate(parts)[order] for name, parts in self.columns.items()}
