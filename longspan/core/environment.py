"""The hardware, the library versions and the version of the code, as every card records them."""

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from longspan.core.errors import UsageError
from longspan.core.version import VERSION

LIBRARIES = ("torch", "triton", "lightning", "numpy", "numba", "einops")


def choose_device(asked: str) -> str:
    """`cpu` or `cuda`: the one asked for; `auto` is `cuda` if there is a GPU."""
    import torch

    if asked not in ("auto", "cpu", "cuda"):
        raise UsageError(f"A device is auto, cpu or cuda, got {asked!r}.")
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise UsageError("cuda was asked for, but torch sees no GPU here; use --device cpu, or see longspan doctor.")
    return ("cuda" if found else "cpu") if asked == "auto" else asked


@functools.cache
def describe() -> dict[str, str | int | float]:
    """Hardware, driver and library versions; nothing that names a person, a path or a host."""
    import torch

    found: dict[str, str | int | float] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_count": available_cpus(),
    }
    for library in LIBRARIES:
        if (number := installed(library)) is not None:
            found[library] = number
    found["torch"] = torch.__version__  # the build suffix says CPU or CUDA
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_count": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
            "cuda": str(torch.version.cuda),
            "driver": _driver(),
        }
    return found


def hardware(device: str) -> str:
    """What `cpu` or `cuda` is here: the name of the processor or of the GPU."""
    return str(describe()["gpu" if device == "cuda" else "cpu"])


def gpus() -> list[str]:
    """The GPUs that torch can use, in its order, by names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"GPU-{properties.uuid}" for properties in found]


def installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def code_version() -> dict[str, str | bool | None]:
    """The package version and, in a git checkout, the commit and whether files differ from it.

    $LONGSPAN_COMMIT names the commit where the code was copied without its history; whether files differ from it is
    then unknown.
    """
    if said := os.environ.get("LONGSPAN_COMMIT"):
        return {"version": VERSION, "commit": said, "dirty": None}
    root = Path(__file__).parents[2]
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    dirty = bool(_git(root, "status", "--porcelain", "--untracked-files=no")) if commit else None
    return {"version": VERSION, "commit": commit, "dirty": dirty}


def available_cpus() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_name() -> str:
    """The name of the processor."""
    listing = Path("/proc/cpuinfo")  # Linux only
    for line in listing.read_text().splitlines() if listing.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _driver() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return "unknown"
