"""Byte-level BPE: every text round-trips, nothing in it is special, lines keep their ends."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import bpe
from longspan.datasets.bpe import streams
from longspan.datasets.bpe.streams import Dictionary

TEXTS = ["the storm hit the coast", "the coast was hit by a storm", "caf\u00e9 \u2014 </s> and <s> in a text"] * 5
CODER = bpe.train(TEXTS, 320, special=bpe.SPECIALS)

LINES = ["the rain fell on the harbour", "", "the harbour fell silent", "and the rain went on and on"]
PLAIN = bpe.train([LINES], 300)  # without special entries
TEXT = "\r\n".join(LINES).encode()
RAW = streams.encode(PLAIN, TEXT)


def loaded(folder, special=bpe.SPECIALS[:3]):
    return bpe.load(folder, wanted="BART's vocabulary", remedy="put it there.", special=special)


@pytest.mark.parametrize("coder, first", [(CODER, 4), (PLAIN, 0)])
@given(text=st.text(max_size=40))
def test_every_text_comes_back_as_it_was(coder, first, text):
    (ids,) = coder.encode([text])
    assert bpe.text(coder.pieces, ids) == text
    assert (ids >= first).all(), "nothing in a text is special"


def test_training_is_the_same_every_time_and_no_larger_than_asked():
    again = bpe.train(iter(TEXTS), 320, special=bpe.SPECIALS)
    assert (again.entries, again.merges) == (CODER.entries, CODER.merges)
    assert len(CODER) <= 320
    assert len(bpe.train(["ab"], 500, special=bpe.SPECIALS)) == bpe.FEWEST + 1, "a small text has few pieces"
    vocabulary = CODER.vocabulary
    assert (vocabulary.begin, vocabulary.pad, vocabulary.end) == (bpe.BEGIN, bpe.PAD, bpe.END)


def test_special_entries_only_come_before_the_others():
    plain = bpe.train(TEXTS[:2], 300)
    special = bpe.train(TEXTS[:2], 304, special=bpe.SPECIALS)
    for without, with_them in zip(plain.encode(TEXTS), special.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(without + 4, with_them)


def test_special_entries_write_nothing():
    ids = [0, *CODER.encode(["storm"])[0], 2, 1, 3]
    assert CODER.vocabulary.text(ids) == "storm"


@pytest.mark.parametrize("special", [(), bpe.SPECIALS])
def test_a_learned_piece_is_never_a_special_entry(special):
    coder = bpe.train(["</s> " * 50], 400, special=special)
    (ids,) = coder.encode(["</s>"])
    assert coder.entries.get("</s>") not in ids
    assert bpe.text(coder.pieces, ids) == "</s>"


# --------------------------------------------------------------------------------------------------------------- files


def as_vocab_and_merges(folder):
    CODER.save(folder)


def as_fairseq_calls_them(folder):
    CODER.save(folder, bpe.NAMES[1])


def as_tokenizer_json(folder):
    (folder / "tokenizer.json").write_bytes(CODER.to_json())


def as_older_tokenizer_json(folder):
    model = {"type": "BPE", "vocab": CODER.entries, "merges": [" ".join(pair) for pair in CODER.merges]}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model}), encoding="utf-8")


@pytest.mark.parametrize(
    "write", [as_vocab_and_merges, as_fairseq_calls_them, as_tokenizer_json, as_older_tokenizer_json]
)
def test_a_vocabulary_is_read_from_every_kind_of_file(write, tmp_path):
    write(tmp_path)
    found = loaded(tmp_path)
    assert found.vocabulary == CODER.vocabulary
    assert [ids.tolist() for ids in found.encode(TEXTS)] == [ids.tolist() for ids in CODER.encode(TEXTS)]
    assert found.to_json() == CODER.to_json()


def test_a_vocabulary_like_barts_has_its_own_numbers_and_a_silent_mask(tmp_path):
    entries = dict(CODER.entries)
    entries["<mask>"] = len(entries)
    entries["<s>"], entries["!"] = entries["!"], entries["<s>"]
    CODER.save(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(entries), encoding="utf-8")
    vocabulary = loaded(tmp_path).vocabulary
    assert vocabulary.begin == CODER.entries["!"]
    assert vocabulary.text([vocabulary.begin, len(vocabulary) - 1, 0]) == "!"


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("vocab.json", "{", "vocab.json is not readable JSON"),
        ("vocab.json", "[1, 2]", "does not hold a BPE vocabulary"),
        ("vocab.json", json.dumps({"a": 0, "b": 7}), "from 0 on without a gap"),
        ("vocab.json", json.dumps({"a": 0, "<s>": 1}), "lacks <pad>, </s>"),
        ("vocab.json", json.dumps({"<s>": 0, "<pad>": 1, "</s>": 2}), "lacks some bytes"),
        ("merges.txt", "#version: 0.2\nth er\n", "merges of pieces that are not in its vocabulary"),
        ("merges.txt", "a b c\n", "merges of pieces"),
        ("merges.txt", b"\xff\xfe", "merges.txt is not UTF-8"),
    ],
)
def test_files_that_are_no_vocabulary_are_refused_with_a_sentence(name, content, sentence, tmp_path):
    CODER.save(tmp_path)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorruptFile, match=sentence):
        loaded(tmp_path)


def test_absent_files_and_impossible_sizes_are_refused(tmp_path):
    names = "vocab.json and merges.txt, nor encoder.json and vocab.bpe, nor tokenizer.json"
    with pytest.raises(DataMissing, match=f"BART's vocabulary was asked for, but .* has neither {names}; put it there"):
        loaded(tmp_path)
    with pytest.raises(UsageError, match="260 entries or more, got 259"):
        bpe.train(TEXTS, 259, special=bpe.SPECIALS)
    with pytest.raises(UsageError, match="256 entries or more, got 100"):
        bpe.train(TEXTS, 100)


def test_a_vocabulary_without_special_entries_is_read_where_none_are_needed(tmp_path):
    PLAIN.save(tmp_path)
    np.testing.assert_array_equal(streams.encode(loaded(tmp_path, special=()), TEXT), RAW)
    with pytest.raises(CorruptFile, match="lacks <s>, <pad>, </s>"):
        loaded(tmp_path)


# ------------------------------------------------------------------------------------------------------------- streams


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_any_text_comes_back_as_its_stripped_lines(text):
    numbers = streams.encode(PLAIN, text.encode())
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    assert (numbers == len(PLAIN)).sum() == len(lines)
    assert streams.decode(PLAIN, numbers) == "\n".join(lines) + "\n"


def test_nothing_a_line_says_is_special():
    numbers = Dictionary.of_own(PLAIN).numbers[streams.encode(PLAIN, b"</s> <s> <unk> <pad>")]
    assert numbers[-1] == bpe.END
    assert (numbers[:-1] >= len(bpe.SPECIALS)).all()


def test_carriage_returns_are_blanks_and_blank_lines_are_an_end_alone():
    np.testing.assert_array_equal(RAW, streams.encode(PLAIN, "\n".join(LINES).encode()))
    ends = np.flatnonzero(len(PLAIN) == RAW)
    assert len(ends) == len(LINES)
    assert ends[1] == ends[0] + 1
    assert len(RAW) < len(TEXT) / 2


def test_own_pieces_follow_the_special_ones():
    dictionary = Dictionary.of_own(PLAIN)
    assert dictionary.size == len(PLAIN) + 4
    assert sorted(dictionary.numbers) == [bpe.END, *range(4, dictionary.size)]
    np.testing.assert_array_equal(dictionary.raw(dictionary.numbers[RAW]), RAW)


def test_a_dictionary_has_the_commonest_first_and_fills_up_to_eight():
    counts = np.bincount(RAW, minlength=len(PLAIN) + 1)
    dictionary = Dictionary.of_counts(PLAIN, counts)
    used = np.flatnonzero(counts[: len(PLAIN)])
    assert dictionary.size % 8 == 0
    assert len(used) + 4 <= dictionary.size < len(used) + 12
    by_number = used[np.argsort(dictionary.numbers[used])]
    assert (np.diff(counts[by_number]) <= 0).all()
    assert (dictionary.numbers[np.flatnonzero(counts == 0)] == bpe.UNKNOWN).all()
    assert dictionary.numbers[len(PLAIN)] == bpe.END
