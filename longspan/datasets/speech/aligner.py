"""Durations of phones without hand-made alignments: a phone CTC model trained on the clips, and its best path.

The network reads normalised mels: two convolutions, the second with stride 2, then a bidirectional LSTM of 2 layers of
256 units; it predicts phones (without stress) and blank. All epochs but the last two learn the segmentation of
`flat_start`, silence as blank, since CTC alone needs far more than half an hour of speech; those two are CTC in which
the posteriors are divided by (the mean posterior of the epoch before) ** 0.3, so that phones keep their frames instead
of leaving most to blank (arXiv:2406.02560). For the path it is run twice, on the clip and on the clip without its first
frame, and so predicts every frame. Blank frames go to the phone before, leading ones to the first phone: every duration
is at least 1 and their sum is the number of frames. One thread and one seed: the same clips give the same durations.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.core.seeding import derive
from longspan.core.threads import one_thread
from longspan.datasets.speech import flat_start
from longspan.datasets.speech.store import gcmvn

if TYPE_CHECKING:
    import torch

BLANK = 0
PRIOR = 0.3  # the power of the prior
EPOCHS = 10
OF_CTC = 2  # the last of them, which use CTC
BATCH = 8
LEARNING_RATE = 1e-3
WARMUP = 50  # updates
LARGEST_GRADIENT = 5.0


@dataclass(frozen=True, eq=False)
class Spoken:
    """One clip to align: its mel [frames 80], natural logarithms, and its phones by word; `name` is for messages."""

    name: str
    mel: np.ndarray
    words: Sequence[Sequence[str]]

    @property
    def phones(self) -> list[str]:
        return [phone for word in self.words for phone in word]


def align(clips: Sequence[Spoken], *, seed: int = 0, advance: Callable[[], None] = lambda: None) -> list[np.ndarray]:
    """The duration of every phone in frames, int16, for each clip; `advance` is called after each epoch and at the end.

    Trains on all clips first: minutes for half an hour of speech.
    """
    import torch

    segments = start(clips)
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "aligner") % (1 << 63))
        return _train_and_align(clips, segments, seed, advance)


def start(clips: Sequence[Spoken]) -> list[np.ndarray]:
    """The segmentation from which the network learns; see `flat_start.segment`."""
    for clip in clips:
        if len(clip.mel) < (least := _fewest_frames(clip.phones)) or not clip.phones:
            raise CorruptFile(
                f"{clip.name} has {len(clip.mel)} frames for {len(clip.phones)} phones, which take at least {least}; "
                "check that the text is what is said."
            )
    plain = [[[_without_stress(phone) for phone in word] for word in clip.words] for clip in clips]
    return flat_start.segment([clip.mel for clip in clips], plain)


def best_path(log_probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The most probable CTC path of the labels through log_probs [frames classes], as the frames of each label.

    Blank frames count for the label before them, leading ones for the first.
    """
    states = np.full(2 * len(labels) + 1, BLANK)
    states[1::2] = labels
    may_skip = np.zeros(len(states), bool)
    may_skip[3::2] = states[3::2] != states[1:-2:2]
    came_from = np.zeros((len(log_probs), len(states)), np.uint8)
    emitted = np.asarray(log_probs, np.float64)[:, states]
    score = np.full(len(states), -np.inf)
    score[:2] = emitted[0, :2]
    choices = np.full((3, len(states)), -np.inf)
    for t in range(1, len(log_probs)):
        choices[0] = score
        choices[1, 1:] = score[:-1]
        choices[2, 2:] = np.where(may_skip[2:], score[:-2], -np.inf)
        came_from[t] = choices.argmax(axis=0)
        score = choices.max(axis=0) + emitted[t]
    state = len(states) - 1 if score[-1] >= score[-2] else len(states) - 2
    frames = np.zeros(len(labels), np.int64)
    for t in range(len(log_probs) - 1, -1, -1):
        frames[max(state - 1, 0) // 2] += 1
        state -= int(came_from[t, state])
    return frames


def _fewest_frames(phones: Sequence[str]) -> int:
    """A frame for each phone, and a blank one between two that are alike."""
    plain = [_without_stress(phone) for phone in phones]
    return len(plain) + sum(a == b for a, b in itertools.pairwise(plain))


def _without_stress(phone: str) -> str:
    return phone.rstrip("012")


def _train_and_align(
    clips: Sequence[Spoken], segments: Sequence[np.ndarray], seed: int, advance: Callable[[], None]
) -> list[np.ndarray]:
    import torch
    from torch.nn import functional as F
    from torch.nn.utils import clip_grad_norm_
    from torch.nn.utils.rnn import pad_sequence

    names = sorted({_without_stress(phone) for clip in clips for phone in clip.phones})
    number = {name: place for place, name in enumerate(names, start=1)}
    labels = [torch.tensor([number[_without_stress(phone)] for phone in clip.phones]) for clip in clips]
    mean, std = gcmvn(clip.mel for clip in clips)
    mels = [torch.from_numpy((np.asarray(clip.mel, np.float32) - mean) / std) for clip in clips]
    taught = [_half_rate(label, owners) for label, owners in zip(labels, segments, strict=True)]
    by_length = np.argsort([len(mel) for mel in mels], kind="stable")
    groups = [by_length[first : first + BATCH] for first in range(0, len(by_length), BATCH)]
    rng = np.random.Generator(np.random.PCG64(derive(seed, "aligner", "order")))
    network = _network(mels[0].shape[1], len(names) + 1)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    prior, update = torch.zeros(len(names) + 1), 0
    for epoch in range(EPOCHS):
        posterior, seen = torch.zeros(len(names) + 1), 0
        for group in rng.permutation(len(groups)):
            rows = groups[group]
            update += 1
            fraction = min(update / WARMUP, 1 - (update - 1) / (EPOCHS * len(groups)))
            for settings in optimizer.param_groups:
                settings["lr"] = LEARNING_RATE * fraction
            log_probs = network(pad_sequence([mels[i] for i in rows], batch_first=True))
            steps = torch.tensor([-(-len(mels[i]) // 2) for i in rows])
            real = torch.arange(log_probs.shape[1]) < steps[:, None]
            if epoch < EPOCHS - OF_CTC:
                loss = F.nll_loss(log_probs[real], torch.cat([taught[i] for i in rows]))
            else:
                loss = F.ctc_loss(
                    (log_probs - PRIOR * prior).transpose(0, 1),
                    torch.cat([labels[i] for i in rows]),
                    steps,
                    torch.tensor([len(labels[i]) for i in rows]),
                    reduction="sum",
                    zero_infinity=True,  # for clips with too few frames at half the rate
                ) / int(steps.sum())
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(network.parameters(), LARGEST_GRADIENT)
            optimizer.step()
            posterior += log_probs.detach()[real].exp().sum(0)
            seen += int(steps.sum())
        prior = ((posterior + 1) / (seen + len(posterior))).log()
        advance()
    network.eval()
    found = []
    with torch.no_grad():
        for mel, label in zip(mels, labels, strict=True):
            log_probs = torch.empty(len(mel), len(names) + 1)
            for first in (0, 1):
                if len(mel) > first:
                    log_probs[first::2] = network(mel[None, first:])[0] - PRIOR * prior
            found.append(best_path(log_probs.numpy(), label.numpy()).astype(np.int16))
    advance()
    return found


def _half_rate(labels: "torch.Tensor", owners: np.ndarray) -> "torch.Tensor":
    """The label of every second frame, blank for silence."""
    import torch

    places = torch.from_numpy(owners[::2].copy())
    return torch.where(places >= 0, labels[places.clamp(min=0)], BLANK)


def _network(width: int, classes: int) -> "torch.nn.Module":
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv1d(width, 256, 5, padding=2)
            self.strided = nn.Conv1d(256, 256, 5, padding=2, stride=2)
            self.lstm = nn.LSTM(256, 256, 2, bidirectional=True, batch_first=True)
            self.out = nn.Linear(512, classes)

        def forward(self, mel):
            hidden = self.strided(self.stem(mel.mT).relu()).relu().mT
            return self.out(self.lstm(hidden)[0]).log_softmax(-1)

    return Network()
