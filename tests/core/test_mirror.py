"""A bucket shared by several machines, each with its own mirror: nothing is lost, nothing is done twice."""

import sys

import pytest

from longspan.core import bucket, lease, mirror
from longspan.core.errors import StorageError, UsageError
from longspan.core.lock import Busy, only_one
from longspan.results.store import Store
from tests.results.factory import make_card, write_predictions

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def address(request):
    """An empty bucket in memory."""
    name = f"memory://{request.node.name[:60].replace('[', '-').replace(']', '')}/out"
    yield name
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Act as the named machine: each has its own cache."""

    def be(name):
        monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / name))
        monkeypatch.setattr(lease, "machine", lambda: name)
        mirror._address.cache_clear()

    be("first")
    return be


@pytest.fixture
def unreachable(address, monkeypatch):
    """A function: after `unreachable(times)` the next `times` requests to the store fail."""
    monkeypatch.setattr(bucket, "PAUSE", 0.001)
    files = bucket.open_bucket(address).files

    def fail(times):
        left, find, pipe = [times], files.find, files.pipe_file

        def broken(real):
            def call(*words, **named):
                if left[0] > 0:
                    left[0] -= 1
                    raise ConnectionRefusedError("nobody listens")
                return real(*words, **named)

            return call

        monkeypatch.setattr(files, "find", broken(find))
        monkeypatch.setattr(files, "pipe_file", broken(pipe))

    return fail


def test_a_path_is_itself_and_an_address_a_folder_that_knows_it(address, machine, tmp_path):
    assert mirror.local(tmp_path) == tmp_path
    assert mirror.address_of(tmp_path) is None
    folder = mirror.local(f"{address}/")
    assert folder.is_relative_to(tmp_path / "first")
    assert mirror.address_of(folder / "cards") == f"{address}/cards"
    assert mirror.everywhere(folder) == mirror.everywhere(address) == address


def test_a_card_that_one_machine_adds_is_read_by_the_others_with_its_files(address, machine, tmp_path):
    predictions = write_predictions(tmp_path / "anything.npz", 800, 2000)
    Store(mirror.local(address) / "cards").add(make_card(), files={"predictions": predictions})
    machine("second")
    store = Store(mirror.local(address) / "cards")
    assert len(store.cards()) == 1
    ((path, card),) = store.entries()
    beside = path.with_name(card["files"]["predictions"])
    assert not beside.exists(), "files are fetched when they are asked for"
    mirror.pull(beside)
    assert beside.read_bytes() == predictions.read_bytes()
    assert Store(f"{address}/cards").cards() == [card]


def test_two_machines_that_write_at_once_lose_no_card(address, machine):
    stores = {}
    for name in ("first", "second"):
        machine(name)
        stores[name] = Store(mirror.local(address) / "cards")
        stores[name].cards()
    for seed in range(4):
        for name in stores:
            machine(name)
            stores[name].add(make_card("linear" if name == "first" else "softmax", seed=seed))
    for name in stores:
        machine(name)
        assert len(stores[name].cards()) == 8


def test_another_card_of_the_same_name_is_never_replaced(address, machine, monkeypatch):
    """The name contains a hash of the card without its files; only damage or malice gives two cards one name."""
    store = Store(mirror.local(address) / "cards")
    path = store.add(make_card())
    shared, name = mirror.in_bucket(path)
    shared.put(name, b"{}")
    machine("second")
    other = Store(mirror.local(address) / "cards").add(make_card())
    assert shared.get(name) == b"{}"
    assert other.name != path.name
    assert len(Store(mirror.local(address) / "cards").cards()) == 1


def test_a_card_that_a_killed_process_has_not_sent_is_sent_by_the_next(address, machine, monkeypatch):
    store = Store(mirror.local(address) / "cards")
    with monkeypatch.context() as killed:
        killed.setattr("longspan.results.store._send", lambda *words: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.add(make_card())
    machine("second")
    assert Store(mirror.local(address) / "cards").cards() == []
    machine("first")
    assert len(store.cards()) == 1
    machine("second")
    assert len(Store(mirror.local(address) / "cards").cards()) == 1


def test_a_store_that_is_away_for_a_while_is_waited_for_with_a_line(address, machine, unreachable, capsys):
    store = Store(mirror.local(address) / "cards")
    unreachable(3)
    store.add(make_card())
    assert len(store.cards()) == 1
    assert capsys.readouterr().err.count("cannot be reached (nobody listens); trying again") == 1


def test_a_store_that_stays_away_is_an_error_of_storage_and_the_card_is_sent_later(
    address, machine, unreachable, monkeypatch
):
    store = Store(mirror.local(address) / "cards")
    with monkeypatch.context() as now:
        now.setattr(bucket, "PATIENCE", 0.0)
        unreachable(1)
        with pytest.raises(StorageError, match=r"Cannot reach memory://.*nobody listens"):
            store.add(make_card())
    assert len(store.cards()) == 1
    machine("second")
    assert len(Store(mirror.local(address) / "cards").cards()) == 1


def test_of_machines_that_want_a_lease_one_has_it_and_a_dead_one_is_relieved(address, machine, monkeypatch):
    machine("second")
    with only_one(mirror.local(address) / "runs" / "x" / "lock", "the run x") as held:
        machine("first")
        lock = mirror.local(address) / "runs" / "x" / "lock"
        with pytest.raises(Busy, match="Process"), only_one(lock, "the run x", wait=False):
            pass
        monkeypatch.setattr(lease, "PATIENCE", -1.0)
        with only_one(lock, "the run x", wait=False) as taken:
            taken.check()
            machine("second")
            with pytest.raises(lease.LeaseLost):
                held.check()
            machine("first")
    assert not bucket.open_bucket(address).sizes("runs")


def test_two_users_of_one_machine_do_not_take_a_cell_from_one_another(address, machine, tmp_path, monkeypatch):
    with only_one(mirror.local(address) / "runs" / "x" / "lock", "the run x") as held:
        monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "another"))
        mirror._address.cache_clear()
        lock = mirror.local(address) / "runs" / "x" / "lock"
        with pytest.raises(Busy), only_one(lock, "the run x", wait=False):
            pass
        monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "first"))
        held.check()


def test_a_folder_of_data_is_fetched_whole_or_not_at_all(address, machine):
    folder = mirror.local(address) / "data" / "listops" / "small"
    folder.mkdir(parents=True)
    for name in ("manifest.json", "train.npy", "test.npy"):
        (folder / name).write_text(name)
    order, put = [], bucket.Bucket.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket.Bucket, "put", lambda self, name, path: order.append(path.name) or put(self, name, path))
        mirror.push_folder(folder, "manifest.json")
    assert order[-1] == "manifest.json"
    machine("second")
    there = mirror.local(address) / "data" / "listops" / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket.Bucket, "fetch", lambda self, name, path: (_ for _ in ()).throw(StorageError("gone")))
        with pytest.raises(StorageError):
            mirror.pull_folder(there, "manifest.json")
    assert not there.exists()
    mirror.pull_folder(there, "manifest.json")
    assert {path.name for path in there.iterdir()} == {"manifest.json", "train.npy", "test.npy"}


def test_what_fsspec_does_not_know_is_refused_with_a_sentence(machine, monkeypatch):
    with pytest.raises(UsageError, match=r"nowhere://x is no address for fsspec"):
        mirror.local("nowhere://x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"needs fsspec, which is not installed; pip install 'longspan\[s3\]'"):
        mirror.local("s3://bucket/another")


def test_a_file_is_fetched_whole_or_not_at_all(address, machine, tmp_path, monkeypatch):
    shared = bucket.open_bucket(address)
    shared.put("a", b"0123456789")

    def half(place, path):
        with open(path, "wb") as file:
            file.write(b"01234")
        raise ConnectionResetError("cut off")

    monkeypatch.setattr(bucket, "PATIENCE", 0.0)
    monkeypatch.setattr(shared.files, "get_file", half)
    with pytest.raises(StorageError):
        shared.fetch("a", tmp_path / "a")
    assert not list(tmp_path.iterdir())
