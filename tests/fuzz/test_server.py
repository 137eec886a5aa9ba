"""A misbehaving server: a download is the right file or a clear error, and what it left can be resumed."""

import contextlib
import hashlib
import random
import shutil

import numpy as np
import pytest

from longspan.core import remote, request
from longspan.core.download import Source, fetch
from longspan.core.errors import CorruptFile
from tests.fuzz.bad_server import BAD, GOOD, SLOW, serving_badly
from tests.fuzz.figures import inputs

CONTENT = np.random.default_rng(0).bytes(40_000)
LEFT_BEHIND = {".x.bin.busy", "x.bin.part", "x.bin.part.origin", "x.bin.bad"}


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(remote, "LARGEST", 500_000)
    monkeypatch.setattr(request, "LEAST", 1_000)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv(remote.MIRROR, raising=False)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")  # a bug in the server itself
@inputs(quick=150, full=3_500)  # three requests each
def test_a_download_from_a_bad_server_is_the_right_file_or_a_sentence(count, figures, tmp_path, monkeypatch):
    dice = random.Random(18)
    with serving_badly(CONTENT) as server:
        for number in range(count):
            folder = tmp_path / str(number)
            digest = dice.choice(["md5", "sha256"])
            source = Source(
                *(f"{server.url}/x.bin", "x.bin", dice.choice([None, len(CONTENT)])),
                **{digest: hashlib.new(digest, CONTENT).hexdigest()},
            )
            server.manners[:] = [dice.choice(GOOD if dice.random() < 0.5 else BAD) for _ in range(6)]
            if dice.random() < 0.02:
                server.manners[dice.randrange(4)] = dice.choice(SLOW)
            with monkeypatch.context() as patch, figures.trying(accepted="right"):
                patch.setattr(request, "TIMEOUT_S", 0.1)
                patch.setattr(request, "WINDOW_S", 0.05)
                assert fetch(source, folder, progress=False).read_bytes() == CONTENT
            left = {path.name for path in folder.iterdir()}
            assert left <= LEFT_BEHIND or "x.bin" in left, left
            assert ("x.bin.part" in left) <= ("x.bin.part.origin" in left)
            server.manners.clear()
            with contextlib.suppress(CorruptFile):  # a wrong part is detected at the end and set aside
                fetch(source, folder, progress=False)
            assert fetch(source, folder, progress=False).read_bytes() == CONTENT
            assert not list(folder.glob("*.part*"))
            shutil.rmtree(folder)
        figures.add("requests answered", len(server.seen))
