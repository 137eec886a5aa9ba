"""A few examples beside a card for people to look at or listen to: an untrusted `.npz`, checked before it is drawn.

    found = read(path)              # arrays by name, or CorruptFile
    str(found["kind"])              # "speech", "clouds", "pictures", or a kind that your own task defines

Clips and spectrograms of different lengths are concatenated in a flat array `x`, clip i from `x_edges[i]` to
`x_edges[i + 1]`. Never imports torch.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.core.errors import CorruptFile
from longspan.results import arrays

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 2**26  # of a file, and of what it unpacks to
MOST = {"speech": 4, "clouds": 6, "pictures": 8}  # examples of each kind
MOST_POINTS = 4096
MOST_PIXELS = 1024  # of a side
MELS = 80
RATES = (4_000, 192_000)  # samples of sound a second

Samples = dict[str, "np.ndarray"]


def read(path: Path) -> Samples:
    """The arrays of a file, with the names, dtypes and shapes that its kind of samples must have."""
    found = arrays.everything(path, MAX_BYTES, text=True)
    if fault := fault_of(found):
        raise CorruptFile(f"{path.name}: {fault}.")
    return found


def fault_of(samples: Mapping[str, "np.ndarray"]) -> str | None:
    """What is wrong with samples, in a few words; None for sound ones, and for those of a kind not known here."""
    kind = samples.get("kind")
    if kind is None or kind.shape != () or kind.dtype.kind != "U" or not str(kind):
        return "kind must be one word"
    if (size := sum(values.nbytes for values in samples.values())) > MAX_BYTES:
        return f"{size} bytes, more than {MAX_BYTES // 2**20} MiB"
    if wrong := [name for name, values in samples.items() if values.dtype.kind == "f" and not _is_finite(values)]:
        return f"{wrong[0]} holds numbers that are NaN or infinite"
    rules = {"speech": _speech, "clouds": _clouds, "pictures": _pictures}
    if str(kind) not in rules:
        return None
    if lacking := sorted(NAMES[str(kind)] - samples.keys()):
        return f"samples of {kind} lack {', '.join(lacking)}"
    return next(rules[str(kind)](samples), None)  # only the first, since later checks rely on earlier ones


EDGED = {"made_wave": 1, "true_wave": 1, "made_mel": 2, "true_mel": 2}  # with their dimensions
NAMES = {
    "speech": {"text", "rate", *EDGED, *(f"{name}_edges" for name in EDGED)},
    "clouds": {"category", "partial", "completed", "truth"},
    "pictures": {"low", "bicubic", "restored", "truth"},
}


def _speech(samples: Mapping[str, "np.ndarray"]) -> Iterator[str]:
    yield from _texts(samples["text"], "text", "speech")
    rate = samples["rate"]
    if rate.shape != () or rate.dtype.kind not in "iu" or not RATES[0] <= int(rate) <= RATES[1]:
        yield f"rate must be one integer from {RATES[0]} to {RATES[1]}"
    for name, dimensions in EDGED.items():
        values, edges = samples[name], samples[f"{name}_edges"]
        right = values.dtype.kind == "i" and values.itemsize == 2 if dimensions == 1 else values.dtype.kind == "f"
        if values.ndim != dimensions or not right or (dimensions == 2 and values.shape[1] != MELS):
            yield f"{name} must be {'int16' if dimensions == 1 else f'floats [frames {MELS}]'}, is {_told(values)}"
        elif edges.dtype.kind not in "iu" or edges.shape != (len(samples["text"]) + 1,):
            yield f"{name}_edges must be {len(samples['text']) + 1} integers, is {_told(edges)}"
        elif edges[0] != 0 or edges[-1] != len(values) or (edges[1:] < edges[:-1]).any():
            yield f"{name}_edges must rise from 0 to {len(values)}"


def _clouds(samples: Mapping[str, "np.ndarray"]) -> Iterator[str]:
    yield from _texts(samples["category"], "category", "clouds")
    for name in ("partial", "completed", "truth"):
        values, count = samples[name], len(samples["category"])
        fits = values.ndim == 3 and len(values) == count and 1 <= values.shape[1] <= MOST_POINTS
        if not fits or values.shape[2] != 3 or values.dtype.kind != "f":
            yield f"{name} must be floats [{count} points 3], at most {MOST_POINTS} points, is {_told(values)}"


def _pictures(samples: Mapping[str, "np.ndarray"]) -> Iterator[str]:
    count = len(samples["low"]) if samples["low"].ndim else 0
    if not 1 <= count <= MOST["pictures"]:
        yield f"low must hold 1 to {MOST['pictures']} pictures, is {_told(samples['low'])}"
        return
    for name in ("low", "bicubic", "restored", "truth"):
        values = samples[name]
        fits = values.ndim == 4 and len(values) == count and values.shape[3] == 3 and values.dtype == "uint8"
        if not fits or not all(1 <= side <= MOST_PIXELS for side in values.shape[1:3]):
            yield f"{name} must be uint8 [{count} height width 3], is {_told(values)}"
        elif name not in ("low", "truth") and values.shape != samples["truth"].shape:
            yield f"{name} must have the shape of truth, is {_told(values)}"


def _texts(values: "np.ndarray", name: str, kind: str) -> Iterator[str]:
    if values.dtype.kind != "U" or values.ndim != 1 or not 1 <= len(values) <= MOST[kind]:
        yield f"{name} must be 1 to {MOST[kind]} texts, is {_told(values)}"


def _is_finite(values: "np.ndarray") -> bool:
    import numpy as np

    return bool(np.isfinite(values).all())


def _told(values: "np.ndarray") -> str:
    return f"{values.dtype} {list(values.shape)}"
