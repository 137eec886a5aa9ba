"""Efficiency lengths: CAB's numbers to the integer, and a sound method that never claims more than was measured."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan.analysis import Evidence
from longspan.analysis.comparable import ReadingSummary
from longspan.analysis.crossover import answer, cab_2023, compare, compare_file, measured
from longspan.analysis.parabola import upper_tail
from longspan.cli import app
from longspan.core.errors import CorruptFile, DataMissing, UnknownName, UsageError
from tests.analysis.answers import lab_cards
from tests.results.factory import make_core

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
PRINTED = {  # the measurements that spec/cab.md section 7 quotes from the paper's repository
    "vanilla": {
        "time_ms": (0.472, 0.628, 0.721, 0.981, 3.67, 18.437),
        "memory_mib": (81, 265, 952, 3604, 14020, 55300),
    },
    "abc": {"time_ms": (0.648, 0.59, 0.602, 0.91, 1.006, 1.509), "memory_mib": (42, 80, 156, 308, 612, 1220)},
}


def printed(mechanism, column):
    return dict(zip(LENGTHS, PRINTED[mechanism][column], strict=True))


@pytest.fixture
def table(tmp_path):
    """The printed measurements as a CSV file."""
    lines = ["mechanism,length,time_ms,memory_mib"]
    for mechanism, columns in PRINTED.items():
        rows = zip(LENGTHS, columns["time_ms"], columns["memory_mib"], strict=True)
        lines += [",".join(map(str, (mechanism, *row))) for row in rows]
    path = tmp_path / "printed.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def samples(values, lengths=LENGTHS, **spread):
    return {n: ReadingSummary(float(value), **spread) for n, value in zip(lengths, values, strict=True)}


# --------------------------------------------------------------------------------------------------------- CAB's method


def test_the_time_of_abc_crosses_at_1877_with_the_published_fit():
    found = cab_2023(printed("vanilla", "time_ms"), printed("abc", "time_ms"), "time")
    assert round(found.length) == 1877
    assert found.length == pytest.approx(1877.26, abs=0.01)
    assert round(found.r2, 4) == 0.9646


def test_the_memory_of_abc_crosses_at_70_although_nothing_was_measured_there():
    found = cab_2023(printed("vanilla", "memory_mib"), printed("abc", "memory_mib"), "memory")
    assert round(found.length) == 70
    assert found.r2 == pytest.approx(1)
    assert "outside the measured lengths 256 to 8,192" in found.words


def test_only_times_leave_256_out():
    found = cab_2023(printed("vanilla", "time_ms"), printed("abc", "time_ms"), "energy")
    assert round(found.length) == 1906
    assert round(found.r2, 3) == 0.963


@given(a=st.floats(1e-9, 1e-6), gap=st.floats(0, 100), root=st.floats(300, 50_000), slope=st.floats(-1e-3, 1e-3))
def test_the_fits_return_the_root_they_were_made_from(a, gap, root, slope):
    """A parabola minus a line is zero at a known root; its other root is smaller."""
    low = root - gap - 1
    baseline = {n: a * (n - root) * (n - low) + slope * n for n in LENGTHS}
    found = cab_2023(baseline, {n: slope * n for n in LENGTHS}, "memory")
    assert found.status == "crosses"
    assert found.length == pytest.approx(root, rel=1e-3)


def test_fits_that_do_not_meet_say_none():
    flat = cab_2023({n: 1e-6 * n**2 + 100 for n in LENGTHS}, {n: 1e-3 * n for n in LENGTHS}, "memory")
    assert (flat.status, flat.length) == ("none", None)
    assert "cheaper at every length" in flat.words
    bent = cab_2023({n: 100 - 1e-6 * n**2 for n in LENGTHS}, {n: 1.0 * n for n in LENGTHS}, "memory")
    assert bent.status == "none"
    assert "the baseline is not quadratic" in bent.words
    assert "4 lengths of the baseline" in cab_2023({256: 1.0}, {256: 1.0}, "time").words


@given(
    slope=st.floats(1e-9, 1e6),
    start=st.floats(0, 1e9),
    cheaper=st.floats(0.1, 10),
    lengths=st.lists(st.integers(1, 1 << 17), min_size=4, max_size=9, unique=True),
)
def test_a_baseline_that_is_a_straight_line_but_for_rounding_has_no_crossover(slope, start, cheaper, lengths):
    baseline = {n: slope * n + start for n in sorted(lengths)}
    found = cab_2023(baseline, {n: cheaper * slope * n for n in sorted(lengths)}, "memory")
    assert (found.status, found.length) == ("none", None)
    assert "the baseline is not quadratic" in found.words


def test_a_bend_within_the_noise_of_the_readings_has_no_crossover():
    noise = (0.3, -0.2, 0.25, -0.35, 0.1, 0.2)
    straight = {n: 1.0 + n / 1000 + wobble for n, wobble in zip(LENGTHS, noise, strict=True)}
    curved = {n: value + (n / 1000) ** 2 for n, value in straight.items()}
    line = {n: 2.0 + n / 900 for n in LENGTHS}
    assert "the baseline is not quadratic" in cab_2023(straight, line, "memory").words
    assert cab_2023(curved, line, "memory").status == "crosses"


@pytest.mark.parametrize(
    "free, quantile", [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (30, 2.042)]
)
def test_the_tail_of_students_distribution_is_that_of_the_tables(free, quantile):
    assert upper_tail(quantile, free) == pytest.approx(0.025, abs=2e-5)
    assert upper_tail(-quantile, free) == pytest.approx(0.975, abs=2e-5)
    assert upper_tail(0.0, free) == pytest.approx(0.5)


# --------------------------------------------------------------------------------------------------- by measured points


@given(
    crossing=st.floats(300, 8000),
    power=st.floats(1.5, 3),
    scale=st.floats(1e-9, 1e3),
)
def test_power_laws_cross_where_they_do(crossing, power, scale):
    """Straight lines in log-log space are interpolated exactly, whatever the unit."""
    baseline = samples([scale * (n / crossing) ** power for n in LENGTHS])
    mechanism = samples([scale * (n / crossing) for n in LENGTHS])
    found = measured(baseline, mechanism)
    assert found.status == "crosses"
    assert found.length == pytest.approx(crossing, rel=1e-6)


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=6))
def test_the_crossing_lies_between_the_last_dearer_length_and_the_next(ratios):
    found = measured(samples(ratios), samples([1.0] * 6))
    cheaper = [ratio > 1 for ratio in ratios]
    if found.status == "crosses":
        last = max(i for i, one in enumerate(cheaper) if not one)
        assert LENGTHS[last] <= found.length * (1 + 1e-9)
        assert found.length <= LENGTHS[last + 1] * (1 + 1e-9)
        assert all(cheaper[last + 1 :])
    else:
        assert found.length is None
        assert (found.status == "below") == all(cheaper)
        assert not cheaper[-1] or all(cheaper)


def test_what_never_crosses_is_said_in_words():
    one, two = samples([1.0] * 6), samples([2.0] * 6)
    assert measured(two, one).words == "faster at every measured length: below the shortest, 256"
    assert measured(one, two).words == "slower at every measured length: above the longest, 8,192, if at all"
    assert measured(one, two, "memory").words.startswith("larger")
    assert measured(one, one).status == "none"
    assert measured(one, {}).words == "none: there is no length at which both were measured"
    turned = measured(samples([2, 2, 1, 1, 1, 1]), samples([1, 1, 2, 2, 2, 2]))
    assert turned.words == "none: faster at 256 to 512 but slower at the longest, 8,192"
    twice = measured(samples([2, 1, 2, 2, 2, 2]), samples([1, 2, 1, 1, 1, 1]))
    assert twice.status == "crosses"
    assert "after 1 earlier change of the lead" in twice.words


def test_a_baseline_that_no_longer_fits_is_beaten_somewhere_between():
    mechanism = samples([9.0] * 6)
    baseline = {n: ReadingSummary(1.0) for n in LENGTHS[:4]}
    found = measured(baseline, mechanism, lost=[4096, 8192])
    assert (found.status, found.interval) == ("between", (2048.0, 4096.0))
    assert "at 4,096 the baseline no longer fits" in found.words


def test_intervals_hold_the_crossing_widen_with_the_spread_and_repeat():
    def pair(spread):
        laws = (lambda n: n**2 / 1e6, lambda n: n / 1e3)
        return [
            {n: ReadingSummary(law(n), law(n) * (1 - spread), law(n) * (1 + spread), 20) for n in LENGTHS}
            for law in laws
        ]

    calm, wild = measured(*pair(0.01)), measured(*pair(0.1))
    assert calm.interval[0] < calm.length < calm.interval[1]
    assert wild.interval[1] - wild.interval[0] > 5 * (calm.interval[1] - calm.interval[0])
    assert measured(*pair(0.1)) == wild
    assert measured(*pair(0.1), seed=1).interval != wild.interval
    assert measured(samples([1, 2, 3, 4, 5, 6]), samples([3] * 6)).interval is None  # readings do not vary


def test_an_interval_may_end_beyond_what_was_measured():
    close = {n: ReadingSummary(1.0 + 0.001 * i, 0.5, 2.0, 4) for i, n in enumerate(LENGTHS)}
    found = measured(close, {n: ReadingSummary(1.0025, 0.5, 2.0, 4) for n in LENGTHS})
    assert found.status == "crosses"
    assert found.interval[1] is None
    assert found.words.endswith("by the spread of readings it may as well lie above 8,192")


# ----------------------------------------------------------------------------------------------------------- from cards


def crossings(finding, **wanted):
    names = [column.title for column in finding.columns]
    rows = [dict(zip(names, row, strict=True)) for row in finding.rows]
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_cards_are_compared_with_any_baseline_on_their_own_bench():
    evidence = Evidence(measurements=lab_cards())
    (linear,) = crossings(compare(evidence, pattern="causal_self"), Mechanism="Linear")
    exact = (1e-8 + math.sqrt(1e-16 + 4 * 2e-11 * 4e-5)) / (2 * 2e-11)
    assert linear["Efficiency length"] == pytest.approx(exact, rel=0.1)
    assert linear["From"] <= linear["Efficiency length"] <= linear["To"]
    assert (linear["Variant"], linear["Baseline"]) == ("graph", "softmax")
    naive = compare(evidence, baseline="softmax(kernel=plain)", pattern="causal_self", mode="train")
    assert (
        crossings(naive, Mechanism="Linear")[0]["In words"]
        == "faster at every measured length: below the shortest, 1,024"
    )
    assert crossings(naive, Mechanism="Softmax")[0]["In words"].startswith("faster at every")
    fits = compare(evidence, method="cab-2023", quantity="memory")
    assert all(row["R²"] == pytest.approx(1) for row in crossings(fits))


def test_measured_memory_of_a_fused_softmax_is_no_parabola(call):
    """Committed measurements: its memory is linear, yet a crossover at 2.6e18 tokens was once reported."""
    cards = Path(__file__).parents[2] / "results" / "h200" / "cards"
    words = ("--method", "cab-2023", "--quantity", "memory", "--cards", cards)
    rows = json.loads(call(*words, "--json").stdout)["rows"]
    assert rows
    assert {row["Efficiency length"] for row in rows} == {None}
    fitted = [row for row in rows if "the fits need" not in row["In words"]]  # some have only one length
    assert fitted
    assert all(row["In words"].startswith("no crossover: the baseline is not quadratic") for row in fitted)
    assert "no crossover" in call(*words).stdout
    times = json.loads(call("--method", "cab-2023", "--cards", cards, "--json").stdout)["rows"]
    assert any(row["Efficiency length"] for row in times)


def test_two_machines_are_never_compared():
    here, there = make_core("softmax"), make_core("linear", environment={"gpu": "Other GPU"})
    with pytest.raises(DataMissing, match="measure both the same way"):
        compare(Evidence(measurements=[here, there]))


def test_a_variant_is_shared_and_the_one_asked_for_is_used():
    both = [make_core("softmax"), make_core("linear", variants=("eager",))]
    assert crossings(compare(Evidence(measurements=both)))[0]["Variant"] == "eager"
    with pytest.raises(DataMissing, match="graph variant"):
        compare(Evidence(measurements=both), variant="graph")


def test_an_unknown_baseline_and_no_cards_are_refused():
    with pytest.raises(UnknownName, match="Did you mean 'softmax'"):
        compare(Evidence(measurements=lab_cards()), baseline="softmx")
    with pytest.raises(DataMissing, match="longspan measure"):
        compare(Evidence())
    with pytest.raises(DataMissing, match="noncausal_cross"):
        compare(Evidence(measurements=lab_cards()), pattern="noncausal_cross")
    with pytest.raises(UsageError, match="No method"):
        compare(Evidence(measurements=lab_cards()), method="cab")


def test_the_question_compares_everything_with_both_kinds_of_softmax():
    finding = answer(Evidence(measurements=lab_cards()))
    assert {row["Baseline"] for row in crossings(finding)} == {"softmax", 'softmax(kernel="plain")'}
    assert {row["Quantity"] for row in crossings(finding)} == {"time", "memory", "energy"}
    assert len(finding.rows) == 2 * 2 * 2 * 3 * 3  # patterns, baselines, modes, quantities, other mechanisms


# ------------------------------------------------------------------------------------------------- files from elsewhere


def test_a_file_gives_the_published_lengths(table):
    times = compare_file(table, baseline="vanilla", method="cab-2023")
    assert [(row["Efficiency length"], round(row["R²"], 4)) for row in crossings(times)] == [(1877, 0.9646)]
    memory = compare_file(table, baseline="vanilla", method="cab-2023", quantity="memory")
    assert crossings(memory)[0]["Efficiency length"] == 70


def test_files_may_have_quartiles_blanks_and_lengths_that_did_not_fit(tmp_path):
    path = tmp_path / "spread.csv"
    path.write_text(
        "\ufeffmechanism, length, time_ms, time_low_ms, time_high_ms, readings, memory_mib, remark\n"
        "softmax, 1024, 1, 0.9, 1.1, 50, 10, fine\n"
        "softmax, 2048, oom, , , , , \n"
        "mine, 1024, 2, 1.9, 2.1, 50, , \n"
        "mine, 2048, 4, 3.9, 4.1, 50, , \n"
    )
    (row,) = crossings(compare_file(path))
    assert (row["From"], row["To"]) == (1024, 2048)
    assert "no longer fits" in row["In words"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no column 'mechanism'"),
        ("mechanism,length\nsoftmax,1\n", "no column 'time_ms'"),
        ("mechanism,length,time_ms\nsoftmax,1\n", "line 2: the line has not the 3 cells"),
        ("mechanism,length,time_ms\nsoftmax,1,2,3\n", "line 2: the line has not the 3 cells"),
        ("mechanism,length,time_ms\nsoftmax,1,fast\n", "'time_ms' must be a positive number, got 'fast'"),
        ("mechanism,length,time_ms\nsoftmax,1,nan\n", "positive number"),
        ("mechanism,length,time_ms\nsoftmax,1.5,1\n", "whole number of tokens"),
        ("mechanism,length,time_ms\nsoftmax,1,1\nsoftmax,1,1\n", "line 3: 'softmax' at length 1 stands there twice"),
        ("mechanism,length,time_ms\n,1,1\n", "no name"),
        ("mechanism,length,time_ms\nsoftmax,1,\n", "holds no number"),
        ("mechanism,length,time_ms,time_low_ms,time_high_ms,readings\nsoftmax,1,1,2,1,9\n", "above the upper one"),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_line(tmp_path, text, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(CorruptFile) as caught:
        compare_file(path)
    assert words in str(caught.value)


@given(content=st.binary(max_size=200))
def test_no_file_whatever_causes_more_than_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("files") / "any.csv"
    path.write_bytes(b"mechanism,length,time_ms\n" + content)
    with pytest.raises((CorruptFile, UnknownName)):
        compare_file(path)


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["crossover", *(str(word) for word in words)])


def test_the_verb_prints_the_published_number_and_json(call, table):
    words = ("--from", table, "--baseline", "vanilla", "--method", "cab-2023")
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "1,877" in result.stdout
    assert "0.9646" in result.stdout
    (row,) = json.loads(call(*words, "--json").stdout)["rows"]
    assert (row["Efficiency length"], row["Mechanism"]) == (1877, "abc")
    assert "| abc | vanilla | time |" in call(*words, "--format", "md").stdout
    assert call(*words, "--format", "csv").stdout.splitlines()[1].startswith("abc,vanilla,time,")


def test_exit_codes_tell_a_missing_file_from_a_bad_one(call, tmp_path):
    missing = call("--from", tmp_path / "nowhere.csv")
    assert (missing.exit_code, len(missing.stderr.strip().splitlines())) == (3, 1)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    bad = call("--from", tmp_path / "bad.csv")
    assert (bad.exit_code, len(bad.stderr.strip().splitlines())) == (2, 1)
    (tmp_path / "empty").mkdir()
    assert call("--cards", tmp_path / "empty").exit_code == 3
    assert call().exit_code == 0  # from the cards that come with the package
    assert call("--from", tmp_path / "bad.csv", "--variant", "graph").exit_code == 2


def test_the_verb_draws_what_it_found(call, table, tmp_path):
    result = call("--from", table, "--baseline", "vanilla", "-o", tmp_path / "drawn")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {f"crossover.{s}" for s in ("html", "pdf", "png")}
