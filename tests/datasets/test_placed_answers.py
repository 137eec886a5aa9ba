"""The rules of the diagnostic data: what each position of a row holds, and what is queried."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.datasets import copying, get, needle, placed_answers, recall


def rows_of(name, data, count=8, seed=0):
    dataset = get(name)
    kind = dataset.kinds(data, "train")[0]
    return dataset.draw(data, kind, count, np.random.default_rng(seed))


@given(st.integers(1, 6), st.integers(0, 10), st.sampled_from(["all", "values"]), st.integers(0, 99))
def test_every_key_is_asked_once_behind_the_context_and_answered_by_its_value(pairs, room, fillers, seed):
    length = 4 * pairs + 2 * room
    data = recall.Data(vocabulary=32, trained=((length, pairs, 1),), tested=((length, pairs),), fillers=fillers)
    for tokens, answers in zip(*rows_of("recall", data, seed=seed), strict=True):
        keys, values = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        places = np.flatnonzero(answers)
        assert len(set(keys)) == len(set(values)) == len(places) == pairs
        assert keys.min() >= 1
        assert keys.max() < 16 <= values.min()
        assert places.min() >= 2 * pairs
        assert not np.any(places % 2)
        assert sorted(zip(tokens[places], answers[places], strict=True)) == sorted(zip(keys, values, strict=True))
        if fillers == "values":
            assert np.isin(tokens, keys).sum() == 2 * pairs
        assert tokens.min() >= 1
        assert tokens.max() < 32


def test_a_small_power_asks_early_and_a_power_of_one_anywhere():
    def middle(power):
        data = recall.Data(trained=((256, 4, 1),), tested=((256, 4),), vocabulary=64, power=power)
        return np.nonzero(rows_of("recall", data, 500)[1])[1].mean()

    assert middle(0.01) < 60
    assert middle(1.0) == pytest.approx((8 + 254) / 2, abs=10)


def test_draws_with_weights_are_those_of_one_draw_after_another():
    weights = np.array([1.0, 2.0, 5.0])
    times = np.random.default_rng(0).exponential(size=(40_000, 3)) / weights
    first = recall.first_drawn(times, 2)
    assert np.bincount(first[:, 0]) / 40_000 == pytest.approx(weights / 8, abs=0.01)
    after = first[first[:, 0] == 2, 1]  # of what is left
    assert np.bincount(after, minlength=3)[:2] / len(after) == pytest.approx([1 / 3, 2 / 3], abs=0.015)


@given(st.integers(1, 9), st.integers(0, 20), st.booleans(), st.integers(0, 99))
def test_the_symbols_before_the_separator_are_the_answers_behind_it(k, blanks, selective, seed):
    length = 2 * k + 1 + blanks
    data = copying.Data(length=length, tested=(length,), symbols=k, selective=selective)
    for tokens, answers in zip(*rows_of("copying", data, seed=seed), strict=True):
        front, back = tokens[: length - k - 1], tokens[length - k :]
        assert tokens[length - k - 1] == copying.SEPARATOR
        assert (back == copying.ASK).all()
        assert front[front <= copying.SYMBOLS].tolist() == answers[length - k :].tolist()
        assert (front == copying.BLANK).sum() == blanks
        assert not answers[: length - k].any()
        if not selective:
            assert (front[:k] <= copying.SYMBOLS).all()


def test_selective_symbols_lie_anywhere():
    data = copying.Data(length=40, tested=(40,), symbols=4, selective=True)
    used = (rows_of("copying", data, 400)[0][:, :35] <= copying.SYMBOLS).mean(axis=0)
    assert used == pytest.approx(np.full(35, 4 / 35), abs=0.07)


@given(st.integers(150, 400), st.floats(0, 1), st.integers(1, 4), st.integers(0, 2), st.integers(0, 99))
def test_the_number_asked_for_is_in_one_sentence_of_the_row(length, depth, digits, distractors, seed):
    data = needle.Data(trained=(length,), tested=(length,), digits=digits, distractors=distractors)
    prose = b"it was a dark and stormy night " * 40
    row = needle.make_row(data, length, depth, prose, np.random.default_rng(seed))
    assert len(row) == length + 1
    question, number = row[:-digits], row[-digits:]
    asked = question[question.rindex(b"The number of ") :]
    assert number.isdigit()
    assert row.count(asked + number + b". ") == 1
    assert row.count(b"The number of ") == 2 + distractors
    place = row.index(asked + number + b". ")
    assert place == 0 or row[place - 1 : place] == b" "
    if not distractors:
        assert place == pytest.approx(depth * (length - len(asked) * 2 - 2 * digits), abs=10)


def test_all_digits_but_the_last_are_read_before_the_next_is_asked():
    data = needle.Data(trained=(200,), tested=(200,))
    tokens, answers = rows_of("needle", data)
    assert (answers[:, -4:-1] == tokens[:, -3:]).all()
    assert not answers[:, :-4].any()


SMALL = {
    "recall": recall.Data(
        train=30, valid=10, test=20, vocabulary=64, trained=((16, 2, 2), (24, 3, 1)), tested=((32, 4),)
    ),
    "copying": copying.Data(train=30, valid=10, test=20, length=16, symbols=3, tested=(16, 20)),
    "needle": needle.Data(train=8, valid=2, test=4, trained=(100,), tested=(100, 150), depths=(0.0, 1.0), digits=2),
}


@pytest.mark.parametrize("name, data", SMALL.items())
def test_splits_hold_every_kind_in_its_share_and_no_row_twice(name, data, tmp_path):
    dataset = get(name)
    splits = dataset.load(data, root=tmp_path)
    names = dataset.names(data)
    rows = []
    for split in ("train", "valid", "test"):
        own = getattr(splits, split)
        kinds = dataset.kinds(data, split)
        found = [names[label] for label in own.labels]
        expected = placed_answers.counts_of(kinds, getattr(data, split))
        assert [found.count(kind.name) for kind in kinds] == expected
        assert {2 * kind.settings[0] for kind in kinds} == set(own.lengths.tolist())
        rows += [own.example(i).tobytes() for i in range(len(own))]
    assert len(set(rows)) == len(rows)
    assert splits.train.tokens.dtype == dataset.dtype
    again = dataset.load(data, root=tmp_path / "again")
    assert splits.sha256 == again.sha256
    assert not dataset.verify(data, root=tmp_path)


@pytest.mark.parametrize("name", SMALL)
def test_samples_show_the_answer_where_it_is_asked(name):
    samples = get(name).samples(SMALL[name], count=2)
    assert all("?" in sample.content for sample in samples)


def test_more_rows_than_there_are_is_one_sentence(tmp_path):
    data = copying.Data(train=300, valid=1, test=1, length=3, symbols=1, tested=(3,))
    with pytest.raises(UsageError, match="asked for 300 different rows of 3, but there seem to be only 16"):
        get("copying").load(data, root=tmp_path)


def test_generated_rows_have_no_files_to_import(tmp_path):
    with pytest.raises(UsageError, match="has no files to import"):
        get("recall").import_from(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: recall.Data(trained=((15, 2, 1),)),
        lambda: recall.Data(trained=((16, 5, 1),)),
        lambda: recall.Data(vocabulary=8),
        lambda: recall.Data(power=0.0),
        lambda: copying.Data(length=4),
        lambda: needle.Data(depths=(1.5,)),
        lambda: needle.Data(trained=(40,)),
        lambda: needle.Data(distractors=99),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(UsageError):
        make()
