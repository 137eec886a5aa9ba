"""Phonemes: the rules for words, punctuation and words in no dictionary, and their counts on all of LJSpeech."""

import lzma
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.datasets.speech.phonemes import PHONES, Phonemes, read_lexicon, unspeakable
from longspan.datasets.speech.store import SPECIALS, vocabulary_of

MARKS = {",": 14_053, ".": 9_644, "-": 261, "'": 204, "?": 75, "!": 45, "..": 1}


@pytest.mark.parametrize(
    "text, phones",
    [
        ("Hello, you.", "HH AH0 L OW1 | , | Y UW1 | ."),
        ("CAF\u00c9 (sic)", "K AH0 F EY1 | S IH1 K"),
        ("wait.. no", "W EY1 T | .. | N OW1"),
        ("'tis - well", "' | T IH1 Z | - | W EH1 L"),
        ("wool-washing", "W UH1 L W AA1 SH IH0 NG"),  # in parts
        ("Oswald's", "AO1 Z W AO0 L D Z"),
        ("b", "B IY1"),
    ],
)
def test_texts_are_spoken_by_the_rules(text, phones):
    assert " ".join(Phonemes().spoken(text)) == phones


@pytest.mark.parametrize(
    "stem, ending",
    [("B AA1 S", "IH0 Z"), ("B AA1 CH", "IH0 Z"), ("B AA1 T", "S"), ("B AA1 D", "Z"), ("B AA1", "Z")],
)
def test_the_s_of_a_known_stem_sounds_as_its_last_phone_demands(stem, ending):
    speaker = Phonemes({"zxq": stem})
    assert " ".join(speaker.word("zxq's")) == " ".join(speaker.word("zxqs")) == f"{stem} {ending}"


def test_what_nothing_knows_is_spelled():
    assert " ".join(Phonemes().word("xqa")) == "EH1 K S K Y UW1 EY1"


def test_a_lexicon_of_ones_own_comes_before_the_dictionary_and_serves_without_it(monkeypatch):
    monkeypatch.setattr("longspan.datasets.speech.phonemes._cmudict", dict)
    assert Phonemes({"hello": "HH EH1 L OW0"}).spoken("Hello!") == ["HH", "EH1", "L", "OW0", "|", "!"]


@pytest.mark.parametrize(
    "text, phones",
    [
        ("One, two.", "W AH1 N sp T UW1"),
        ("One; two -- three!", "W AH1 N sp T UW1 sp TH R IY1"),
        ("... one two's", "W AH1 N T UW1 Z"),
        ("well-known 'one'", "W EH1 L N OW1 N W AH1 N"),
    ],
)
def test_aligned_phones_have_a_pause_where_marks_inside_ask_for_one(text, phones):
    assert " ".join(Phonemes().aligned(text)) == phones


@given(st.text(alphabet="ab'-.,?! ;\u00e9z", max_size=30))
def test_no_text_gives_anything_but_phones_marks_and_pauses(text):
    speaker = Phonemes()
    assert all(token in PHONES or token == "|" or set(token) <= set("'-.,?!") for token in speaker.spoken(text))
    aligned = speaker.aligned(text)
    assert all(token in PHONES or token == "sp" for token in aligned)
    assert aligned == [] or (aligned[0] != "sp" != aligned[-1] and "sp sp" not in " ".join(aligned))


def test_letters_and_digits_that_no_rule_pronounces_are_found():
    assert unspeakable("caf\u00e9 (one) \u201ctwo\u201d") == ""
    assert unspeakable("4 men, \u044f 44") == "4\u044f"


@pytest.mark.parametrize("line", ["word", "word K AE1", "word\t", "word\tK QQ9 T"])
def test_a_lexicon_line_that_is_none_is_named(line):
    with pytest.raises(CorruptFile, match=r"lexicon.tsv, line 1: expected a word, a tab and its ARPAbet phones"):
        read_lexicon([(line, "lexicon.tsv, line 1")])


@pytest.fixture(scope="module")
def transcripts():
    def read(path):
        rows = (line.split("|") for line in lzma.decompress(path.read_bytes()).decode().split("\n"))
        return [(row[0], row[2]) for row in rows if len(row) == 3]

    return read


def test_the_transcripts_of_ljspeech_have_the_counted_marks_and_81_types(reference, transcripts):
    rows = transcripts(reference("ljspeech/metadata.csv.xz"))
    assert len(rows) == 13_100
    speaker = Phonemes()
    train = [speaker.spoken(text) for name, text in rows if name[:5] not in ("LJ001", "LJ002", "LJ003")]
    counts = Counter(token for phones in train for token in phones)
    assert {mark: counts[mark] for mark in MARKS} == MARKS
    vocabulary = vocabulary_of(train)
    assert len(vocabulary) == 81
    assert set(vocabulary) == set(SPECIALS) | PHONES | {"|"} | set(MARKS)
    assert [counts[token] for token in vocabulary[4:]] == sorted(counts.values(), reverse=True)
