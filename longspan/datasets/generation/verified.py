"""Arrays are hashed before they are read: once for each file, and again whenever it has been touched.

`.verified.json` beside the manifest remembers which file (size, times, inode) had which hash. It only saves time: if it
is absent, damaged or out of date, or cannot be written, files are hashed again.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.atomic import write_json
from longspan.core.errors import DataDamaged, StorageError
from longspan.datasets.generation.arrays import hash_file, read_array
from longspan.datasets.generation.manifest import advice
from longspan.datasets.generation.ranges import Arrays, count_faults

MEMORY = ".verified.json"
SETTLED_SECONDS = 2.0  # a file changed more recently may change again with the same time stamp
WORTH_A_LINE = 1 << 30  # bytes

Check = Callable[[Arrays], Iterator[str]]


def open_verified(folder: Path, manifest: dict, check: Check) -> dict[str, np.ndarray]:
    """The arrays of a manifest as memory maps, by name without `.npy`; DataDamaged if one does not match it."""
    if fault := next(faults(folder, manifest, check), None):
        raise DataDamaged(fault)
    return map_arrays(folder, manifest)


def map_arrays(folder: Path, manifest: dict) -> dict[str, np.ndarray]:
    """The arrays as memory maps, compared with the manifest in size, dtype and shape only."""
    entries = manifest["arrays"].items()
    return {name.removesuffix(".npy"): read_array(folder / name, entry) for name, entry in entries}


def faults(folder: Path, manifest: dict, check: Check, *, always: bool = False) -> Iterator[str]:
    """A sentence for each array that does not match the manifest; `always` hashes even what was hashed before."""
    remembered = {} if always else _recall(folder, manifest)
    entries = manifest["arrays"] | ({"index.npy": manifest["index"]} if "index" in manifest else {})
    mend = advice(folder, manifest)
    found, seen, arrays = 0, {}, {}
    unknown = [name for name in entries if remembered.get(name) != _identity(folder / name)]
    _announce(folder, sum(entries[name]["bytes"] for name in unknown))
    for name, entry in entries.items():
        try:
            arrays[name.removesuffix(".npy")] = read_array(folder / name, entry)
        except DataDamaged as error:
            found += 1
            yield f"{error}; {mend}"
            continue
        if name in unknown:
            before = _identity(folder / name)
            if hash_file(folder / name) != entry["sha256"]:
                found += 1
                yield f"{folder / name} has changed since it was written (other sha256); {mend}"
            elif before == _identity(folder / name) and _has_settled(before):
                seen[name] = before
    if found:
        return
    content = {name: array for name, array in arrays.items() if f"{name}.npy" in manifest["arrays"]}
    wrong = [*count_faults(content, manifest.get("counts", {})), *(check(content) if unknown else ())]
    for fault in wrong:
        yield f"{folder} does not hold what its manifest says: {fault}; {mend}"
    if seen and not wrong:
        _remember(folder, manifest, remembered | seen)


def _announce(folder: Path, size: int) -> None:
    if size >= WORTH_A_LINE:
        print(f"Hashing {size / 1e9:.1f} GB in {folder}, once.", file=sys.stderr, flush=True)


def _identity(path: Path) -> list[int] | None:
    """What changes whenever a file does. A user can set the other times, but not st_ctime."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _has_settled(identity: list[int] | None) -> bool:
    return identity is not None and time.time() - max(identity[1:3]) / 1e9 > SETTLED_SECONDS


def _key(manifest: Mapping[str, Any]) -> str:
    """What was verified: these arrays under these claims."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _recall(folder: Path, manifest: dict) -> dict[str, list[int]]:
    try:
        memory = json.loads((folder / MEMORY).read_text())
        return memory["files"] if memory["manifest"] == _key(manifest) and isinstance(memory["files"], dict) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _remember(folder: Path, manifest: dict, files: Mapping[str, Any]) -> None:
    if os.access(folder, os.W_OK):
        with contextlib.suppress(StorageError):  # a full disk: the next call hashes again
            write_json(folder / MEMORY, {"manifest": _key(manifest), "files": dict(files)})
