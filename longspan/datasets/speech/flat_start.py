"""A first segmentation of clips into phones by Gaussians, the way recognisers have started for decades (flat start).

Each phone has two states, silence one, each a diagonal Gaussian of cepstra and their slopes. Starting from an even
segmentation of the loud part, means and variances and the most probable segmentation are computed in turns. Silence may
stand at both ends of a clip and after every word, and does stand where a token is `sp`. It takes seconds for half an
hour of speech.
"""

from collections.abc import Sequence

import numpy as np

from longspan.datasets.speech.phonemes import PAUSE

TURNS = 12
COEFFICIENTS = 14
QUIET = 5.0  # nepers below the loudest frame of a clip
SMALLEST_VARIANCE = 0.1  # of the variance over all frames
SILENCE = -1  # in what `segment` returns


def segment(mels: Sequence[np.ndarray], words: Sequence[Sequence[Sequence[str]]]) -> list[np.ndarray]:
    """For every frame of each clip the index of its phone in the clip, or SILENCE; mels are natural logarithms."""
    cepstra = [_cepstra(np.asarray(mel, np.float32)) for mel in mels]
    names = sorted({phone for clip in words for word in clip for phone in word} - {PAUSE})
    number = {name: 1 + 2 * place for place, name in enumerate(names)}
    chains = [_chain(clip, number, len(mel)) for clip, mel in zip(words, mels, strict=True)]
    paths = [_evenly(np.asarray(mel), owners) for mel, (_, owners) in zip(mels, chains, strict=True)]
    everything = np.concatenate(cepstra)
    floor = SMALLEST_VARIANCE * everything.var(axis=0)
    for _ in range(TURNS):
        used = np.concatenate([states[path] for (states, _), path in zip(chains, paths, strict=True)])
        means, variances = _gaussians(everything, used, 1 + 2 * len(names), floor)
        scale = -0.5 * np.log(variances).sum(axis=1)
        paths = [
            _best(_log_likelihood(frames, means, variances, scale)[:, states], owners == SILENCE)
            for frames, (states, owners) in zip(cepstra, chains, strict=True)
        ]
    return [owners[path] for (_, owners), path in zip(chains, paths, strict=True)]


def durations(owners: np.ndarray, phones: int) -> np.ndarray:
    """Frames of every phone, int16: silence counts for the phone before it, or for the first at the beginning."""
    last = np.maximum(np.maximum.accumulate(owners), 0)
    return np.bincount(last, minlength=phones).astype(np.int16)


def _cepstra(mel: np.ndarray) -> np.ndarray:
    """The first cepstral coefficients of each frame, and their change from two frames before to two after."""
    place = (np.arange(mel.shape[1]) + 0.5) / mel.shape[1]
    cosines = np.cos(np.pi * np.arange(COEFFICIENTS)[:, None] * place) * np.sqrt(2 / mel.shape[1])
    frames = mel @ cosines.T.astype(np.float32)
    around = np.pad(frames, ((2, 2), (0, 0)), mode="edge")
    return np.concatenate([frames, around[4:] - around[:-4]], axis=1)


def _chain(words: Sequence[Sequence[str]], number: dict[str, int], frames: int) -> tuple[np.ndarray, np.ndarray]:
    """The states of a clip in order, and for each the index of its phone.

    If there are too few frames, phones have one state.
    """
    count = sum(len(word) for word in words)
    each = 2 if frames >= 2 * count + 2 else 1
    states, owners, place = [0], [SILENCE], 0
    for word in words:
        for phone in word:
            own = [0] if phone == PAUSE else [number[phone] + part for part in range(each)]
            states += own
            owners += [place] * len(own)
            place += 1
        if word[-1] != PAUSE:
            states, owners = [*states, 0], [*owners, SILENCE]
    return np.array(states), np.array(owners)


def _evenly(mel: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """A first path: silence at the quiet ends, equal time for all phone states, no silence between words."""
    loudness = mel.mean(axis=1)
    loud = np.flatnonzero(loudness > loudness.max() - QUIET)
    first, last = loud[0], loud[-1]
    spoken = np.flatnonzero(owners != SILENCE)
    if last - first + 1 < len(spoken):  # hardly possible, but then all frames are used
        first, last = 0, len(mel) - 1
    path = np.full(len(mel), len(owners) - 1)
    path[:first] = 0
    count = last - first + 1
    path[first : last + 1] = spoken[np.arange(count) * len(spoken) // count]
    return path


def _gaussians(frames: np.ndarray, used: np.ndarray, states: int, floor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.bincount(used, minlength=states)[:, None]
    means, squares = (np.zeros((states, frames.shape[1])) for _ in range(2))
    np.add.at(means, used, frames)
    np.add.at(squares, used, frames.astype(np.float64) ** 2)
    means, squares = means / np.maximum(counts, 1), squares / np.maximum(counts, 1)
    return means, np.maximum(squares - means**2, floor)


def _log_likelihood(frames: np.ndarray, means: np.ndarray, variances: np.ndarray, scale: np.ndarray) -> np.ndarray:
    inverse = 1 / variances
    return scale - 0.5 * ((frames**2) @ inverse.T - 2 * frames @ (means * inverse).T + (means**2 * inverse).sum(axis=1))


def _best(emitted: np.ndarray, optional: np.ndarray) -> np.ndarray:
    """The most probable path through states that follow one another; optional ones may be left out."""
    states = emitted.shape[1]
    came_from = np.zeros(emitted.shape, np.uint8)
    score = np.full(states, -np.inf)
    score[:2] = emitted[0, :2]
    choices = np.full((3, states), -np.inf)
    may_skip = optional[1:-1]
    for t in range(1, len(emitted)):
        choices[0] = score
        choices[1, 1:] = score[:-1]
        choices[2, 2:] = np.where(may_skip, score[:-2], -np.inf)
        came_from[t] = choices.argmax(axis=0)
        score = choices.max(axis=0) + emitted[t]
    state = states - 1 if score[-1] >= score[-2] or not optional[-1] else states - 2
    path = np.empty(len(emitted), np.int64)
    for t in range(len(emitted) - 1, -1, -1):
        path[t] = state
        state -= int(came_from[t, state])
    return path
