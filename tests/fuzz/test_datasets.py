"""Datasets on disk that were damaged or edited: `load` returns exactly the data that were written, or a clear error."""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan import datasets
from longspan.datasets.base import SPLITS, Splits
from tests.fuzz.figures import inputs
from tests.fuzz.mutation import damaged

LISTOPS = datasets.get("listops")
DATA = LISTOPS.Data(train=24, valid=8, test=8, longer_than=5, shorter_than=30)
ODD: list[Any] = [None, True, -1, 10**30, 0.5, "text", "../x.npy", [], {}, [[]], {"a": 1}, "int64", [9], "0" * 64]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    LISTOPS.prepare(DATA, root=root, progress=False)
    return root


def content(splits: Splits) -> str:
    """A digest of every example and label."""
    digest = hashlib.sha256(repr(splits.variant).encode())
    for name in SPLITS:
        split = getattr(splits, name)
        digest.update(np.asarray(split.labels, np.int64).tobytes())
        for row in range(len(split)):
            digest.update(np.asarray(split.example(row)).tobytes() + b"|")
    return digest.hexdigest()


def edited(manifest: dict, dice: random.Random) -> dict:
    """The manifest with one entry removed, added or replaced."""
    parent, key = manifest, dice.choice(list(manifest))
    while isinstance(parent[key], dict) and parent[key] and dice.random() < 0.8:
        parent, key = parent[key], dice.choice(list(parent[key]))
    kind = dice.choice(["remove", "add", "replace", "replace"])
    if kind == "remove":
        del parent[key]
    elif kind == "add":
        parent[dice.choice(["more", "../x.npy", "/etc/hostname", "train.tokens.npy"])] = dice.choice(ODD)
    else:
        parent[key] = dice.choice(ODD)
    return manifest


def change(folder: Path, dice: random.Random) -> None:
    """One fault in one file, as a disk, a program or a person makes it."""
    path = dice.choice(sorted(folder.glob("*.npy")))
    manifest = folder / "manifest.json"
    kind = dice.choice(["bytes", "values", "values", "array", "manifest", "edited", "absent", "swapped"])
    if kind == "bytes":
        path.write_bytes(damaged(path.read_bytes(), dice))
    elif kind == "values":  # the same size and header: only a hash can tell
        array = np.load(path)
        array[dice.randrange(len(array))] += dice.choice([1, 2, 100])
        np.save(path, array)
    elif kind == "array":
        np.save(path, dice.choice([np.zeros(3), np.zeros((2, 2), np.uint8), np.array(["text"]), np.zeros(0, np.int64)]))
    elif kind == "manifest":
        manifest.write_bytes(damaged(manifest.read_bytes(), dice))
    elif kind == "edited":
        manifest.write_text(json.dumps(edited(json.loads(manifest.read_text()), dice)))
    elif kind == "absent":
        dice.choice([path, path, manifest]).unlink()
    else:
        other = dice.choice(sorted(folder.glob("*.npy")))
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)


def harmless(folder: Path, dice: random.Random) -> None:
    """Changes that leave the data intact: other spaces in the manifest, other dates, files copied back and forth."""
    manifest, path = folder / "manifest.json", dice.choice(sorted(folder.glob("*.npy")))
    kind = dice.choice(["spaces", "date", "copied", "beside"])
    if kind == "spaces":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()), indent=dice.choice([None, 0, 4])))
    elif kind == "date":
        os.utime(path, (dice.randrange(2**31), dice.randrange(2**31)))
    elif kind == "copied":
        path.write_bytes(path.read_bytes())
    else:
        (folder / "notes.txt").write_text("of the owner")


@inputs(quick=60)
def test_a_dataset_is_what_was_written_or_a_sentence(count, figures, tmp_path, prepared):
    dice = random.Random(18)
    right = LISTOPS.load(DATA, root=prepared)
    expected, sha256 = content(right), right.sha256
    for number in range(count):
        root = tmp_path / str(number)
        shutil.copytree(prepared, root)
        if sound := dice.random() < 0.2:
            harmless(LISTOPS.folder(DATA, root), dice)
        else:
            change(LISTOPS.folder(DATA, root), dice)
        with figures.trying(accepted="exactly the data"):
            found = LISTOPS.load(DATA, root=root)
            assert content(found) == expected
            assert not sound or found.sha256 == sha256
        figures.add("sound", sound)
        assert LISTOPS.verify(DATA, root=root) is not None
        shutil.rmtree(root)
    assert figures["exactly the data"] >= figures["sound"] > 0
