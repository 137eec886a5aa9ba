"""Growth, scaling, rooflines, decoding and the fastest, read from core cards: benches kept apart, cards not trusted."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import LAB, Evidence
from longspan.analysis.comparable import benches, twins
from longspan.analysis.scaling import Slope, slope
from longspan.core.errors import DataMissing
from longspan.results import card as cards
from longspan.results.store import Store
from tests.analysis.answers import LENGTHS, lab_cards
from tests.results.factory import make_core, make_measurement

LONG = (8192, 16384, 32768, 65536)


def rows(finding, **wanted):
    names = [column.title for column in finding.columns]
    found = [dict(zip(names, row, strict=True)) for row in finding.rows]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


def ask(question, *measurements):
    return analysis.answer(question, Evidence(measurements=list(measurements)))


# -------------------------------------------------------------------------------------------------------------- benches


def test_a_bench_holds_one_machine_setup_and_pattern():
    made = [make_core("linear"), make_core("softmax"), make_core("linear", pattern="causal_self")]
    made += [make_core("linear", settings={"batch": 1}), make_core("linear", environment={"gpu": "Other"})]
    found = benches([*made, make_measurement("linear")])
    assert [sorted(bench.mechanisms) for bench in found] == [["linear", "softmax"], ["linear"], ["linear"], ["linear"]]
    assert found[0].title == "Test GPU · bfloat16 · batch 4, 8 heads of 64 · core · noncausal_self"


def test_of_two_points_the_newer_counts_and_the_others_stay():
    old = make_core("linear", {256: 1.0, 512: 2.0}, created="2026-01-01T00:00:00Z")
    new = make_core("linear", {512: 7.0}, created="2026-02-01T00:00:00Z")
    (bench,) = benches([new, old])
    series = bench.mechanisms["linear"].series("time", "forward", "graph")
    assert {n: sample.median for n, sample in series.items()} == {256: 1.0, 512: 7.0}
    assert len(bench.mechanisms["linear"].cards) == 2


def test_energy_that_was_measured_once_outlives_a_newer_time_of_the_same_point():
    old = make_core("linear", {512: 2.0}, created="2026-01-01T00:00:00Z", sealed=False)
    new = make_core("linear", {512: 7.0}, created="2026-02-01T00:00:00Z", sealed=False)
    for card, energy in ((old, {"joules": 0.5}), (new, None)):
        for point in card["points"]:
            point["energy"] = energy
    (bench,) = benches([old, new])
    reading = bench.mechanisms["linear"].reading(512, "forward", "graph")
    assert (reading.sample("time").median, reading.sample("energy").median) == (7.0, 0.5)


@settings(max_examples=25)
@given(
    st.sampled_from(["seconds", "memory", "energy", "floor", "achieved", "operations", "state_bytes", "variant"]),
    st.sampled_from([None, True, "words", [], {}, -1, 0, {"median": "x"}, {"median": -1}, {"allocated": True}]),
)
def test_a_strange_point_counts_as_not_measured(name, value):
    card = make_core("linear", {8192: 1e-3, 16384: 2e-3, 32768: 4e-3})
    for point in card["points"]:
        point[name] = value
    for question in LAB:
        try:
            ask(question, card, make_core("softmax", {8192: 1e-3, 16384: 2e-3, 32768: 4e-3}))
        except DataMissing:
            continue


def test_a_core_card_is_sound_and_one_that_says_ok_without_a_time_is_not():
    cards.validate(make_core())
    broken = make_core(sealed=False)
    broken["points"][0]["seconds"] = None
    with pytest.raises(cards.InvalidCard, match="ok but has no speed"):
        cards.validate(cards.seal(broken))


def test_values_between_two_lengths_are_interpolated_and_never_extrapolated():
    (bench,) = benches([make_core("linear", {1024: 1.0, 4096: 16.0, 16384: None})])
    entry = bench.mechanisms["linear"]
    found = entry.estimate("time", "forward", "graph", 2048)
    assert (found.value, found.between) == (pytest.approx(4.0), (1024, 4096))
    assert entry.estimate("time", "forward", "graph", 1024).between is None
    assert entry.estimate("time", "forward", "graph", 8192) is None
    assert entry.estimate("time", "forward", "graph", 512) is None


def test_what_was_measured_at_a_length_comes_before_what_lies_between_two():
    measured = make_core("softmax", {4096: 2.0, 8192: 5.0, 16384: 8.0}, variants=("graph",), exact=True)
    compiled = make_core("softmax", {4096: 1.0, 16384: 4.0}, variants=("compiled",), exact=True)
    (bench,) = benches([measured, compiled])
    found = bench.mechanisms["softmax"].best_estimate("time", "forward", 8192)
    assert (found.value, found.variant, found.between) == (5.0, "graph", None)
    finding = ask("fastest", measured, compiled)
    assert [row["Length"] for row in rows(finding, Mode="forward")] == [4096, 8192, 16384]


def test_twins_of_released_code_are_known_by_their_shelf():
    assert {"lra_local", "cab_abc"} <= twins()
    assert "local" not in twins()


@pytest.mark.parametrize("question", LAB)
def test_without_measurements_each_question_says_what_to_do(question):
    with pytest.raises(DataMissing, match="longspan measure"):
        ask(question)


# -------------------------------------------------------------------------------------------------------------- scaling


@given(st.floats(-1, 3), st.floats(1e-9, 1e9))
def test_a_power_law_gives_its_exponent_back(exponent, scale):
    found = slope(LONG, [scale * n**exponent for n in LONG])
    assert found is not None
    assert found.exponent == pytest.approx(exponent, abs=1e-6)


def test_two_points_are_no_line():
    assert slope(LONG[:2], [1.0, 2.0]) is None
    assert slope(LONG, [5.0] * 4) == Slope(0.0, 1.0, 4)


@pytest.mark.parametrize(
    "cost, power, verdict",
    [
        ("n", 1.14, "kept"),
        ("n", 1.16, "misses in time"),
        ("n log n", 1.24, "kept"),
        ("n log n", 1.26, "misses in time"),
        ("n sqrt n", 1.59, "kept"),
        ("n sqrt n", 1.61, "misses in time"),
        ("n^2", 2.9, "no claim"),
    ],
)
def test_a_declared_cost_allows_so_much_and_no_more(cost, power, verdict):
    finding = ask("scaling", make_core("mine", {n: 1e-9 * n**power for n in LONG}, cost=cost))
    (row,) = rows(finding, Mode="forward")
    assert row["Verdict"] == verdict
    assert row["Time"] == pytest.approx(power)
    assert row["Memory"] == pytest.approx(1)
    assert any(note.startswith("Misses") and "Mine" in note for note in finding.notes) == verdict.startswith("misses")


def test_memory_that_grows_too_fast_is_a_miss_too():
    card = make_core("mine", {n: 1e-8 * n for n in LONG}, sealed=False)
    for point in card["points"]:
        point["memory"]["allocated"] = point["length"] ** 2
    (row,) = rows(ask("scaling", cards.seal(card)), Mode="forward")
    assert row["Verdict"] == "misses in memory"


def test_short_lengths_do_not_count_and_eager_is_named_where_graphs_are_missing():
    times = {1024: 1.0} | {n: 1e-8 * n for n in LONG}
    (row,) = rows(ask("scaling", make_core("mine", times)), Mode="train")
    assert (row["Lengths"], row["Variant"]) == (4, "graph")
    finding = ask("scaling", make_core("mine", times, variants=("eager",)))
    assert {row["Variant"] for row in rows(finding)} == {"eager"}
    assert any("launching flattens" in note for note in finding.notes)
    with pytest.raises(DataMissing, match="3 lengths"):
        ask("scaling", make_core("mine", {8192: 1.0, 16384: 2.0}))


# ----------------------------------------------------------------------------------------------- the fastest and growth


def test_the_fastest_counts_every_variant_and_leaves_out_what_is_no_choice():
    none, twin = make_core("none", {1024: 1e-9}), make_core("lra_local", {1024: 1e-9})
    slow, exact = make_core("linear", {1024: 1e-4}), make_core("softmax", {1024: 3e-4}, exact=True)
    compiled = make_core("local", {1024: 9e-5}, variants=("compiled",))
    (row,) = rows(ask("fastest", none, twin, slow, exact, compiled), Mode="forward")
    assert (row["Fastest"], row["Variant"], row["µs"]) == ("Local", "compiled", pytest.approx(90))
    assert (row["Fastest exact"], row["Times faster"], row["Of"]) == ("Softmax", pytest.approx(10 / 3), 3)


def test_there_is_a_row_for_each_pattern_mode_and_length():
    found = rows(ask("fastest", *lab_cards()))
    assert len(found) == (2 + 3) * len(LENGTHS)
    assert {row["Fastest"] for row in found if row["Length"] == 1024} == {"Softmax"}
    assert {row["Fastest"] for row in found if row["Length"] == 65536} == {"Linear"}


def test_growth_shows_what_was_measured_and_where_it_ended():
    finding = ask("growth", *lab_cards())
    naive = 'Softmax (kernel="plain")'
    (row,) = rows(finding, Quantity="time, µs", Mode="forward", Variant="graph", Mechanism=naive, Pattern="causal_self")
    assert row["16,384"] == pytest.approx(1e6 * (2e-5 + 3e-10 * 16384**2))
    assert row["65,536"] is None
    assert f"{naive}, causal_self: forward out of memory at 32,768, the longest that ran is 16,384" in " ".join(
        finding.notes
    )
    energy = rows(finding, Quantity="energy, mJ", Mode="train", Mechanism="Linear", Pattern="causal_self")
    assert [row["Variant"] for row in energy] == ["graph"]
    assert {row["Variant"] for row in rows(finding, Quantity="memory, MiB")} == {"eager"}


# -------------------------------------------------------------------------------------------------- roofline and decode


def test_the_slowest_code_stands_first_and_no_point_is_above_the_roof():
    finding = ask("roofline", *lab_cards())
    found = rows(finding, Mode="forward", Pattern="causal_self", Length=16384)
    ratios = [row["Over its floor"] for row in found]
    assert ratios == sorted(ratios, reverse=True)
    assert found[0]["Mechanism"] == 'Softmax (kernel="plain")'
    for row in found:
        assert row["Time, µs"] / row["Floor, µs"] == pytest.approx(row["Over its floor"])
    for roof in finding.figure:
        for line in roof.lines:
            for x, y in zip(line.x, line.y, strict=True):
                assert y * 1e12 <= min(x * roof.bandwidth, roof.rate) * (1 + 1e-9)


def test_decoding_shows_milliseconds_and_the_state():
    finding = ask("decode", *lab_cards())
    (time,) = rows(finding, Quantity="time per token, ms", Mechanism="Linear", Variant="graph")
    assert time["4,096"] == pytest.approx(1e3 * 1e-3 * (5e-5 + 1e-8 * 4096))
    (state,) = rows(finding, Quantity="state, KiB", Mechanism="Linear")
    assert state["4,096"] == 4096
    with pytest.raises(DataMissing, match="--mode decode"):
        ask("decode", make_core("linear"))


def test_who_decodes_without_a_graph_only_stands_beside_the_others():
    how = {"pattern": "causal_self", "modes": ("decode",)}
    finding = ask("decode", make_core("linear", **how), make_core("sinkhorn", **how, variants=("eager",)))
    drawn = {(one.label, one.variant): {line.mechanism for line in one.lines} for one in finding.figure}
    assert drawn == {
        ("time per token, ms", "graph"): {"linear"},
        ("time per token, ms", "eager"): {"linear", "sinkhorn"},
        ("state, KiB", ""): {"linear", "sinkhorn"},
    }


# -------------------------------------------------------------------------------------------------------------- repeat

JANUARY, FEBRUARY, MARCH = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z")


def test_two_measurements_of_one_code_are_compared_point_by_point():
    old = make_core("linear", {4096: 3e-4, 8192: 1e-3, 16384: 2e-3}, modes=("forward",), created=JANUARY)
    new = make_core("linear", {4096: 3e-4, 8192: 1.04e-3, 16384: 1.8e-3}, modes=("forward",), created=FEBRUARY)
    finding = ask("repeat", new, old)
    (row,) = rows(finding)
    assert (row["Points"], row["Within 5 %"], row["At length"]) == (3, 2, 16384)
    assert row["Farthest, %"] == pytest.approx(-10)
    assert finding.notes[0] == "2 of 3 points agree within 5% (66.7%)."
    assert finding.notes[1:] == ("Apart: Linear, forward, noncausal_self, 16,384 tokens, 2,000 and 1,800 µs (-10.0%).",)


def test_the_last_two_of_three_are_compared():
    times = ((JANUARY, 1e-3), (FEBRUARY, 2e-3), (MARCH, 2e-3))
    made = [make_core("linear", {8192: seconds}, modes=("forward",), created=when) for when, seconds in times]
    (row,) = rows(ask("repeat", *made))
    assert row["Farthest, %"] == 0


def test_other_code_short_calls_and_calls_one_by_one_are_not_compared():
    old = make_core("linear", {8192: 1e-3}, created=JANUARY)
    code = old["code"] | {"source_sha256": "f" * 64}
    for other in (
        make_core("linear", {8192: 1e-3}, created=FEBRUARY, code=code),
        make_core("linear", {8192: 1e-3}, created=FEBRUARY, variants=("eager",)),
        make_core("linear", {8192: 1e-3}, created=FEBRUARY, pattern="causal_self"),
        make_core("linear", {8192: 1e-3}, created=FEBRUARY, settings={"batch": 1}),
        make_core("linear", {4096: 1e-3}, created=FEBRUARY),
        old,
    ):
        with pytest.raises(DataMissing, match="measured twice"):
            ask("repeat", old, other)
    short = [make_core("linear", {8192: 1e-4}, modes=("forward",), created=when) for when in (JANUARY, FEBRUARY)]
    with pytest.raises(DataMissing, match="measured twice"):
        ask("repeat", *short)


def test_a_card_that_was_superseded_is_still_there_to_be_compared(tmp_path):
    for when in (JANUARY, FEBRUARY):
        Store(tmp_path).add(make_core("linear", {8192: 1e-3}, created=when))
    evidence = analysis.gather([tmp_path])
    assert (len(evidence.measurements), len(evidence.earlier)) == (1, 1)
    assert sum(row["Points"] for row in rows(analysis.answer("repeat", evidence))) == 2


# --------------------------------------------------------------------------------------------------------- for the eye


def test_what_is_alike_in_all_rows_is_said_once_and_kept_for_machines():
    finding = ask("scaling", *lab_cards())
    told = finding.condensed()
    assert "Measured on" not in [column.title for column in told.columns]
    assert "Measured on: Test GPU" in told.notes[0]
    assert len(told.rows) == len(finding.rows)
    assert all("Measured on" in row for row in finding.to_json()["rows"])
    assert math.isclose(told.rows[0][4], finding.rows[0][4])
