"""ROUGE: the worked cases of its paper, counted by hand, and sentences split by the stated rule."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.metrics.rouge import rouge, sentences

GUNMAN = "police killed the gunman"


def score(hypothesis, reference, name):
    return float(rouge([hypothesis], [reference], [name])[name][0])


def f(matches, hypothesis, reference):
    precision, recall = matches / hypothesis, matches / reference
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(  # W04-1013, section 3: which of two sentences is nearer, seen by pairs and by subsequences
    "hypothesis, name, expected",
    [
        ("police ended the gunman", "rouge1", 3 / 4),
        ("police ended the gunman", "rouge2", 1 / 3),
        ("police ended the gunman", "rougeL", 3 / 4),
        ("the gunman ended police", "rouge1", 3 / 4),
        ("the gunman ended police", "rouge2", 1 / 3),
        ("the gunman ended police", "rougeL", 2 / 4),  # "the gunman"
        ("the gunman police killed", "rougeL", 2 / 4),  # one subsequence or the other, not both
        ("the gunman police killed", "rouge2", 2 / 3),
        (GUNMAN, "rouge2", 1.0),
        ("gunman", "rouge1", f(1, 1, 4)),
        ("gunman", "rouge2", 0.0),  # it has no bigram
        ("nothing alike here today", "rougeL", 0.0),
    ],
)
def test_the_papers_sentences_get_what_counting_by_hand_gives(hypothesis, name, expected):
    assert score(hypothesis, GUNMAN, name) == pytest.approx(expected)


def test_the_summary_level_takes_the_union_of_subsequences_over_sentences():
    """W04-1013, section 3.2: w1 w2 from one sentence and w1 w3 w5 from another make four of five words."""
    union = score("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", "rougeL")
    assert union == pytest.approx(f(4, 10, 5))
    assert score("w1 w3 w8 w9 w5\nw1 w2 w6 w7 w8", "w4 w3 w5\nw2 w9", "rougeL") == pytest.approx(f(4, 10, 5))


def test_the_order_of_sentences_does_not_matter_but_that_of_words_does():
    assert score("w1 w2\nw3 w4", "w3 w4\nw1 w2", "rougeL") == 1.0
    assert score("W1 w2. W3 w4.", "W3 w4. W1 w2.", "rougeL") == 1.0, "sentences are told apart within a line"
    assert score("w1 w2 w3 w4", "w3 w4 w1 w2", "rougeL") == pytest.approx(2 / 4)


def test_a_word_counts_as_often_as_the_rarer_side_has_it():
    assert score("the the the the", "the cat the dog", "rouge1") == pytest.approx(2 / 4)
    assert score("a b a b a", "a b c a b", "rouge2") == pytest.approx(2 / 4)  # "a b" twice; "b a" never in both


def test_words_are_stems_of_letters_and_digits_in_lower_case():
    assert score("Dogs were RUNNING!", "dog was runs", "rouge1") == pytest.approx(2 / 3)  # running, runs; dogs, dog
    assert score("it costs 41.5", "It costs: 41 5", "rouge1") == 1.0
    assert score("is was", "i wa", "rouge1") == 0.0, "words of at most three letters keep their endings"


def test_an_empty_hypothesis_or_reference_scores_nothing():
    for name in ("rouge1", "rouge2", "rougeL"):
        assert score("", GUNMAN, name) == score(" \n?!", GUNMAN, name) == score(GUNMAN, "", name) == 0.0


@given(st.lists(st.tuples(st.text("abc .\n", max_size=30), st.text("abc .\n", max_size=30)), max_size=4))
def test_scores_are_shares_symmetric_and_one_for_the_same_words(pairs):
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    there, back, same = rouge(left, right), rouge(right, left), rouge(left, left)
    for name in ("rouge1", "rouge2"):
        np.testing.assert_allclose(there[name], back[name])
    for name, values in there.items():
        assert values.shape == (len(pairs),)
        assert ((values >= 0) & (values <= 1)).all()
        assert set(same[name].round(12)) <= {0.0, 1.0}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("First line\nSecond line", ["First line", "Second line"]),
        ("", []),
        (" \n ", []),
        ("It rose 3.5 percent. Then it fell.", ["It rose 3.5 percent.", "Then it fell."]),
        ('He said "Stop." She did not.', ['He said "Stop."', "She did not."]),
        ("Mr. Smith met J. Doe. They spoke.", ["Mr. Smith met J. Doe.", "They spoke."]),
        ("The U.S. Senate voted.", ["The U.S. Senate voted."]),
        ("Wait... what? yes", ["Wait... what? yes"]),
        ("Done (at last.) 12 left.", ["Done (at last.)", "12 left."]),
        ("Really?! No.", ["Really?!", "No."]),
        ("He earns no. He asks dr. Who.", ["He earns no.", "He asks dr. Who."]),
        ("End.\u201d \u201cNext one.\u201d", ["End.\u201d", "\u201cNext one.\u201d"]),
    ],
)
def test_sentences_end_where_the_rule_says(text, expected):
    assert sentences(text) == expected


@given(st.text('aB.!? \n")', max_size=60))
def test_splitting_loses_nothing_but_white_space(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_without_rouge_score_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UsageError, match="pip install rouge-score"):
        rouge(["a"], ["a"])
