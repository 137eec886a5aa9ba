"""Published splits: which rows are held out, as row numbers that do not depend on a random number library.

A file per corpus and rule, `<corpus>-<rule>.npz`, holds the row numbers of `valid` (and of `test`, where that is not a
file of its own) in the official order of the corpus; all other rows are for training. `sha256.json` lists their hashes.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np

from longspan.core.errors import CorruptFile, UnknownName, did_you_mean
from longspan.core.seeding import derive

FOLDER = Path(__file__).parent


def published(name: str) -> dict[str, np.ndarray]:
    """The row numbers of one split file, ascending: `published("imdb-longspan")["valid"]`."""
    listed = json.loads((FOLDER / "sha256.json").read_text())
    if name not in listed:
        raise UnknownName(f"No published split is called {name!r}.{did_you_mean(name, listed)}")
    path, advice = FOLDER / f"{name}.npz", "install longspan again."
    if not path.is_file():
        raise CorruptFile(f"The split file {path} is not there; {advice}")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != listed[name]:
        raise CorruptFile(f"{path} should have sha256 {listed[name]}, found {found}; {advice}")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {split: rows.astype(np.int64) for split, rows in arrays.items()}
    except (ValueError, zipfile.BadZipFile) as error:
        raise CorruptFile(f"{path} is not a file of row numbers ({error}); {advice}") from error


def tenth_of_each_class(labels: np.ndarray, *names: object) -> np.ndarray:
    """Row numbers of a seeded tenth of every class, ascending: the rule behind the `longspan` files.

    The files stay valid if NumPy changes its random streams; the rule is for corpora of another size or order.
    """
    rng = np.random.Generator(np.random.PCG64(derive(0, "splits", *names)))
    parts = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        parts.append(rng.permutation(rows)[: len(rows) // 10])
    return np.sort(np.concatenate(parts))
