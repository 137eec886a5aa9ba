"""Prediction files that are damaged or made up: `verify` reports findings, and accepts no score without support."""

import datetime
import io
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.results import card as cards
from longspan.results.files import digest
from longspan.results.verify import verify
from tests.fuzz.figures import inputs
from tests.fuzz.mutation import damaged
from tests.results.factory import make_card

ROWS = 200
LABEL = np.arange(ROWS) % 10
PREDICTION = np.where(np.arange(ROWS) < 0.4 * ROWS, LABEL, (LABEL + 1) % 10)
WHOLE = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]


def packed(arrays: dict[str, Any], dice: random.Random) -> bytes:
    buffer = io.BytesIO()
    dice.choice([np.savez, np.savez_compressed])(buffer, **arrays)
    return buffer.getvalue()


def usual(dice: random.Random) -> dict[str, Any]:
    """Files that a run may write: any integers, rows in any recorded order, more arrays than are needed."""
    kind, order = dice.choice(WHOLE), np.arange(ROWS)
    if dice.random() < 0.5:
        order = np.array(dice.sample(range(ROWS), ROWS))
    arrays = {"label": LABEL[order].astype(kind), "prediction": PREDICTION[order].astype(dice.choice(WHOLE))}
    if dice.random() < 0.5:
        arrays["row"] = order
    if dice.random() < 0.3:
        arrays["loss"] = np.linspace(0, 1, ROWS, dtype=dice.choice([np.float32, np.float64]))
    return arrays


def odd(values: np.ndarray, dice: random.Random) -> Any:
    """Something other than an array of integers."""
    floats = values.astype(np.float64)
    floats[dice.randrange(ROWS)] = dice.choice([np.nan, np.inf, -np.inf, 0.5, 1e308])
    made = [floats, values.astype(str), values.astype("S3"), values.astype(object), values.astype(complex), values > 3]
    made += [values.astype("datetime64[s]"), values.astype("timedelta64[D]"), values.reshape(2, -1), np.int64(3)]
    made += [values[:0], values[: dice.randrange(ROWS)], np.tile(values, 2), values[::-1], -values.astype(np.int64)]
    made += [np.array([datetime.date(2026, 1, 2)] * ROWS), np.zeros(ROWS, "i4,f8"), np.full(ROWS, 2**64 - 1, "u8")]
    made += [values.astype(np.float32), np.zeros(ROWS, np.int64), np.where(values == 1, 2, values)]
    return dice.choice(made)


def made_up(dice: random.Random) -> bytes:
    arrays = usual(dice)
    name = dice.choice(list(arrays))
    if dice.random() < 0.2:
        del arrays[name]
    else:
        arrays[name] = odd(np.asarray(arrays[name]), dice)
    return packed(arrays, dice)


def lying_header(dice: random.Random) -> bytes:
    """A header that does not match the data after it."""
    shapes = ["(1000000000000000,)", "(200, 1000000000)", "(-5,)", "(True,)", "(200.0,)", "((((", "(9,) * 10", "[200]"]
    types = ["<i8", "|O", "<U9", "<M8[s]", "i8, i8", "<f8", "__import__('os')", "<i1000000"]
    header = f"{{'descr': '{dice.choice(types)}', 'fortran_order': False, 'shape': {dice.choice(shapes)}, }}"
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    long = b"\2\0" + dice.choice([len(text), 2**31]).to_bytes(4, "little")
    version = dice.choice([b"\1\0" + len(text).to_bytes(2, "little"), long])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("label.npy", b"\x93NUMPY" + version + text + LABEL.tobytes())
        archive.writestr(dice.choice(["prediction.npy", "../prediction.npy", "label.NPY"]), npy(PREDICTION))
    return buffer.getvalue()


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def accuracy(content: bytes) -> tuple[float, int]:
    """Accuracy and row count of a file, computed in plain NumPy."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return float(np.mean(arrays["label"] == arrays["prediction"])), len(arrays["label"])


def a_card(folder: Path, hashed: str | None) -> Path:
    fields: dict[str, Any] = {} if hashed is None else {"files_sha256": {"predictions": hashed}}
    card = make_card(accuracy=0.4, count=ROWS, files={"predictions": "p.npz"}, **fields)
    return cards.write(folder / "card.json", card)


@inputs(quick=120)
@pytest.mark.filterwarnings("ignore")  # NumPy's warnings about what is written and read here
def test_any_prediction_file_gives_findings_and_never_another_score(count, figures, tmp_path):
    dice, path = random.Random(18), tmp_path / "p.npz"
    sound = packed({"label": LABEL, "prediction": PREDICTION}, dice)
    path.write_bytes(sound)
    with_hash = a_card(tmp_path, digest(path)).rename(tmp_path / "hashed.json")
    without = a_card(tmp_path, None)
    for _ in range(count):
        content = dice.choice([made_up, lying_header, lambda dice: packed(usual(dice), dice), lambda dice: sound])(dice)
        content = damaged(content, dice) if dice.random() < 0.5 else content
        path.write_bytes(content)
        with figures.trying(accepted="verified"):
            found = {check.check: check for check in verify(without)}
            assert {check.status for check in found.values()} <= {"kept", "broken", "not applicable"}
            if found["score"].status == "kept":
                assert accuracy(content) == (0.4, ROWS), found["score"].detail
            figures.add("scores kept", found["score"].status == "kept")
            if dice.random() < 0.2:
                statuses = {check.status for check in verify(with_hash)}
                assert ("broken" in statuses) == (content != sound)
    assert figures["refused with a sentence"] == 0


@inputs(quick=30, full=1_000)
def test_every_usual_prediction_file_is_kept(count, figures, tmp_path):
    figures.title = "usual predictions"
    dice = random.Random(18)
    for _ in range(count):
        (tmp_path / "p.npz").write_bytes(packed(usual(dice), dice))
        with figures.trying(accepted="kept"):
            hashed = digest(tmp_path / "p.npz") if dice.random() < 0.5 else None
            assert "broken" not in {check.status for check in verify(a_card(tmp_path, hashed))}
