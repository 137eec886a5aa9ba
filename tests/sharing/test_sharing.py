"""Cards and weights are uploaded and downloaded, against a fake hub and a fake logger."""

import json
import shutil

import pytest

from longspan.core.errors import CorruptFile, StorageError, UsageError
from longspan.results import card as cards_module
from longspan.results.store import Store
from longspan.sharing import log, pull, push
from tests.results.factory import make_card, make_core


class FakeHub:
    """A hub whose repositories are folders."""

    endpoint = "fake:"

    def __init__(self, root):
        self.root, self.private = root, {}

    def create_repo(self, name, *, repo_type, private, exist_ok):
        self.private[name] = private
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id, repo_type, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, name, *, repo_type, local_dir):
        return shutil.copytree(self.root / name, local_dir, dirs_exist_ok=True)


@pytest.fixture
def hub(tmp_path):
    return FakeHub(tmp_path / "hub")


@pytest.fixture
def card(tmp_path):
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"weights")
    curve = [{"step": 10, "train_loss": 2.0, "valid_loss": 2.1, "valid_accuracy": 0.2}]
    return Store(tmp_path / "cards").add(make_card("linear", curve=curve, sealed=False), files={"weights": weights})


def test_what_is_pushed_comes_back_whole(hub, card, tmp_path):
    assert push(card, "me/model", hub=hub) == "fake:/me/model"
    assert hub.private == {"me/model": True}
    (path,) = pull("me/model", out=tmp_path / "out", hub=hub)
    assert cards_module.read(path) == cards_module.read(card)
    assert path.with_name(cards_module.read(path)["files"]["weights"]).read_bytes() == b"weights"
    assert pull("me/model", out=tmp_path / "out", hub=hub) == [path]
    assert len(Store(tmp_path / "out" / "cards").cards()) == 1


def test_the_model_card_says_what_was_run_and_holds_no_markup_of_a_card(hub, tmp_path):
    hostile = make_card("linear", title="[click](evil) <script>", sealed=False)
    push(Store(tmp_path / "cards").add(hostile), "me/model", hub=hub)
    text = (hub.root / "me/model" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: longspan\n")
    assert "| Task | listops, version 1 |" in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_a_measurement_can_be_pushed_too(hub, tmp_path):
    path = Store(tmp_path / "cards").add(make_core("linear", {256: 1e-3}))
    push(path, "me/times", hub=hub)
    (back,) = pull("me/times", out=tmp_path / "out", hub=hub)
    assert cards_module.read(back)["kind"] == "measurement"


def test_changed_weights_are_refused_and_nothing_is_placed(hub, card, tmp_path):
    push(card, "me/model", hub=hub)
    (weights,) = (hub.root / "me/model").glob("*.safetensors")
    weights.write_bytes(b"others")
    with pytest.raises(CorruptFile, match="changed after the run"):
        pull("me/model", out=tmp_path / "out", hub=hub)
    assert not (tmp_path / "out").exists()


def test_a_forged_card_is_refused(hub, card, tmp_path):
    push(card, "me/model", hub=hub)
    (path,) = (hub.root / "me/model").glob("*.json")
    forged = json.loads(path.read_text())
    forged["score"]["value"] = 1.0
    path.write_text(json.dumps(forged))
    with pytest.raises(CorruptFile):
        pull("me/model", out=tmp_path / "out", hub=hub)


@pytest.mark.parametrize("module, base", [("huggingface_hub.errors", FileNotFoundError), ("httpx", Exception)])
def test_a_hub_that_cannot_be_reached_is_not_called_a_fault_of_the_disk(hub, card, monkeypatch, module, base):
    def fail(*_, **__):
        raise type("Unreachable", (base,), {"__module__": module})("Name or service not known\nAn error happened")

    monkeypatch.setattr(hub, "create_repo", fail)
    monkeypatch.setattr(hub, "snapshot_download", fail)
    for ask in (lambda: push(card, "me/it", hub=hub), lambda: pull("me/it", hub=hub)):
        with pytest.raises(
            StorageError, match=r"me/it .*Name or service not known.* check its name, the network"
        ) as told:
            ask()
        assert "\n" not in str(told.value)


def test_a_repository_without_cards_says_so(hub, tmp_path):
    hub.create_repo("me/empty", repo_type="model", private=True, exist_ok=True)
    with pytest.raises(UsageError, match="holds no card"):
        pull("me/empty", out=tmp_path / "out", hub=hub)


class FakeWandb:
    def __init__(self):
        self.runs = {}

    def init(self, *, id, resume, **settings):
        self.id, self.settings, self.points, self.summary, self.finished = id, settings, {}, {}, False
        self.runs[id] = self
        return self

    def log(self, values, *, step):
        self.points[step] = values

    def finish(self):
        self.finished = True


def test_a_run_is_logged_with_settings_curve_and_score_and_is_one_run(card):
    wandb = FakeWandb()
    for _ in range(2):
        assert log(card, "arena", wandb=wandb) == "listops linear seed 0"
    (run,) = wandb.runs.values()
    assert run.settings["project"] == "arena"
    assert run.settings["config"]["mechanism"] == "linear"
    assert run.points == {10: {"train_loss": 2.0, "valid_loss": 2.1, "valid_accuracy": 0.2}}
    assert run.summary["test_accuracy"] == pytest.approx(0.4)
    assert run.finished


@pytest.mark.parametrize("library", ["huggingface_hub", "wandb"])
def test_a_missing_library_is_a_sentence(library, card, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(UsageError, match=r"pip install 'longspan\["):
        push(card, "me/model") if library == "huggingface_hub" else log(card, "arena")
