"""Texts as characters: what is counted, what is unknown, and that nothing else in the examples changes."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longspan import datasets, tasks
from longspan.datasets import aan, imdb
from longspan.datasets.base import Split, settings_of
from longspan.datasets.characters import in_characters


def split_of(texts):
    pieces = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    edges = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    return Split.of_rows(np.concatenate(pieces), edges, np.zeros(len(texts), np.uint8))


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 3))
def test_an_id_stands_for_one_character_and_zero_for_a_rare_one(texts, length, least):
    seen = in_characters({"train": split_of(texts)}, length, least)["train"]
    cut = [text[:length] for text in texts]
    whole = "".join(cut)
    assert seen.lengths.tolist() == [len(text) for text in cut]
    meaning = {}
    for row, text in enumerate(cut):
        for number, character in zip(seen.example(row), text, strict=True):
            assert (number == 0) == (whole.count(character) < least)
            if number:
                assert meaning.setdefault(int(number), character) == character


def test_the_vocabulary_is_that_of_the_training_texts():
    splits = in_characters({"train": split_of(["aab"]), "test": split_of(["abé"])}, 9, 1)
    assert splits["test"].example(0).tolist() == [1, 2, 0]


def test_of_too_many_characters_the_most_frequent_are_kept():
    rare, common = "".join(map(chr, range(0x4E00, 0x4F00))), "".join(map(chr, range(0x100, 0x100 + 250)))
    ids = in_characters({"train": split_of([rare + 2 * common])}, 10_000, 1)["train"].example(0)
    assert ids.max() == 255
    assert (ids[256:] > 0).all()


def test_pairs_share_their_texts():
    tokens = np.frombuffer("éab".encode(), np.uint8)
    starts, stops = np.array([[0, 2], [2, 0]]), np.array([[2, 4], [4, 2]])
    splits = in_characters({"train": Split(tokens, starts, stops, np.zeros(2, np.uint8))}, 5, 1)
    assert [[x.tolist() for x in splits["train"].example(i)] for i in range(2)] == [[[3], [1, 2]], [[1, 2], [3]]]


def test_hashes_of_data_know_nothing_of_a_setting_at_its_default_that_came_later():
    before = {"length", "train", "valid", "test", "seed", "standin"}
    assert settings_of(aan.Data()).keys() == before
    assert settings_of(imdb.Data()).keys() == before | {"validation"}
    assert settings_of(imdb.Data(tokens="characters"))["tokens"] == "characters"


def test_stand_ins_can_be_read_as_characters(tmp_path):
    for name, module in (("imdb", imdb), ("aan", aan)):
        data = module.Data(length=64, train=40, valid=20, test=20, standin=True)
        as_bytes, read = (
            datasets.get(name).load(dataclasses.replace(data, tokens=tokens), root=tmp_path)
            for tokens in ("bytes", "characters")
        )
        assert np.array_equal(as_bytes.test.labels, read.test.labels)
        assert read.train.lengths.max() <= 64
        texts = [np.ravel(np.concatenate(list(np.atleast_2d(s.train.example(0))))) for s in (as_bytes, read)]
        assert len(texts[0]) == len(texts[1])  # ASCII: each character has another id
        assert len({(a, b) for a, b in zip(*texts, strict=True) if b}) == len({b for b in texts[1] if b})


def test_an_end_token_is_one_more_symbol_after_every_text():
    task = tasks.get("listops")
    protocol = task.protocol("longspan", "smoke").override({"model.end_token": True})
    rows = np.frombuffer(bytes([1, 2, 3, 4, 5]), np.uint8)
    split = Split(rows, np.array([0, 3]), np.array([3, 5]), np.zeros(2, np.uint8))
    batch = task.feed(split, protocol, "cpu").batch(np.arange(2))
    assert batch.tokens.tolist() == [[1, 2, 3, 17], [4, 5, 17, 0]]
    assert batch.lengths.lengths.tolist() == [4, 3]
    assert task.feed(split, task.protocol("longspan", "smoke"), "cpu").batch(np.arange(2)).tokens.shape == (2, 3)
