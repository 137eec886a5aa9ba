"""What this machine has and what it lacks, and what to do about it."""

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

MATTERS = ("python", "torch", "GPU", "exact attention", "data folder", "disk")  # shown even where nothing is wrong
MINIMUM_PYTHON = (3, 11)
DISK_BYTES = 5 * 2**30  # for the data, checkpoints and weights of a few full runs

# import name -> distribution; the package does not work without them
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
# import name -> (distribution, what does not work without it, how to install it)
OPTIONAL = {
    "numba": ("numba", "data generation runs uncompiled, many times slower", "pip install numba"),
    "jsonschema": ("jsonschema", "cards are checked by the built-in rules only", "pip install jsonschema"),
    "tensorboard": ("tensorboard", "no TensorBoard logs (CSV logs stay)", "pip install tensorboard"),
    "PIL": ("pillow", "no image import and no contact sheets", "pip install pillow"),
    "pynvml": ("nvidia-ml-py", "no energy on cards", "pip install 'longspan[energy]'"),
}


@dataclass(frozen=True)
class Diagnosis:
    """The state of one thing: `broken` when a required one does not work, `lacks` when an optional one is absent."""

    name: str
    status: Literal["has", "lacks", "broken"]
    found: str
    advice: str = ""


def diagnose(out: str | Path = "out") -> list[Diagnosis]:
    """Diagnose everything; a problem does not stop the rest."""
    from longspan.datasets.base import data_root

    out = Path(out)
    return [
        _python(),
        *_torch(),
        *(_required(module, library) for module, library in REQUIRED.items()),
        _triton(),
        *(_optional(module, *about) for module, about in OPTIONAL.items()),
        _browser(),
        _folder("output folder", out),
        _folder("data folder", data_root()),
        _disk(out),
    ]


def _python() -> Diagnosis:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {available_cpus()} cores"
    if sys.version_info < MINIMUM_PYTHON:
        wanted = ".".join(map(str, MINIMUM_PYTHON))
        return Diagnosis("python", "broken", found, f"install Python {wanted} or newer")
    return Diagnosis("python", "has", found)


def _torch() -> Iterator[Diagnosis]:
    """torch, the GPUs it sees, and the attention kernels it has."""
    try:
        torch = import_module("torch")
    except Exception as error:  # a broken build raises anything from ImportError to OSError
        advice = "install torch to check, run and measure; boards and reports work without it"
        yield Diagnosis("torch", "broken", _reason(error), advice)
        return
    yield Diagnosis("torch", "has", torch.__version__)
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        yield Diagnosis("GPU", "has", ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in gpus))
    else:
        yield Diagnosis("GPU", "lacks", "none that torch can use", "runs use the CPU; use --tier smoke there")
    yield _exact_attention("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)


def _exact_attention(device: str, dtype: "torch.dtype") -> Diagnosis:
    """The kernels that softmax(kernel=...) can use here."""
    from longspan.kernels.sdpa import available

    found = available(device, dtype)
    words = ", ".join(name if masks else f"{name} (not with a mask)" for name, masks in found.items())
    name = str(dtype).removeprefix("torch.")
    return Diagnosis("exact attention", "has", f"{words} and plain, for {name} on {device}")


def _required(module: str, library: str) -> Diagnosis:
    if not _present(module):
        return Diagnosis(library, "broken", "not installed", f"pip install {library}")
    return Diagnosis(library, "has", installed(library) or "present")


def _optional(module: str, library: str, missed: str, remedy: str) -> Diagnosis:
    if not _present(module):
        return Diagnosis(library, "lacks", missed, remedy)
    return Diagnosis(library, "has", installed(library) or "present")


def _triton() -> Diagnosis:
    if not _present("triton"):
        return Diagnosis("triton", "lacks", "fused kernels fall back to torch", "it comes with the CUDA build of torch")
    return Diagnosis("triton", "has", installed("triton") or "present")


def _browser() -> Diagnosis:
    for name in ("chromium", "google-chrome", "chromium-browser"):
        if path := shutil.which(name):
            return Diagnosis("Chromium", "has", path)
    return Diagnosis("Chromium", "lacks", "the site's own tests are skipped", "install Chromium to run them")


def _folder(name: str, path: Path) -> Diagnosis:
    """Whether files can be written there; the folder itself is not created."""
    place = _nearest(path)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "choose another with LONGSPAN_DATA" if name == "data folder" else "choose another with --out"
        return Diagnosis(name, "broken", f"{path} cannot be written ({error.strerror})", advice)
    return Diagnosis(name, "has", f"{path} {'is' if path.exists() else 'can be created and is'} writable")


def _disk(path: Path) -> Diagnosis:
    free = shutil.disk_usage(_nearest(path)).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < DISK_BYTES:
        return Diagnosis("disk", "lacks", found, f"free some space: full tiers need {DISK_BYTES / 2**30:.0f} GiB")
    return Diagnosis("disk", "has", found)


def _nearest(path: Path) -> Path:
    """The folder itself, or its closest parent that exists."""
    path = Path(os.path.abspath(path))
    while not path.exists():
        path = path.parent
    return path


def _present(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):  # half uninstalled, or hidden on purpose
        return False


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
