"""Samples on one sheet, drawn with matplotlib: pairs of spectrograms, clouds from one side, rows of pictures."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.atomic import storage_errors, temporary_beside
from longspan.core.printable import shown
from longspan.report import sample_media as media
from longspan.report.paper_figure import COLOURS, canvas
from longspan.results.examples import CloudSample, Examples, PictureSample, SpeechSample

DPI = 160
LETTERS = 90  # of a title
LINE = 80  # letters of a line above a spectrogram, which has two at most
YAW, PITCH = 0.7, 0.35  # from where clouds are seen, as on the site
PARTS = (("partial", "--hue-2"), ("completed", "--hue-1"), ("true", "--hue-3"))


def draw(found: Examples, path: Path, title: str = "") -> Path:
    """A row for each sample, written as PNG."""
    drawn_by: dict[type, tuple[Callable[..., None], int, float, float]] = {  # columns, inches of a column and of a row
        SpeechSample: (_speech, 2, 5.0, 1.6),
        CloudSample: (_clouds, 3, 2.4, 2.5),
        PictureSample: (_pictures, 4, 1.7, 1.8),
    }
    row, columns, width, height = drawn_by[type(found[0])]
    with canvas() as pyplot:
        sheet = pyplot.figure(figsize=(columns * width, len(found) * height + 0.4), layout="constrained")
        sheet.suptitle(_plain(title), fontsize=10, parse_math=False)
        axes = sheet.subplots(len(found), columns, squeeze=False)
        for sample, places in zip(found, axes, strict=True):
            row(sample, places)
        with storage_errors(path), temporary_beside(path) as temporary:
            sheet.savefig(temporary, format="png", dpi=DPI)
        pyplot.close(sheet)
    return path


def _speech(clip: SpeechSample, places: Sequence[Any]) -> None:
    from matplotlib.colors import ListedColormap

    colours, top = ListedColormap(media.palette() / 255), media.loudest(clip)
    longest = max(len(clip.made_mel), len(clip.true_mel), 1)
    for place, mel, wave, side in zip(
        places, (clip.made_mel, clip.true_mel), (clip.made, clip.true), ("made", "true"), strict=True
    ):
        seconds = len(wave) / clip.rate
        if len(mel):
            image = media.levels(mel, top).T
            place.imshow(image, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        place.set_xlim(-0.5, longest - 0.5)
        words = f"{side}, {seconds:.1f} s" + (f": {shown(clip.text)}" if side == "made" else "")
        words = textwrap.fill(words, LINE, max_lines=2, placeholder=" …")
        place.set_title(words, fontsize=7, loc="left", parse_math=False)
        place.set_axis_off()


def _clouds(cloud: CloudSample, places: Sequence[Any]) -> None:
    centre, size = media.box(cloud)
    for place, points, (side, hue) in zip(places, (cloud.partial, cloud.completed, cloud.truth), PARTS, strict=True):
        x, y, near = _seen(((media.few(points) - centre) / size).astype(np.float64))
        order = np.argsort(near)
        shade = np.clip(0.65 + 0.4 * near[order], 0.2, 1)
        dot = 2 * min(4.0, media.POINTS / len(x))  # few points are drawn larger
        place.scatter(x[order], y[order], s=dot, color=COLOURS[hue], alpha=shade, linewidths=0)
        place.set(xlim=(-1.55, 1.55), ylim=(-1.55, 1.55), aspect="equal")
        place.set_title(f"{side}: {_plain(cloud.category)}", fontsize=7, loc="left", parse_math=False)
        place.set_axis_off()


def _pictures(picture: PictureSample, places: Sequence[Any]) -> None:
    sides = (picture.low, picture.bicubic, picture.restored, picture.truth)
    for place, pixels, side in zip(places, sides, ("low", "bicubic", "restored", "true"), strict=True):
        place.imshow(pixels, interpolation="nearest")
        place.set_title(side, fontsize=7, loc="left", parse_math=False)
        place.set_axis_off()


def _seen(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points as seen: horizontal, vertical and towards the viewer; their y points up."""
    x, y, z = points.T
    away = np.cos(YAW) * z - np.sin(YAW) * x
    across = np.cos(YAW) * x + np.sin(YAW) * z
    return across, np.cos(PITCH) * y - np.sin(PITCH) * away, np.cos(PITCH) * away + np.sin(PITCH) * y


def _plain(text: str) -> str:
    """The beginning of words from a card."""
    words = shown(text)
    return words if len(words) <= LETTERS else words[: LETTERS - 1] + "…"
