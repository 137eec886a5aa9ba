"""What the index of a store promises: it saves work and never changes an answer."""

import json
import multiprocessing
import os
import sqlite3
import time
from pathlib import Path

import pytest

from longspan.results import card as cards
from longspan.results import index
from longspan.results.store import Store, newest
from tests.results.factory import make_card


@pytest.fixture(autouse=True)
def indexed(tmp_path, monkeypatch):
    """Every store has an index, in the test's own cache, and no file is too new for it."""
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("longspan.results.store.MANY", 0)
    monkeypatch.setattr(index, "FRESH", -1.0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "cards")
    for seed in range(3):
        store.add(make_card(seed=seed))
        store.add(make_card("linear", seed=seed, accuracy=0.3, created="2026-01-01T00:00:00Z"))
        store.add(make_card("linear", seed=seed, accuracy=0.4))
    (store.folder / "broken.json").write_text("{")
    return store


@pytest.fixture
def validated(monkeypatch):
    """The names of the files that are read with full validation from now on."""
    read, names = cards.read, []
    monkeypatch.setattr(cards, "read", lambda path, *words: names.append(path.name) or read(path, *words))
    return names


def index_file(tmp_path):
    (found,) = (tmp_path / "cache" / "index").iterdir()
    return found


def test_what_was_validated_before_is_not_validated_again_and_all_answers_stay_the_same(store, validated):
    first = store.cards(), store.cards(superseded=True), store.find(mechanism="linear", seed=[0, 2]), store.problems
    validated.clear()
    again = store.cards(), store.cards(superseded=True), store.find(mechanism="linear", seed=[0, 2]), store.problems
    assert validated == []
    assert again == first
    assert first[0] == newest(first[1])
    assert [len(found) for found in first] == [6, 9, 2, 1]


@pytest.mark.parametrize("same_time", [False, True])
def test_a_file_that_changed_is_never_vouched_for(store, same_time):
    chosen = store.cards()
    path = next(path for path, card in store.entries() if card == chosen[0])
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"seed":', b'"sead":'))
    assert path.stat().st_size == before.st_size
    if same_time:  # as after a careless copy
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert chosen[0] not in store.cards()
    assert path in [problem.path for problem in store.problems]


def test_a_file_that_is_replaced_or_removed_is_seen(store):
    path, _ = next(store.entries(mechanism="softmax"))
    path.unlink()
    assert len(store.cards()) == 5
    cards.write(path, make_card("performer"))
    assert "performer" in {card["mechanism"] for card in store.cards()}


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 300, None])
def test_a_damaged_index_is_made_anew_with_a_sentence(store, tmp_path, validated, capsys, damage):
    chosen = store.cards()
    path = index_file(tmp_path)
    if damage is None:  # an index of another layout
        with sqlite3.connect(path) as database:
            database.execute("DROP TABLE files")
            database.execute("CREATE TABLE files (name)")
    else:
        path.write_bytes(damage)
    assert store.cards() == chosen
    assert ("was damaged" in capsys.readouterr().err) == (damage != b"")  # an empty file is an empty database
    store.cards()
    validated.clear()
    assert store.cards() == chosen
    assert validated == []


def test_rows_that_lie_about_an_unchanged_file_are_those_of_this_user_alone(store, tmp_path):
    """The index is in the user's cache: one that comes with the cards is ignored."""
    store.cards()
    index_file(tmp_path).rename(store.folder / index_file(tmp_path).name)
    assert len(store.cards()) == 6


def test_a_file_that_is_quite_new_is_validated_each_time(store, validated, monkeypatch):
    monkeypatch.setattr(index, "FRESH", 3600.0)
    store.cards()
    validated.clear()
    store.cards()
    assert len(validated) == 10


def test_without_a_cache_everything_is_validated(store, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "file" / "cache"))
    assert len(store.cards()) == 6


def test_cards_of_one_field_are_found_without_reading_others(store, monkeypatch):
    store.cards()
    parsed, loads = [], json.loads
    monkeypatch.setattr("longspan.results.store.json.loads", lambda text: parsed.extend(found := loads(text)) or found)
    found = [card for _, card in store.entries(mechanism="softmax", seed=1)]
    assert len(found) == 1
    assert parsed == found


def test_a_listing_says_what_the_cards_are_about_and_reads_none_of_them(store, monkeypatch):
    every, newest_ones = store.cards(superseded=True), store.cards()
    with monkeypatch.context() as unreadable:
        unreadable.setattr("builtins.open", None)
        unreadable.setattr(Path, "open", None)
        rows, chosen = store.rows(superseded=True), store.rows()
    names = ("kind", "task", "mechanism", "pattern", "protocol", "tier", "seed", "created")
    about = {card["sha256"]: [card[name] for name in names] for card in every}
    assert {row.sha256: [getattr(row, name) for name in names] for row in rows} == about
    assert [row.created for row in rows] == [card["created"] for card in every]
    assert {row.sha256 for row in chosen} == {card["sha256"] for card in newest_ones}
    assert all((store.folder / row.name).is_file() for row in rows)


@pytest.mark.parametrize("change", ["damaged", "removed", "replaced", "two in one"])
def test_a_card_that_changes_while_others_are_read_is_read_as_untrusted(store, change, monkeypatch):
    before = {card["sha256"] for card in store.cards()}
    rows = store._rows()
    chosen = next(row for row in rows if row.mechanism == "softmax")
    path, new = store.folder / chosen.name, make_card("performer")
    match change:
        case "damaged":
            path.write_bytes(path.read_bytes()[:-9])
        case "removed":
            path.unlink()
        case "replaced":
            cards.write(path, new)
        case "two in one":  # parsed together with others this would be valid JSON
            path.write_bytes(path.read_bytes() + b"," + path.read_bytes())
    monkeypatch.setattr(store, "_rows", lambda: rows)
    found = store.cards()
    assert len(found) == len(before) - (change != "replaced")
    assert {card["sha256"] for card in found} - before == ({new["sha256"]} if change == "replaced" else set())
    assert [problem.path for problem in store.problems[1:]] == ([] if change == "replaced" else [path])


def test_one_card_that_a_wrong_row_vouches_for_takes_no_other_along(store):
    """Even if its size, times and inode are unchanged, it is decoded by itself and is not a card."""
    store.cards()
    rows = store._rows()
    chosen = next(row for row in rows if row.mechanism == "softmax")
    path = store.folder / chosen.name
    path.write_bytes(path.read_bytes() + b"," + path.read_bytes())
    state = path.stat()
    lie = chosen._replace(size=state.st_size, modified=state.st_mtime_ns, changed=state.st_ctime_ns, inode=state.st_ino)
    found = dict(store._cards([lie if row == chosen else row for row in rows]))
    assert path not in found
    assert len(found) == len(rows) - 1
    assert all(cards.read(one) == card for one, card in found.items())


def add_and_list(folder, number):
    for seed in range(4):
        Store(folder).add(make_card(f"linear(eps={number})", seed=seed))
        Store(folder).cards()


def test_writers_at_the_same_time_never_break_it(store, tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_and_list, args=(store.folder, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 60
    while any(writer.is_alive() for writer in writers):
        assert time.monotonic() < deadline
        store.cards()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(store.cards()) == 6 + 12
    with sqlite3.connect(index_file(tmp_path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
