"""A cell whose results are in a bucket: another machine resumes it and finds the data that the first prepared."""

import signal

import pytest

from longspan import runs
from longspan.core import lease, mirror
from longspan.core.bucket import open_bucket
from longspan.core.signals import Stopped
from longspan.datasets.base import Dataset
from longspan.results.store import Store
from longspan.training import checkpoint

fsspec = pytest.importorskip("fsspec")
TINY = {"recipe.steps": 6, "recipe.evaluate_every": 2, "recipe.batch_size": 4, "data.train": 16, "data.valid": 8}
TINY |= {"data.test": 8, "data.shorter_than": 60, "model.dim": 16, "model.layers": 1, "model.mlp": 16}
ADDRESS = "memory://shared-store/out"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Act as the named machine: each has its own cache."""

    def be(name):
        monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / name))
        monkeypatch.setattr(lease, "machine", lambda: name)
        mirror._address.cache_clear()

    yield be
    fsspec.filesystem("memory").store.clear()


def run():
    cell = runs.Cell("listops", "softmax", overrides=TINY)
    return runs.run(cell, out=ADDRESS, data=f"{ADDRESS}/data", device="cpu", progress=False)


def shared_names(under):
    return set(open_bucket(ADDRESS).sizes(under))


def test_another_machine_goes_on_from_the_checkpoint_with_the_data_of_the_first(machine, monkeypatch):
    save = checkpoint.save

    def save_and_stop(folder, step, state):
        save(folder, step, state)
        if step >= 4:
            raise Stopped(signal.SIGTERM)

    machine("first")
    with monkeypatch.context() as stopped:
        stopped.setattr(checkpoint, "save", save_and_stop)
        with pytest.raises(Stopped):
            run()
    assert not shared_names("cards")
    assert any(name.endswith("manifest.json") for name in shared_names("data"))
    machine("second")
    monkeypatch.setattr(Dataset, "_generate", None)  # preparing the data again would fail
    card = run()
    assert card["timing"]["resumed"] == 1
    assert [point["step"] for point in card["curve"]] == [2, 4, 6]
    machine("third")
    assert run() == card, "it is answered from the card, with its files"
    assert [found["sha256"] for found in Store(f"{ADDRESS}/cards").cards()] == [card["sha256"]]
    assert not shared_names("runs"), "nothing is left of a run that has a card"
