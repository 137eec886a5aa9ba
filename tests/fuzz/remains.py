"""What a command leaves in `out`: its results bit for bit, cards that must not change, and every file by name."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.launchers.matrix import FOLDER
from longspan.results import card as cards
from longspan.results.card import Card

DECIDED = ("score", "metrics", "curve", "selected_step", "parameters", "dataset", "settings", "status", "reason")
MEMORY = ".verified.json"  # a cache of hashes: it saves time, changes no result, and may be absent
JOURNALS = f"{FOLDER}/journals"
MEASURED = ("seconds", "memory", "floor", "achieved", "energy")  # these differ between any two measurements


def results(out: Path) -> dict[str, Any]:
    """Everything that does not depend on the clock, by what it is: equal for two runs of the same command."""
    found: dict[str, Any] = {}
    for path, card in stored(out):
        key = json.dumps(cards.cell(card))
        assert key not in found, f"{key} has two cards"
        found[key] = {name: card[name] for name in DECIDED if name in card}
        if card["kind"] == "measurement":
            found[key] = [{name: value for name, value in p.items() if name not in MEASURED} for p in card["points"]]
        for what, name in card["files"].items():
            found[f"{what} of {key}"] = _digest(path.parent / name)
    data = [path for path in (out / "data").rglob("*") if path.is_file() and path.name != MEMORY]
    return found | {str(path.relative_to(out)): _digest(path) for path in data}


def stored(out: Path) -> list[tuple[Path, Card]]:
    """The valid cards; half a card does not count, and would be litter."""
    found = []
    for path in sorted((out / "cards").rglob("*.json")):
        try:
            found.append((path, cards.read(path)))
        except CorruptFile:
            continue
    return found


def _digest(path: Path) -> str:
    """Hash of the content; of an archive, of its arrays, since a zip file may contain timestamps."""
    if path.suffix != ".npz":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    with np.load(path) as arrays:
        parts = [(name, arrays[name].dtype.str, arrays[name].shape, arrays[name].tobytes()) for name in arrays.files]
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()


def kept(out: Path) -> dict[Path, bytes]:
    """What must not change any more: cards, the files they name, and measured points."""
    found: dict[Path, bytes] = {}
    for path, card in stored(out):
        for each in (path, *(path.parent / name for name in card["files"].values())):
            found[each] = each.read_bytes()
    return found


def points(out: Path) -> list[dict[str, Any]]:
    """The points in journals, each of which was measured once and for all."""
    lines = [line for path in out.glob("runs/measure-*/points.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    found = [json.loads(line) for line in lines if line.endswith(b"}")]
    return [line["point"] for line in found if "point" in line]


def names(out: Path) -> Counter[str]:
    """Every file and folder below `out`, without the hashes in names of cards.

    TensorBoard's files count as one, and so do the journals of commands, which are kept for `longspan runs`.
    """
    found = [str(path.relative_to(out)) for path in out.rglob("*") if path.name != MEMORY]
    plain = [re.sub(r"-[0-9a-f]{12}(?=\.|$)", "-*", name) if name.startswith("cards") else name for name in found]
    counted = Counter(re.sub(r"events\.out\.tfevents\..*", "events", name) for name in plain)
    counted = Counter(re.sub(rf"^{FOLDER}/.*\.jsonl$", JOURNALS, name) for name in counted.elements())
    return Counter({n: 1 if n.endswith("/events") or n == JOURNALS else count for n, count in counted.items()})


def tops(found: Counter[str]) -> list[str]:
    """Names that do not lie in a folder that is also listed."""
    return sorted(name for name in found.elements() if not any(str(above) in found for above in Path(name).parents))
