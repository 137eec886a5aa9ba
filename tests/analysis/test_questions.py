"""Questions answered from cards and published tables alone: seeds are averaged, rules kept apart, papers quoted."""

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.analysis.convergence import first_step
from longspan.analysis.tradeoff import front
from longspan.cli import app
from longspan.core.errors import CorruptFile, DataMissing, UnknownName
from longspan.results import card as cards
from longspan.results.store import Store
from tests.analysis.answers import embeddings_card, extrapolation_card, fill, gap_card, span_card, transfer_card
from tests.results.factory import make_card, make_measurement, make_probe


def column(finding, title):
    place = [column.title for column in finding.columns].index(title)
    return [row[place] for row in finding.rows]


# ------------------------------------------------------------------------------------------------ without any own card


def test_the_papers_answer_some_questions_by_themselves():
    found = {finding.question: finding for finding in analysis.answers(Evidence())}
    scores = ["tradeoff", "speed", "ranks", "index", "correlation", "predicts", "benefit"]
    tables = ["taxonomy", "settings", "hours", "gap", "references", "convergence"]
    assert list(found) == [*scores, *tables]
    from_papers = [finding for finding in found.values() if any(c.title == "From" for c in finding.columns)]
    assert all(origin.startswith("published") for finding in from_papers for origin in column(finding, "From"))


@pytest.mark.parametrize("question", ["span", "rollout", "embeddings", "transfer", "extrapolation"])
def test_a_question_no_model_was_asked_says_what_to_do(question):
    with pytest.raises(DataMissing, match=f"longspan probe {question} CARD"):
        analysis.answer(question, Evidence())


def test_an_unknown_question_is_refused():
    with pytest.raises(UnknownName, match="Did you mean 'tradeoff'"):
        analysis.answer("tradeof", Evidence())


def test_the_papers_gap_is_train_minus_test():
    finding = analysis.answer("gap", Evidence())
    gaps = dict(zip(column(finding, "Mechanism"), column(finding, "Gap"), strict=True))
    assert gaps["Transformer"] == pytest.approx(0.6945 - 0.4244)
    assert gaps["Linformer"] == pytest.approx(0.9723 - 0.3856)
    assert len(gaps) == 11


def test_the_front_of_the_second_leaderboard_is_what_the_paper_says():
    panels = {panel.label: panel for panel in analysis.answer("tradeoff", Evidence()).figure}
    second = panels["published (lra-v1)"]
    assert {second.points[i].title for i in second.by_speed} == {"BigBird", "Performer"}
    first = panels["published (lra-v0)"]
    assert {first.points[i].title for i in first.by_speed} > {"BigBird", "Performer"}
    assert len(first.points) == 9


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.booleans())
def test_on_the_front_nobody_is_beaten_in_both_and_everyone_else_is(points, cheaper_is_less):
    best = front(points, cheaper_is_less=cheaper_is_less)
    sign = -1 if cheaper_is_less else 1

    def beats(one, other):
        gain = (sign * (one[0] - other[0]), one[1] - other[1])
        return min(gain) >= 0 and max(gain) > 0

    chosen = [points[i] for i in best]
    assert not any(beats(one, other) for one in points for other in chosen)
    assert all(point in chosen or any(beats(one, point) for one in chosen) for point in points)


# ----------------------------------------------------------------------------------------------------------- own cards


def test_seeds_are_averaged_and_rules_kept_apart():
    runs = [make_card(seed=seed) for seed in range(3)] + [make_card(seed=0, overrides={"recipe.steps": 5})]
    probes = [span_card(span, run=run) for span, run in zip((10.0, 20.0, 30.0, 99.0), runs, strict=True)]
    finding = analysis.answer("span", Evidence(runs=runs, probes=probes))
    assert sorted(column(finding, "Span")) == [20.0, 99.0]
    assert sorted(column(finding, "Seeds")) == [1, 3]
    assert any("recipe.steps=5" in rules for rules in column(finding, "From"))


def test_the_gap_is_asked_of_models_and_else_read_from_the_log():
    logged = make_card("linear", "image", selected_step=200)
    logged = {name: value for name, value in logged.items() if name != "sha256"}
    logged["curve"] = [{"step": step, "train_accuracy": step / 1000} for step in (100, 200, 300)]
    evidence = Evidence(runs=[cards.seal(logged)], probes=[gap_card(0.9, 0.4), gap_card(0.7, 0.4, seed=1)])
    finding = analysis.answer("gap", evidence)
    asked, read = finding.rows[:2]
    assert asked[3:6] == pytest.approx((0.8, 0.4, 0.4))
    assert asked[-1] == 2
    assert read[3] == pytest.approx(0.2)
    assert "during training" in read[2]
    assert any("dropout on" in note for note in finding.notes)
    assert any("without dropout" in note for note in finding.notes)
    unprobed = analysis.answer("gap", Evidence(runs=[cards.seal(logged)]))
    assert not any("without dropout" in text for text in (unprobed.lede, *unprobed.notes))


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12), st.floats(0.01, 1))
def test_the_first_step_is_the_first_that_reaches_the_level(values, level):
    curve = [{"step": 10 * i, "valid_accuracy": value} for i, value in enumerate(values)]
    step = first_step({"curve": curve}, level)
    reached = [i for i, value in enumerate(values) if value is not None and value >= level]
    assert step == (10 * reached[0] if reached else None)


def test_a_level_that_one_seed_misses_has_no_mean():
    runs = [make_card(task="image", seed=seed, accuracy=accuracy) for seed, accuracy in enumerate((0.34, 0.36))]
    finding = analysis.answer("convergence", Evidence(runs=runs))
    assert finding.rows[0][2:4] == (400.0, None)
    assert column(finding, "Seeds")[0] == 2


def test_own_speed_and_own_scores_meet_in_a_panel(tmp_path):
    finding = analysis.answer("tradeoff", gather([fill(tmp_path / "cards")]))
    panel = finding.figure[0]
    assert "Test CPU" in panel.label
    assert {(point.mechanism, round(point.score, 6), point.speed) for point in panel.points} == {
        ("softmax", 0.6, 1.0),
        ("linear", 0.5, 5.0),
    }
    assert len(panel.by_speed) == 2


def test_a_mechanism_that_ran_out_of_memory_is_no_point():
    runs = [make_card(task=task, tier="full") for task in ("listops", "text", "retrieval", "image", "pathfinder")]
    finding = analysis.answer("tradeoff", Evidence(runs=runs, measurements=[make_measurement(speeds={4000: None})]))
    assert all(panel.label.startswith("published") for panel in finding.figure)
    assert "nothing was timed" in finding.notes[0]


def test_extrapolation_joins_seeds_and_stands_beside_the_figure():
    cards = [extrapolation_card((9.0, 8.0, None), seed=0), extrapolation_card((11.0, 10.0, None), seed=1)]
    finding = analysis.answer("extrapolation", Evidence(probes=cards))
    own = [row for row in finding.rows if row[1].startswith("longspan")]
    assert [(row[3], row[4], row[7]) for row in own] == [(64, 10.0, 2), (128, 9.0, 2), (256, None, 2)]
    assert own[0][6] == pytest.approx(10 / 9)
    assert own[2][8] == "its weights do not fit 256"
    paper = {(row[0], row[3]): row[4] for row in finding.rows if row[1].startswith("CAB")}
    assert paper["LongShort", 8_192] == 15.5
    assert paper["ABC", 16_384] is None
    assert len(paper) == 4 * 8


def test_transfer_shows_chance_and_the_verdict():
    finding = analysis.answer("transfer", Evidence(probes=[transfer_card(0.52)]))
    assert column(finding, "Path-X") == [0.52]
    assert column(finding, "Above chance") == [False]
    assert finding.texts()[0][6] == "no"


def test_every_finding_is_plain_json_with_a_text_for_every_cell(tmp_path):
    found = analysis.answers(gather([fill(tmp_path / "cards")]))
    assert [finding.question for finding in found] == list(analysis.QUESTIONS)
    for finding in found:
        content = json.loads(json.dumps(finding.to_json(), allow_nan=False))
        assert len(content["rows"]) == len(finding.rows) > 0
        assert all(isinstance(text, str) and text for row in finding.texts() for text in row)


# ---------------------------------------------------------------------------------------------------- untrusted arrays


def test_damaged_arrays_are_a_note_and_not_the_end(tmp_path):
    folder = fill(tmp_path / "cards")
    (path,) = folder.rglob("*.arrays.npz")
    path.write_bytes(b"PK nonsense")
    finding = analysis.answer("embeddings", gather([folder]))
    assert finding.figure[0].position is None
    assert any(path.name in note for note in finding.notes)


def test_arrays_larger_than_their_file_are_a_note_and_not_the_end(tmp_path):
    folder = fill(tmp_path / "cards")
    (path,) = folder.rglob("*.arrays.npz")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000, 10000000), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("position.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    finding = analysis.answer("embeddings", gather([folder]))
    assert any("1000000000000000 entries" in note for note in finding.notes)


def test_pickled_arrays_are_never_loaded(tmp_path):
    trap = tmp_path / "trap.npz"
    np.savez(trap, intensity=np.array([object()], dtype=object))
    store = Store(tmp_path / "cards")
    store.add(embeddings_card(), files={"arrays": trap})
    evidence = gather([tmp_path / "cards"])
    with pytest.raises(CorruptFile, match="it holds objects, not numbers"):
        evidence.arrays(evidence.probes[0])


@pytest.mark.parametrize(
    "question, results",
    [
        ("span", {"mean": "far"}),
        ("gap", {"train": 0.5}),
        ("transfer", {"accuracy": 7}),
        ("extrapolation", {"trained_length": 8, "tokens": 8, "points": []}),
        ("rollout", {"query": "cls", "examples": [{}]}),
        ("embeddings", {"side": 2, "by_intensity_distance": [1.0], "beside": 0, "below": 0, "others": 0}),
    ],
)
def test_a_probe_whose_results_do_not_answer_its_question_is_refused(question, results):
    with pytest.raises(cards.InvalidCard, match="results"):
        cards.validate(make_probe(question, results))


def test_a_map_of_another_size_than_its_image_is_refused():
    example = {"row": 0, "label": 0, "prediction": 0, "lit_area": 0.5, "lit_share": 0.5}
    example |= {"image": [[0, 1], [2, 3]], "map": [[0, 1], [2]]}
    with pytest.raises(cards.InvalidCard, match="rectangles of one size"):
        cards.validate(make_probe("rollout", {"query": "mean", "examples": [example]}))


# ---------------------------------------------------------------------------------------------------- the command line


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_analyze_answers_from_the_papers_where_there_are_no_cards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("analyze", "convergence", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {"Mechanism": "Linformer", "30 %": 452.0, "35 %": 875.0}.items() <= rows[4].items()
    everything = call("analyze")
    assert everything.exit_code == 0
    assert "What accuracy costs" in everything.stdout


def test_analyze_without_an_answer_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("analyze", "span")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert call("analyze", "spam").exit_code == 2


@pytest.mark.parametrize("subject", [0.5, [], {}, {"task": "listops"}])
def test_a_run_with_a_field_called_subject_is_a_run_all_the_same(subject):
    runs = [make_card("linear", "image", subject=subject)]
    assert "Linear" in [row[0] for row in analysis.answer("convergence", Evidence(runs=runs)).rows]
