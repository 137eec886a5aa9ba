"""Unfinished runs move between machines and end like an unbroken run; damaged archives are refused."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import runs
from longspan.cli.app import app
from longspan.core.errors import LongspanError
from longspan.core.lock import only_one
from longspan.runs.export import LEAST_PART
from longspan.runs.folder import begin, mark_shared
from longspan.training import checkpoint

ROOT = Path(__file__).parents[2]
NAME = "listops-longspan-smoke-seed0-0123456789ab"
CELL = {"task": "listops", "mechanism": "softmax", "pattern": None, "protocol": "longspan", "tier": "smoke"}
CELL |= {"seed": 0, "overrides": {}}


def make_run(out, name=NAME, *, step=7, content=b"x" * 100_000):
    """An interrupted run with a fake checkpoint."""
    folder = out / "runs" / name
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text(json.dumps({"cell": CELL, "steps": 10}))
    path = folder / f"checkpoint-{step:09d}.pt"
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def everything(out):
    """All files below a folder but locks, with their content."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(Path(out).rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=3),
    limit=st.none() | st.integers(LEAST_PART, 150_000),
)
def test_what_was_exported_is_what_is_restored_and_no_part_is_over_the_limit(tmp_path_factory, sizes, limit):
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    for number, size in enumerate(sizes):
        make_run(here, f"{NAME}{number}", content=os.urandom(size))
    files, exported = runs.export(here, here / "runs.tar", part_bytes=limit)
    assert len(exported) == len(sizes)
    assert all(path.stat().st_size <= (limit or 10**9) for path in files)
    restored = runs.restore(there, here / "runs.tar")
    assert [one.placed for one in restored] == [True] * len(sizes)
    assert everything(there / "runs") == everything(here / "runs")


def test_of_several_checkpoints_the_newest_whole_one_travels(tmp_path):
    older, newest = make_run(tmp_path, step=7), tmp_path / "runs" / NAME / "checkpoint-000000009.pt"
    newest.write_bytes(older.read_bytes()[:-1])
    runs.export(tmp_path, tmp_path / "runs.tar")
    (one,) = runs.restore(tmp_path / "there", tmp_path / "runs.tar")
    assert (one.step, one.placed) == (7, True)
    assert [path.name for path in checkpoint.newest_first(one.path)] == [older.name]


def test_the_stage_of_pretraining_travels_before_the_task_has_begun_and_after(tmp_path):
    path = make_run(tmp_path / "here", step=6)
    stage = path.parent / "pretraining"
    stage.mkdir()
    path.rename(stage / path.name)  # the task itself has not begun
    runs.export(tmp_path / "here", tmp_path / "early.tar")
    (one,) = runs.restore(tmp_path / "there", tmp_path / "early.tar")
    assert (one.step, one.placed) == (0, True)
    assert everything(tmp_path / "there") == everything(tmp_path / "here")
    (path.parent / "checkpoint-000000002.pt").write_bytes((stage / path.name).read_bytes())
    runs.export(tmp_path / "here", tmp_path / "late.tar")
    (one,) = runs.restore(tmp_path / "there", tmp_path / "late.tar")
    assert (one.step, one.placed) == (2, True)
    assert everything(tmp_path / "there") == everything(tmp_path / "here")
    (one,) = runs.restore(tmp_path / "there", tmp_path / "early.tar")
    assert (one.step, one.placed) == (2, False)


def test_a_run_that_is_farther_here_is_left_alone(tmp_path):
    make_run(tmp_path / "a", step=7)
    mine = make_run(tmp_path / "b", step=8)
    runs.export(tmp_path / "a", tmp_path / "runs.tar")
    before = everything(tmp_path / "b")
    (one,) = runs.restore(tmp_path / "b", tmp_path / "runs.tar")
    assert (one.step, one.placed) == (8, False)
    assert everything(tmp_path / "b") == before
    mine.rename(mine.with_name("checkpoint-000000006.pt"))
    (one,) = runs.restore(tmp_path / "b", tmp_path / "runs.tar")
    assert (one.step, one.placed) == (7, True)


def test_a_run_that_another_commit_trained_says_which(tmp_path):
    path = make_run(tmp_path)
    (path.parent / "cell.json").write_text(json.dumps({"cell": CELL, "steps": 10, "commit": "c0ffee"}))
    runs.export(tmp_path, tmp_path / "runs.tar")
    answer = CliRunner().invoke(app, ["runs", "--import", str(tmp_path / "runs.tar"), "--out", str(tmp_path / "there")])
    assert answer.exit_code == 0
    assert "trained by commit c0ffee: it starts over if the code" in " ".join(answer.output.split())


def test_nothing_to_export_a_file_in_the_way_and_a_run_under_way_are_each_a_sentence(tmp_path):
    with pytest.raises(LongspanError, match="nothing to export"):
        runs.export(tmp_path, tmp_path / "runs.tar")
    path = make_run(tmp_path)
    with only_one(path.parent / "lock", "it"), pytest.raises(LongspanError, match="is under way"):
        runs.export(tmp_path, tmp_path / "runs.tar")
    (tmp_path / "runs.tar.002").write_text("mine")
    with pytest.raises(LongspanError, match=r"runs.tar.002 exists; choose another name"):
        runs.export(tmp_path, tmp_path / "runs.tar")
    with pytest.raises(LongspanError, match="A part of 10 bytes"):
        runs.export(tmp_path, tmp_path / "other.tar", part_bytes=10)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs", "runs.tar.002"]


# ---------------------------------------------------------------------------------------------------- hostile archives


def tar(path, *members):
    with tarfile.open(path, "w") as archive:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            info.size = 0 if kind else len(content)
            if kind:
                info.type, info.linkname = kind[0], content
            archive.addfile(info, None if kind else io.BytesIO(content))


def piece(content=b"x", run=NAME, file="cell.json", **changes):
    found = {"run": run, "file": file, "offset": 0, "bytes": len(content), "size": len(content)}
    return found | {"sha256": hashlib.sha256(content).hexdigest()} | changes


def manifest(*pieces, **changes):
    told = {"schema": 1, "kind": "unfinished runs", "archive": "a", "part": 1, "parts": 1, "pieces": list(pieces)}
    return "part.json", json.dumps(told | changes).encode()


OUTSIDE = "../../outside"
HOSTILE = {
    "no archive": ([("readme", b"hello")], "no archive of unfinished runs"),
    "nothing": ([], "no archive of unfinished runs"),
    "a manifest that is no JSON": ([("part.json", b"{")], "cannot be used"),
    "a manifest of something else": ([manifest(kind="cards")], "cannot be used"),
    "a deep manifest": ([("part.json", b"[" * 100_000)], "cannot be used"),
    "a path outside in the manifest": ([manifest(piece(run=OUTSIDE))], "a run called"),
    "a file outside in the manifest": ([manifest(piece(file=OUTSIDE))], "which no unfinished run has"),
    "another file": ([manifest(piece(file="lock"))], "which no unfinished run has"),
    "a path outside in the archive": ([manifest(), (OUTSIDE, b"x")], "points outside the archive"),
    "an absolute path": ([manifest(), ("/tmp/outside", b"x")], "points outside the archive"),
    "a link": ([manifest(piece()), (f"{NAME}/cell.json", "/etc/passwd", tarfile.SYMTYPE)], "points outside"),
    "a link inside": ([manifest(piece()), (f"{NAME}/cell.json", "part.json", tarfile.SYMTYPE)], "is a link"),
    "a hard link": ([manifest(piece()), (f"{NAME}/cell.json", "part.json", tarfile.LNKTYPE)], "is a link"),
    "a pipe": ([manifest(piece()), (f"{NAME}/cell.json", "", tarfile.FIFOTYPE)], "device or a pipe"),
    "a member too many": ([manifest(), (f"{NAME}/cell.json", b"x")], "does not name"),
    "a member too few": ([manifest(piece())], "lacks"),
    "a member twice": ([manifest(piece()), *[(f"{NAME}/cell.json", b"x")] * 2], "twice"),
    "a size that is another": ([manifest(piece(bytes=2, size=2)), (f"{NAME}/cell.json", b"x")], "does not name"),
    "a hash that is another": ([manifest(piece()), (f"{NAME}/cell.json", b"y")], "another SHA-256"),
    "a hole": ([manifest(piece(offset=1, size=2)), (f"{NAME}/cell.json.from000000000001", b"x")], "there are 0"),
    "half a file": ([manifest(piece(size=2)), (f"{NAME}/cell.json.from000000000000", b"x")], "1 of the 2 bytes"),
    "more than there is": ([manifest(piece(bytes=10**12, size=10**12))], "more bytes than it has"),
    "negative sizes": ([manifest(piece(bytes=-1))], "outside its file"),
    "sizes in words": ([manifest(piece(bytes="many"))], "no integers"),
    "a run without a checkpoint": ([manifest(piece()), (f"{NAME}/cell.json", b"x")], "without its cell or its one"),
    "part two": ([manifest(part=2, parts=2)], "is part 2 of 2, where part 1 of 2 was expected"),
    "no number of parts": ([manifest(parts="two")], "no number of parts"),
    "a part that is missing": ([manifest(parts=2)], "Part 2 of 2 is missing"),
}


def refused(out, file):
    """The error and the exit code; no file may have appeared."""
    answer = CliRunner().invoke(app, ["runs", "--import", str(file), "--out", str(out)])
    assert everything(out) == {}
    assert not list(Path(out).rglob("*.part"))
    assert answer.exit_code in (2, 3), answer.output
    return " ".join(answer.output.split())


@pytest.mark.parametrize("members, sentence", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_with_a_sentence_and_nothing_is_written(tmp_path, members, sentence):
    tar(tmp_path / "runs.tar", *members)
    assert sentence in refused(tmp_path / "out", tmp_path / "runs.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs.tar"]


@pytest.mark.parametrize("content, sentence", [("{}", "cannot be read"), ('{"cell": 3}', "cannot be read")])
def test_a_cell_that_cannot_be_read_is_refused(tmp_path, content, sentence):
    path = make_run(tmp_path)
    runs.export(tmp_path, tmp_path / "good.tar")
    weights = path.read_bytes()
    pieces = [piece(content.encode()), piece(weights, file=path.name)]
    members = [(f"{NAME}/cell.json", content.encode()), (f"{NAME}/{path.name}", weights)]
    tar(tmp_path / "runs.tar", manifest(*pieces), *members)
    assert sentence in refused(tmp_path / "out", tmp_path / "runs.tar")


@pytest.mark.parametrize("at", [0.1, 0.4, 0.7])  # the end is only padding
@pytest.mark.parametrize("harm", ["cut short", "altered", "missing", "of another archive"])
def test_a_part_that_is_not_sound_is_refused_by_its_name(tmp_path, harm, at):
    make_run(tmp_path, content=os.urandom(150_000))
    files, _ = runs.export(tmp_path, tmp_path / "runs.tar", part_bytes=60_000)
    assert len(files) > 3
    content = bytearray(files[1].read_bytes())
    place = int(at * len(content))
    if harm == "cut short":
        files[1].write_bytes(content[:place])
    elif harm == "altered":
        content[place] ^= 1
        files[1].write_bytes(content)
    elif harm == "missing":
        files[1].unlink()
    else:
        others, _ = runs.export(tmp_path, tmp_path / "other.tar", part_bytes=60_000)
        files[1].write_bytes(others[1].read_bytes())
    assert files[1].name in refused(tmp_path / "out", tmp_path / "runs.tar")


def test_no_archive_at_all_and_wrong_requests(tmp_path):
    assert "There is no archive" in refused(tmp_path / "out", tmp_path / "runs.tar")
    for words, sentence in (
        (["--export", "a", "--import", "b"], "one at a time"),
        (["--part-size", "15MB"], "name a file with it"),
        (["--export", "a", "--part-size", "many"], "write it like 15MB"),
    ):
        answer = CliRunner().invoke(app, ["runs", *words, "--out", str(tmp_path)])
        assert answer.exit_code == 2
        assert sentence in " ".join(answer.output.split())


# ------------------------------------------------------------------------------------------------------- two machines

SMALL = {"data.train": 256, "data.valid": 65, "data.test": 128, "data.shorter_than": 100, "model.dim": 16}
SMALL |= {"model.layers": 1, "model.mlp": 16, "recipe.batch_size": 8, "recipe.steps": 120}
SMALL |= {"recipe.evaluate_every": 20, "model.dropout": 0.1, "recipe.average": 0.9}
DRIVER = """
import sys
from longspan.training import loop
from tests.runs.test_transfer import train
loop.SAVE_EVERY_SECONDS = -1
train(sys.argv[1], sys.argv[2])
"""


def train(out, data):
    torch.set_num_threads(1)
    cell = runs.Cell("listops", "softmax", overrides=SMALL)
    return runs.run(cell, out=out, data=data, device="cpu", progress=False)


def killed_after(step, out, data):
    """Kill a training process once it has saved a checkpoint at `step`."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(out), str(data)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while max(map(checkpoint.step_of, (out / "runs").glob("*/checkpoint-*.pt")), default=0) < step:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()


def test_a_run_that_was_killed_here_ends_there_with_the_card_of_an_unbroken_one(tmp_path):
    unbroken = train(tmp_path / "alone", tmp_path / "data")
    killed_after(50, tmp_path / "here", tmp_path / "data")
    files, _ = runs.export(tmp_path / "here", tmp_path / "runs.tar", part_bytes=LEAST_PART)
    assert len(files) > 1
    (one,) = runs.restore(tmp_path / "there", tmp_path / "runs.tar")
    assert 50 <= one.step < 120
    moved = train(tmp_path / "there", tmp_path / "other data")
    for part in ("curve", "metrics", "score", "selected_step", "parameters", "dataset", "settings", "files_sha256"):
        assert moved[part] == unbroken[part], part
    assert (moved["timing"]["resumed"], unbroken["timing"]["resumed"]) == (1, 0)
    assert moved["timing"]["shared"] is None
    assert runs.unfinished(tmp_path / "there") == []


def test_a_run_of_which_a_part_shared_its_device_or_ran_elsewhere_has_no_speed(tmp_path):
    cell, place = runs.Cell("listops", "softmax"), {"folder": tmp_path, "steps": 10}
    assert begin(cell=cell, hardware="A", shared=False, **place) is False
    assert begin(cell=cell, hardware="B", shared=False, **place) is False, "nothing was trained on A"
    (tmp_path / "checkpoint-000000003.pt").write_bytes(b"weights")
    assert begin(cell=cell, hardware="B", shared=False, **place) is False
    assert begin(cell=cell, hardware="A", shared=False, **place) is True
    assert begin(cell=cell, hardware="A", shared=False, **place) is True, "once and for all"
    (tmp_path / "cell.json").write_text("[")
    assert begin(cell=cell, hardware="A", shared=False, **place) is False
    mark_shared(tmp_path)
    assert begin(cell=cell, hardware="A", shared=False, **place) is True
