"""From a picture file to a pair: the picture at a low and at a high resolution, and the low one enlarged again.

As SR3's code prepares them: each resolution is made from the source by Pillow's bicubic filter, shorter side first,
then the centre is cut out; a side that fits already is not resized. The enlarged one is made from the low one in bytes.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longspan.core.errors import CorruptFile

MOST_PIXELS = 1 << 26  # 8,192 x 8,192; a file that unpacks to more is not a photograph from these datasets
FORMATS = ("PNG", "JPEG", "WEBP")


class Pair(NamedTuple):
    """One picture in bytes: `low` [low low 3], `upsampled` and `high` [high high 3]."""

    low: np.ndarray
    upsampled: np.ndarray
    high: np.ndarray


def read_pair(path: Path, low: int, high: int) -> Pair:
    """The pair of a picture file; a file that is not a colour picture, or is too small, is refused."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("error")  # Pillow only warns of files that unpack to a suspicious size
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise CorruptFile(
                    f"{path} unpacks to {width} x {height} pixels, more than {MOST_PIXELS:,}; leave it out."
                )
            if image.mode != "RGB":
                raise CorruptFile(f"{path} should be a picture in colour (RGB), found mode {image.mode}; convert it.")
            if min(width, height) < high:
                raise CorruptFile(f"{path} has {width} x {height} pixels, fewer than {high} a side; leave it out.")
            return pair_of(image, low, high)
    except FileNotFoundError as error:
        raise CorruptFile(f"{path} is listed but is not there; get the files again.") from error
    except (OSError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise CorruptFile(f"{path} is not a readable PNG, JPEG or WebP picture ({error}); get it again.") from error


def pair_of(image: Any, low: int, high: int) -> Pair:
    """The pair of an opened picture, in colour."""
    small = square(image, low)
    return Pair(*(np.array(one) for one in (small, square(small, high), square(image, high))))


def square(image: Any, side: int) -> Any:
    """The centre of a Pillow image whose shorter side is `side` pixels.

    >>> from PIL import Image
    >>> square(Image.new("RGB", (64, 48)), 16).size
    (16, 16)
    """
    from PIL import Image

    short, long = sorted(image.size)
    if short != side:
        longer = int(side * long / short)
        size = (side, longer) if image.size[0] == short else (longer, side)
        image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (round((length - side) / 2) for length in image.size)
    return image.crop((left, top, left + side, top + side))
