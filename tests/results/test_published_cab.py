"""CAB's tables: as printed, its index recomputed from them, and every misprint found by the program."""

import re
import statistics
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import published
from longspan.published.contradictions import contradictions, fitting_pool
from longspan.published.index_audit import check, index_checks, known, score_rows
from longspan.published.index_constants import index_constants
from longspan.published.measurement import read_measurement
from tests.results.frozen_tables import frozen

PAPER = Path(__file__).parents[2] / "../shared/papers/cab.txt"
PATTERNS = index_constants().patterns
NUMBER = re.compile(r"-?\d+(\.\d+)?")
CHECKS = {(found.pattern, found.row, found.task): found for found in index_checks()}


def as_printed(table):
    for row in table.rows:
        columns = [column.name for column in table.columns]
        without = {"ci", *row.failed}
        yield (row.title, *(row.printed.get(name, "-" if name in without else "") for name in columns))


@pytest.mark.parametrize("name", frozen("cab_tables.tsv"))
def test_every_row_is_as_printed(name):
    assert list(as_printed(published.measured(name))) == frozen("cab_tables.tsv")[name]


@pytest.mark.skipif(not PAPER.exists(), reason="the text of the paper is not here")
def test_the_frozen_tables_are_those_of_the_paper():
    text = re.sub(r"†|\$\\mathrm\{(\w+)\}\^\\dagger\$", r"\1", PAPER.read_text())
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # 2,361 tokens
    lines = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines() if "\t" in line]
    found = {(name, *filter(NUMBER.fullmatch, cells)) for name, *cells in lines}
    for name, rows in frozen("cab_tables.tsv").items():
        for title, *cells in rows:
            assert ({"GPU hours": "GPU hour"}.get(title, title), *filter(NUMBER.fullmatch, cells)) in found, name


# ---------------------------------------------------------------------------------------------------------------- index


def test_an_index_is_printed_for_every_row_without_a_failed_run_and_for_no_other():
    for pattern in PATTERNS.values():
        for row in score_rows(pattern):
            assert ("ci" in row.printed) == (not row.failed), row.title


@pytest.mark.parametrize("key", CHECKS, ids=str)
def test_a_printed_number_of_the_index_is_reproduced_to_what_its_digits_allow(key):
    """Tolerances of the specification, given what other sources supply: four digits, settings, 31.53."""
    found = CHECKS[key]
    pattern, _, task = key
    loose = {("causal_self", "tts"): 0.027, ("noncausal_self", "tts"): 0.0075}
    loose |= {("causal_self", None): 0.009, ("noncausal_self", None): 0.0025}
    assert found.from_sources == pytest.approx(float(found.printed), abs=loose.get((pattern, task), 0.002))


def test_nine_indices_follow_from_the_printed_scores_and_six_from_other_sources():
    kinds = [found.kind for found in CHECKS.values() if found.task is None]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"printed": 9, "sources": 6, "rounding": 6, "error": 1}


def test_the_one_index_that_contradicts_its_scores_is_that_of_causal_abc():
    wrong = {key for key, found in CHECKS.items() if found.kind == "error"}
    assert wrong == {("causal_self", "ABC", "lm"), ("causal_self", "ABC", None)}
    found = CHECKS["causal_self", "ABC", None]
    assert (round(found.from_print, 3), found.why) == (-0.526, "it needs a LM PPL of 31.53, 29.13 is printed")


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=lambda pattern: pattern.code)
def test_an_index_that_is_off_by_more_than_rounding_is_an_error(pattern):
    for row in score_rows(pattern):
        for off in (-0.1, 0.1):
            if "ci" in row.printed:
                printed = f"{float(row.printed['ci']) + off:.3f}"
                found = check(pattern, row, None, printed, pattern.tasks)
                assert found.kind == "error", (row.title, off)


@pytest.mark.parametrize(
    "words",
    [
        "CS, ABC: the LM score is printed as -1.117, but the printed scores give -0.828",
        "NS, R-L: the released mean is 31.96889, the printed scores give 31.95889",
        "CS, the constants of Table 8 leave out S4D",
        "vanilla: TrTTS MSD is printed as 2.199 and as 2.198; 2.1985 reads as either",
        "CS, ABC: a perplexity of 29.13 is printed in Table 3b, Figure 3c shows 31.5",
        "NS, Table 12, Sum: 0.715 is printed for efficient attention, Table 6 has 2.617 for local",
    ],
)
def test_the_program_finds_the_misprint(words):
    assert any(words in found.text for found in contradictions())


def test_nothing_else_is_called_a_misprint():
    assert len(contradictions()) == 7


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=lambda pattern: pattern.code)
def test_the_published_constants_are_those_of_the_pool_that_fits_them(pattern):
    pool = fitting_pool(pattern)
    for measure in pattern.measures:
        values = [value for row in score_rows(pattern) if row.title in pool and (value := known(row, measure))]
        scale = measure.scales["cab-2023"]
        assert statistics.fmean(values) == pytest.approx(scale.mean, abs=0.02 * scale.std)
        assert statistics.stdev(values) == pytest.approx(scale.std, rel=0.02)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=lambda pattern: pattern.code)
def test_the_recomputed_constants_are_those_of_the_pool_that_the_paper_names(pattern):
    for measure in pattern.measures:
        rows = [row for row in score_rows(pattern) if row.title in index_constants().pool]
        values = [value for row in rows if (value := known(row, measure)) is not None]
        scale = measure.scales["longspan"]
        assert (scale.mean, scale.std) == pytest.approx((statistics.fmean(values), statistics.stdev(values)), rel=1e-5)


def test_both_sets_of_constants_are_frozen():
    constants = index_constants()
    assert constants.versions == {"cab-2023": 1, "longspan": 1}
    lm = constants.patterns["causal_self"].measure("lm_perplexity").scales
    assert [(scale.mean, scale.std) for scale in lm.values()] == [(22.26, 8.29944), (20.64, 7.5112)]


# -------------------------------------------------------------------------------------------------------------- sources

COLUMN = {"name": "x", "title": "x", "quantity": "x", "unit": "x"}


def a_table(printed, elsewhere):
    row = {"title": "one", "printed": {"x": printed}, "elsewhere": {"x": {"value": elsewhere, "source": "elsewhere"}}}
    words = dict.fromkeys(("name", "title", "suite", "paper", "source", "note"), "")
    return read_measurement(words | {"columns": [COLUMN], "rows": [row]})


@given(st.decimals(-100, 100, places=4))
def test_a_number_never_contradicts_itself_rounded_or_cut_off(exact):
    for rounding in (ROUND_HALF_EVEN, ROUND_HALF_UP, ROUND_DOWN):
        table = a_table(f"{exact.quantize(Decimal('0.001'), rounding):f}", f"{exact:f}")
        assert not table.flags()
        assert table.rows[0].known("x") == float(exact)


def test_a_number_that_another_source_contradicts_is_flagged():
    (flag,) = a_table("29.13", "31.53").flags()
    assert (flag.kind, flag.printed) == ("doubt", "29.13")
