"""The manifest of a folder of arrays: read as untrusted data, with every entry checked."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import DataDamaged

MANIFEST_SCHEMA = 1
VARIANT = re.compile(r"[a-z0-9_+-]{1,40}")  # generated, official, imported, standin, or the name of a known substitute


def read_manifest(folder: Path) -> dict:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataDamaged(f"{path} is not a dataset manifest ({error!r:.120}); {advice(folder)}") from error
    if fault := next(_faults(manifest), None):
        raise DataDamaged(f"{path} is not a dataset manifest of this version ({fault}); {advice(folder)}")
    return manifest


def advice(folder: Path, manifest: dict | None = None) -> str:
    """The command that repairs a folder: generated data is generated again, other data is fetched again."""
    name, variant = folder.parent.name, (manifest or {}).get("variant")
    if folder.name != "whole" and not folder.name.endswith("-imported"):
        return f"remove {folder} and run again, or longspan data prepare {name}: it is made again."
    if variant == "official":
        return f"get it again with longspan data prepare {name}."
    return f"import it again with longspan data import {name} PATH, or longspan data prepare {name}."


def _faults(manifest: Any) -> Iterator[str]:
    if not isinstance(manifest, dict):
        yield "it is no JSON object"
        return
    if (schema := manifest.get("schema")) != MANIFEST_SCHEMA or isinstance(schema, bool):
        yield f"schema {schema!r:.40}, known: {MANIFEST_SCHEMA}"
    if not isinstance(manifest.get("dataset"), str):
        yield "it names no dataset"
    if not isinstance(variant := manifest.get("variant"), str) or not VARIANT.fullmatch(variant):
        yield f"variant {variant!r:.40}, which is no word"
    counts = manifest.get("counts", {})
    if not isinstance(counts, dict) or not all(type(n) is int and n >= 0 for n in counts.values()):
        yield "counts are not numbers of examples"
    arrays = manifest.get("arrays")
    if not isinstance(arrays, dict) or not arrays:
        yield "it lists no arrays"
        return
    beside = {"index.npy": manifest["index"]} if "index" in manifest else {}
    for name, entry in (arrays | beside).items():
        if name != Path(name).name or not name.endswith(".npy"):
            yield f"{name!r:.80} is no name of an array"
        elif not _is_entry(entry):
            yield f"the entry of {name:.80} lacks sha256, bytes, dtype or shape"


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"sha256", "bytes", "dtype", "shape"} <= entry.keys():
        return False
    shape = entry["shape"]
    return (
        isinstance(entry["sha256"], str)
        and type(entry["bytes"]) is int
        and isinstance(entry["dtype"], str)
        and entry["dtype"] in _DTYPES
        and isinstance(shape, list)
        and all(type(n) is int and n >= 0 for n in shape)
    )


_DTYPES = {np.dtype(kind).name for kind in "bhilqBHILQefd?"}
