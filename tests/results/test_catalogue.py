"""The shipped catalogue: up to date in every commit, used only while it is complete, read without torch."""

import json
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from longspan import api
from longspan.core.errors import CorruptFile
from longspan.results import catalogue


def test_the_shipped_catalogue_is_what_would_be_written_now():
    made = json.loads(json.dumps(api.catalogue(plugins=False)))
    kept = catalogue.read(catalogue.SHIPPED)
    again = "run `make generated` and commit longspan/results/catalogue.json"
    assert kept.pop("sources") == {kind: catalogue.source_hash(kind) for kind in catalogue.KINDS}, again
    assert kept == made, again
    assert not made["problems"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two attentions with a catalogue of its own."""
    for path in ("attentions/base.py", "attentions/mine.py", "tasks/mine.py", "datasets/mine.py", "backbones/mine.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"# {path}\n")
    (tmp_path / "suites.py").write_text("")
    monkeypatch.setattr(catalogue, "PACKAGE", tmp_path)
    monkeypatch.setattr(catalogue, "SHIPPED", tmp_path / "catalogue.json")
    monkeypatch.setattr(catalogue, "entry_points", lambda: EntryPoints())
    kinds = {kind: [{"name": "mine"}] for kind in catalogue.KINDS}
    catalogue.write_shipped({"schema": catalogue.SCHEMA, **kinds, "problems": []})
    return tmp_path


def fresh(package):
    """The kinds for which the shipped catalogue is used."""
    return {kind for kind in catalogue.KINDS if catalogue.shipped([kind]) is not None}


def test_the_shipped_catalogue_is_used_while_nothing_has_changed(package):
    assert catalogue.shipped(["suites"]) == {"schema": 1, "suites": [{"name": "mine"}], "problems": []}
    assert set(catalogue.shipped() or ()) == {"schema", *catalogue.KINDS, "problems"}


@pytest.mark.parametrize(
    "path, outdated",
    [
        ("attentions/mine.py", {"attentions"}),
        ("attentions/base.py", {"attentions", "tasks", "protocols"}),
        ("datasets/mine.py", {"datasets", "tasks", "protocols"}),
        ("tasks/added.py", {"tasks", "protocols"}),
        ("suites.py", {"suites"}),
    ],
)
def test_an_edited_source_outdates_the_kinds_that_are_made_from_it(package, path, outdated):
    (package / path).write_text("edited = True\n")
    assert fresh(package) == set(catalogue.KINDS) - outdated
    assert catalogue.shipped() is None


def test_a_renamed_file_outdates_the_catalogue(package):
    (package / "attentions" / "mine.py").rename(package / "attentions" / "yours.py")
    assert catalogue.shipped(["attentions"]) is None


def test_an_installed_plug_in_outdates_the_catalogue(package, monkeypatch):
    point = EntryPoint("theirs", "theirs:Theirs", "longspan.tasks")
    monkeypatch.setattr(catalogue, "entry_points", lambda: EntryPoints([point]))
    assert fresh(package) == set(catalogue.KINDS) - {"tasks", "protocols"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 99}'])
def test_what_is_no_catalogue_is_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "catalogue.json"
    path.write_text(content)
    with pytest.raises(CorruptFile, match="longspan list --json"):
        catalogue.read(path)
    with pytest.raises(CorruptFile, match="longspan list --json"):
        catalogue.read(tmp_path / "absent.json")
