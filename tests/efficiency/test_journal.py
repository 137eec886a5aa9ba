"""What is in a journal survives whatever happens to the process, and belongs to one measurement only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import StorageError
from longspan.efficiency.journal import Journal

KEY = (16, "train", "eager")
POINT = {"length": 16, "status": "ok"}


def test_another_identity_is_another_journal(tmp_path):
    Journal(tmp_path, {"code": 1}).add(KEY, POINT, energy=False)
    assert Journal(tmp_path, {"code": 1}).find(KEY) == POINT
    assert Journal(tmp_path, {"code": 2}).find(KEY) is None


def test_a_point_with_energy_serves_those_who_do_not_ask_for_it_but_not_the_other_way_round(tmp_path):
    journal = Journal(tmp_path, {})
    journal.add(KEY, POINT, energy=False)
    assert (journal.find(KEY), journal.find(KEY, energy=True)) == (POINT, None)
    journal.add(KEY, POINT | {"energy": 1}, energy=True)
    assert Journal(tmp_path, {}).find(KEY) == Journal(tmp_path, {}).find(KEY, energy=True) == POINT | {"energy": 1}


@given(cut=st.integers(0, 400))
def test_a_journal_that_was_cut_anywhere_loses_at_most_what_was_cut_and_can_be_continued(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("runs")
    journal = Journal(folder, {})
    journal.note(ceilings={"bytes_per_second": 1.0})
    keys = [(n, "train", "eager") for n in (16, 32, 64)]
    for key in keys:
        journal.add(key, {"length": key[0]}, energy=False)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:cut])
    again = Journal(folder, {})
    complete = whole[:cut].count(b"\n")
    kept = [again.find(key) is not None for key in keys]
    assert kept == sorted(kept, reverse=True)
    assert sum(kept) >= complete - 1
    again.add((128, "train", "eager"), {"length": 128}, energy=False)
    last = Journal(folder, {})
    assert last.find((128, "train", "eager")) == {"length": 128}
    assert [last.find(key) is not None for key in keys] == kept


def test_what_is_forgotten_is_gone_with_its_notes(tmp_path):
    journal = Journal(tmp_path, {})
    journal.note(parameters=3)
    journal.add(KEY, POINT, energy=False)
    assert journal.last([KEY]).endswith("+00:00")
    journal.forget()
    assert (journal.find(KEY), journal.notes) == (None, {})
    assert Journal(tmp_path, {}).find(KEY) is None


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose a writable folder"):
        Journal(tmp_path / "file", {}).note(a=1)
