"""ListOps: labels are the values, lengths stay within bounds, statistics match the original generator."""

import csv
import lzma
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import get, listops

OPERATORS = ["[MAX", "[MED", "[MIN", "[SM"]
EXPRESSIONS = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), st.lists(inner, min_size=2, max_size=10)),
    max_leaves=40,
)


def written(tree, official: bool) -> str:
    """The plain form, or the official one with a pair of round brackets around every two neighbours."""
    if isinstance(tree, int):
        return str(tree)
    operator, arguments = tree
    if not official:
        return " ".join([operator, *(written(each, official) for each in arguments), "]"])
    text = operator
    for part in [*(written(each, official) for each in arguments), "]"]:
        text = f"( {text} {part} )"
    return text


def value(tree) -> int:
    if isinstance(tree, int):
        return tree
    operator, arguments = tree[0], sorted(value(each) for each in tree[1])
    middle = (arguments[(len(arguments) - 1) // 2] + arguments[len(arguments) // 2]) // 2
    return {"[MAX": arguments[-1], "[MIN": arguments[0], "[MED": middle, "[SM": sum(arguments) % 10}[operator]


def operator_depth(ids: np.ndarray) -> int:
    opens = ((ids >= listops.MAX) & (ids <= listops.SM)).astype(int)
    return int(np.cumsum(opens - (ids == listops.CLOSE)).max())


@given(EXPRESSIONS)
def test_encoding_and_decoding_are_inverse_and_round_brackets_carry_nothing(tree):
    plain = written(tree, official=False)
    assert listops.decode(listops.encode(plain)) == plain
    np.testing.assert_array_equal(listops.encode(written(tree, official=True)), listops.encode(plain))
    np.testing.assert_array_equal(listops.encode(plain.replace("]", "X") + "\r"), listops.encode(plain))


@given(EXPRESSIONS)
def test_evaluation_agrees_with_an_independent_one(tree):
    assert listops.evaluate(listops.encode(written(tree, official=False))) == value(tree)


@settings(deadline=None)
@given(st.one_of(EXPRESSIONS.map(lambda tree: written(tree, official=False)), st.text("123[]MAXSMIN ", max_size=30)))
def test_the_compiled_evaluation_agrees_with_the_law(text):
    ids = listops.encode(text)
    try:
        law = listops.evaluate(ids)
    except ValueError:
        law = -1
    assert listops.value_of(ids) == law


@pytest.mark.parametrize("text", ["", "[MAX 2 3", "2 3 ]", "]", "[MAX ]", "1 2", "[MAX ? 2 ]"])
def test_what_is_not_an_expression_has_no_value(text):
    with pytest.raises(ValueError, match="not"):
        listops.evaluate(listops.encode(text))


def test_the_vocabulary_is_sorted_and_has_seventeen_ids():
    assert list(listops.SYMBOLS) == sorted(listops.SYMBOLS)
    assert (listops.PAD, listops.UNKNOWN, listops.VOCAB) == (0, 16, 17)
    assert listops.encode("[MAX 2 [NOPE ]").tolist() == [11, 3, 16, 15]
    constants = [listops.MAX, listops.MED, listops.MIN, listops.SM, listops.CLOSE]
    assert listops.encode("[MAX [MED [MIN [SM ]").tolist() == constants


@settings(max_examples=20, deadline=None)
@given(
    longer_than=st.integers(3, 40),
    room=st.integers(10, 80),
    max_depth=st.integers(6, 10),
    max_args=st.integers(5, 10),
    seed=st.integers(0, 2**32),
)
def test_every_label_is_the_value_and_every_length_is_inside(longer_than, room, max_depth, max_args, seed):
    data = listops.Data(1, 1, 1, longer_than, longer_than + room, max_depth, max_args)
    shard = listops.generate(data, 20, seed)
    assert all(longer_than < length < longer_than + room for length in shard.lengths)
    assert [listops.evaluate(row) for row in shard.rows()] == shard.labels.tolist()
    assert max(operator_depth(row) for row in shard.rows()) <= max_depth - 1


def test_the_compiled_generator_makes_the_same_data_as_the_interpreted_one():
    for data in (listops.Data(), listops.Data(longer_than=50, shorter_than=128, max_depth=5, max_args=8)):
        fast, slow = listops.generate(data, 12, 7), listops.generate(data, 12, 7, interpreted=True)
        np.testing.assert_array_equal(fast.tokens, slow.tokens)
        np.testing.assert_array_equal(fast.lengths, slow.lengths)
        np.testing.assert_array_equal(fast.labels, slow.labels)


def test_a_bound_that_only_one_length_meets_stays_inside_its_buffer():
    shard = listops.generate(listops.Data(longer_than=3, shorter_than=5), 500, 0)
    assert set(shard.lengths) == {4}


def test_the_full_setting_has_the_statistics_of_the_specification():
    """Length mean 1044 and median 966 of 3,000 samples; our 5,000 have a standard error of about 6 for the mean."""
    shard = listops.generate(listops.Data(), 5_000, 11)
    assert abs(shard.lengths.mean() - 1044) < 40  # their standard error is 8, ours 6: four combined standard errors
    assert abs(np.median(shard.lengths) - 966) < 60
    assert shard.lengths.min() >= 501
    assert shard.lengths.max() <= 1999
    depths = [operator_depth(row) for row in shard.rows()[:1_000]]
    assert np.mean(np.array(depths) == 9) > 0.98


def test_one_tree_in_twelve_is_accepted():
    """The specification counts 8.4 % of drawn trees; standard error of 20,000 draws is 0.2 %."""
    data, drawn = listops.Data(), 20_000
    room = np.empty(drawn * 2_000, np.uint8), np.zeros(drawn, np.int64), np.zeros(drawn, np.uint8)
    rng = np.random.Generator(np.random.PCG64(3))
    bounds = (data.longer_than, data.shorter_than, data.max_depth, data.max_args)
    accepted = listops.compiled_once(listops._grow)(rng, *room, drawn, *bounds)
    assert abs(accepted / drawn - 0.084) < 0.008


def test_lengths_labels_and_symbols_look_like_the_reference_sample(reference):
    rows = [
        row for split in ("train", "val", "test") for row in read_reference(reference(f"listops/basic_{split}.tsv.xz"))
    ]
    ours = listops.generate(listops.Data(), 5_000, 4)
    theirs = [listops.encode(source) for source, _ in rows]
    lengths = np.array([len(ids) for ids in theirs])
    error = np.hypot(lengths.std() / len(lengths) ** 0.5, ours.lengths.std() / len(ours.lengths) ** 0.5)
    assert abs(lengths.mean() - ours.lengths.mean()) < 4 * error
    assert abs(lengths.std() - ours.lengths.std()) < 0.1 * lengths.std()
    counts = [np.bincount(np.concatenate(rows), minlength=17) / sum(map(len, rows)) for rows in (theirs, ours.rows())]
    np.testing.assert_allclose(*counts, atol=0.004)  # a symbol's share varies by about 0.001 over 1,000 expressions
    labels = [np.bincount(x, minlength=10) / len(x) for x in ([int(target) for _, target in rows], ours.labels)]
    np.testing.assert_allclose(*labels, atol=0.05)  # four standard errors of a share of 0.17 in 1,000


def test_the_reference_sample_obeys_the_law_of_evaluation(reference):
    for source, target in read_reference(reference("listops/basic_val.tsv.xz")):
        assert listops.evaluate(listops.encode(source)) == int(target)


def read_reference(path):
    with lzma.open(path, "rt", encoding="utf-8", newline="") as handle:
        return list(csv.reader(handle, delimiter="\t"))[1:]


def test_the_reference_sample_can_be_imported_and_is_then_preferred(reference, tmp_path):
    folder = reference("listops/basic_val.tsv.xz").parent
    data = listops.Data(train=600, valid=200, test=200)
    splits = get("listops").import_from(folder, data, root=tmp_path)
    assert splits.variant == "imported"
    assert splits.counts == {"train": 600, "valid": 200, "test": 200}
    assert splits.train.lengths.min() == 504
    assert get("listops").load(data, root=tmp_path).sha256 == splits.sha256
    assert get("listops").verify(data, root=tmp_path) == []


TWO_ROWS = listops.Data(2, 2, 2, longer_than=0, shorter_than=50)


def official_folder(path, rows, ending="\r\n"):
    path.mkdir(parents=True)
    for name in ("train", "val", "test"):
        text = ending.join(["Source\tTarget", *(f"{source}\t{target}" for source, target in rows)]) + ending
        (path / f"basic_{name}.tsv").write_bytes(text.encode())
    return path


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_official_files_are_read_with_either_line_ending(tmp_path, ending):
    folder = official_folder(
        tmp_path / "a/listops-1000", [("( ( ( [MAX 2 ) 3 ) ] )", 3), ("( ( [SM 9 ) ] )", 9)], ending
    )
    for place in (folder, folder.parent):
        splits = get("listops").import_from(place, TWO_ROWS, root=tmp_path / "data")
        assert listops.decode(splits.valid.example(0)) == "[MAX 2 3 ]"
        assert splits.valid.labels.tolist() == [3, 9]


@pytest.mark.parametrize(
    "row",
    [
        ("( [MAX 2 ) ] )", 12),
        ("( [FOO 2 ) ] )", 2),
        ("", 2),
        ("2\t2", 2),
        ("( ( ( [MAX 2 ) 3 ) ] )", 2),  # it is 3
        ("( ( [MAX 2 ) 3 )", 3),  # never closed
        (f"( ( ( [MAX 2 ) {'3 ' * 50}) ] )", 3),  # longer than the settings allow
    ],
)
def test_rows_that_are_not_listops_are_refused_with_their_line(tmp_path, row):
    folder = official_folder(tmp_path / "in", [("( ( [MAX 2 ) ] )", 2), row])
    with pytest.raises(CorruptFile, match="line 3"):
        get("listops").import_from(folder, TWO_ROWS, root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_other_counts_and_missing_files_are_answered_with_a_sentence(tmp_path):
    folder = official_folder(tmp_path / "in", [("( ( [MAX 2 ) ] )", 2)])
    with pytest.raises(UsageError, match=r"2 / 2 / 2 expressions, there are 1 / 1 / 1"):
        get("listops").import_from(folder, TWO_ROWS, root=tmp_path)
    with pytest.raises(DataMissing, match=r"basic_train\.tsv"):
        get("listops").import_from(tmp_path, root=tmp_path)


@pytest.mark.parametrize(
    "changes", [{"train": 0}, {"longer_than": 100, "shorter_than": 101}, {"max_depth": 1}, {"max_args": 1}]
)
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(UsageError):
        replace(listops.Data(), **changes)


def test_bounds_that_no_expression_meets_end_with_a_sentence():
    with pytest.raises(UsageError, match="widen the bounds"):
        listops.generate(listops.Data(longer_than=500, max_depth=2, max_args=2), 1, 0)


def test_samples_are_readable_lines(small_listops):
    for sample in get("listops").samples(small_listops, 5, seed=1):
        assert listops.evaluate(listops.encode(sample.content)) == sample.label
    with pytest.raises(UsageError, match="cannot be drawn"):
        get("listops").draw_samples(small_listops, 5, "x.png")
