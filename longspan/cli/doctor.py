"""What this machine has and what it lacks: one finding per line, each with what to do about it."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longspan.core.environment import available_cpus, installed

if TYPE_CHECKING:
    import torch

MINIMUM_PYTHON = (3, 11)
ROOM_BYTES = 5 * 2**30  # room for the data, checkpoints and weights of a few full runs

# import name -> distribution; without one of these the package cannot do its work
REQUIRED = {
    "lightning": "lightning",
    "numpy": "numpy",
    "einops": "einops",
    "jaxtyping": "jaxtyping",
    "typer": "typer",
    "rich": "rich",
    "jinja2": "jinja2",
    "safetensors": "safetensors",
}
# import name -> (distribution, what is missed without it, how to get it)
OPTIONAL = {
    "numba": ("numba", "data generation runs uncompiled, many times slower", "pip install numba"),
    "plotly": ("plotly", "no report site", "pip install plotly"),
    "jsonschema": ("jsonschema", "cards are checked by the built-in rules only", "pip install jsonschema"),
    "tensorboard": ("tensorboard", "no TensorBoard logs (CSV logs stay)", "pip install tensorboard"),
    "PIL": ("pillow", "no image import and no contact sheets", "pip install pillow"),
    "pynvml": ("nvidia-ml-py", "no energy on cards", "pip install 'longspan[energy]'"),
    "ray": ("ray", "no Ray launcher", "pip install 'longspan[ray]'"),
    "submitit": ("submitit", "no Slurm launcher", "pip install 'longspan[slurm]'"),
    "librosa": ("librosa", "no speech tasks", "pip install 'longspan[tts]'"),
}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `broken` when something required does not work, `lacks` when an optional one is absent."""

    name: str
    status: Literal["has", "lacks", "broken"]
    found: str
    advice: str = ""


def examine(out: str | Path = "out") -> list[Finding]:
    """Look at everything; nothing found wrong stops the looking."""
    from longspan.datasets.base import data_root

    out = Path(out)
    return [
        _python(),
        *_torch(),
        *(_required(module, library) for module, library in REQUIRED.items()),
        _triton(),
        *(_optional(module, *words) for module, words in OPTIONAL.items()),
        _browser(),
        _folder("output folder", out),
        _folder("data folder", data_root()),
        _room(out),
    ]


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {available_cpus()} cores"
    if sys.version_info < MINIMUM_PYTHON:
        wanted = ".".join(map(str, MINIMUM_PYTHON))
        return Finding("python", "broken", found, f"install Python {wanted} or newer")
    return Finding("python", "has", found)


def _torch() -> Iterator[Finding]:
    """torch itself, then the accelerator it sees."""
    try:
        torch = import_module("torch")
    except Exception as error:  # a broken build raises anything from ImportError to OSError
        yield Finding("torch", "broken", _reason(error), "install torch to check, run and measure; reading cards works")
        return
    yield Finding("torch", "has", torch.__version__)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        described = ", ".join(f"{p.name} ({p.total_memory / 2**30:.0f} GiB)" for p in names)
        yield Finding("GPU", "has", described)
    else:
        yield Finding("GPU", "lacks", "none that torch can use", "runs use the CPU; keep to --tier smoke there")
    yield _exact_attention("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)


def _exact_attention(device: str, dtype: "torch.dtype") -> Finding:
    """The kernels that softmax(kernel=...) can ask for here."""
    from longspan.kernels.sdpa import available

    found = available(device, dtype)
    words = ", ".join(name if masks else f"{name} (not with a mask)" for name, masks in found.items())
    return Finding("exact attention", "has", f"{words} and plain, for {str(dtype).removeprefix('torch.')} on {device}")


def _required(module: str, library: str) -> Finding:
    if not _present(module):
        return Finding(library, "broken", "not installed", f"pip install {library}")
    return Finding(library, "has", installed(library) or "present")


def _optional(module: str, library: str, missed: str, remedy: str) -> Finding:
    if not _present(module):
        return Finding(library, "lacks", missed, remedy)
    return Finding(library, "has", installed(library) or "present")


def _triton() -> Finding:
    if not _present("triton"):
        return Finding("triton", "lacks", "fused kernels fall back to torch", "it comes with the CUDA build of torch")
    return Finding("triton", "has", installed("triton") or "present")


def _browser() -> Finding:
    for name in ("chromium", "google-chrome", "chromium-browser"):
        if path := shutil.which(name):
            return Finding("Chromium", "has", path)
    return Finding("Chromium", "lacks", "the site's own tests are skipped", "install Chromium to run them")


def _folder(name: str, path: Path) -> Finding:
    """Whether files can be written there; the folder itself is not made."""
    place = _nearest(path)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "choose another with LONGSPAN_DATA" if name == "data folder" else "choose another with --out"
        return Finding(name, "broken", f"{path} cannot be written ({error.strerror})", advice)
    return Finding(name, "has", f"{path} {'is' if path.exists() else 'can be made and is'} writable")


def _room(path: Path) -> Finding:
    free = shutil.disk_usage(_nearest(path)).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < ROOM_BYTES:
        return Finding("disk", "lacks", found, f"free some: full tiers want {ROOM_BYTES / 2**30:.0f} GiB")
    return Finding("disk", "has", found)


def _nearest(path: Path) -> Path:
    """The folder itself or the closest one above it that exists."""
    path = Path(os.path.abspath(path))
    while not path.exists():
        path = path.parent
    return path


def _present(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):  # half removed, or hidden on purpose
        return False


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
