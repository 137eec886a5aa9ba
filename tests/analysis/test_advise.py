"""Advice: what each mechanism costs and scores, which of them are unbeaten, and what is not known."""

import json

import pytest
from typer.testing import CliRunner

from longspan.analysis import Evidence
from longspan.analysis.advise import advise
from longspan.cli import app
from longspan.core.errors import DataMissing, UsageError
from longspan.results.card import filename
from longspan.results.store import Store
from tests.analysis.answers import lab_cards
from tests.results.factory import make_card, make_core


def ask(*measurements, runs=(), **wishes):
    asked = {"pattern": "causal_self", "length": 16384, "mode": "train"} | wishes
    return advise(Evidence(runs=list(runs), measurements=list(measurements or lab_cards())), **asked)


def column(finding, title):
    place = [one.title for one in finding.columns].index(title)
    return [row[place] for row in finding.rows]


def verdicts(finding):
    return dict(zip(column(finding, "Mechanism"), column(finding, "Unbeaten"), strict=True))


def test_the_lede_says_who_leads_in_what_and_every_row_names_its_card():
    finding = ask()
    assert finding.lede.startswith("Fastest is linear (not exact): ")
    assert "Least memory: " in finding.lede
    assert "The fastest exact one is softmax" in finding.lede
    assert {*column(finding, "Mechanism")} == {"Linear", "Performer", "Softmax", 'Softmax (kernel="plain")'}
    (card,) = [one for one in lab_cards() if (one["mechanism"], one["pattern"]) == ("linear", "causal_self")]
    cards = dict(zip(column(finding, "Mechanism"), column(finding, "Card"), strict=True))
    assert filename(card).removesuffix(".json").endswith(cards["Linear"])


def test_exact_attention_alone_when_it_is_asked_for_or_fastest():
    assert set(column(ask(exact_only=True), "Exact")) == {True}
    short = ask(length=1024, mode="forward")
    assert short.lede.startswith("Fastest is softmax (exact): ")
    assert "fastest exact one" not in short.lede


NOW = {"pattern": "noncausal_self", "length": 4096, "mode": "forward"}


def costly(name, times_longer=1.0, times_larger=1.0, **more):
    return make_core(name, {4096: 1e-3 * times_longer}, bytes_per_token=int(1024 * times_larger), **more)


def test_what_is_slower_and_larger_is_a_choice_only_if_it_scores_better():
    finding = ask(costly("cheap"), costly("large", 0.5, 2), costly("dear", 2, 2), **NOW)
    assert verdicts(finding) == {"Cheap": "yes", "Large": "yes", "Dear": "if better"}
    assert column(finding, "Rivals")[-1] == "Large, Cheap" or column(finding, "Rivals")[-1] == "Cheap, Large"
    assert any("nothing is said about quality" in note for note in finding.notes)


@pytest.mark.parametrize(
    "cheap, dear, verdict",
    [
        (0.40, 0.41, "no"),  # no difference that 2,000 examples can show
        (0.40, 0.55, "yes"),  # it costs more and scores better
        (None, 0.55, "if better"),
    ],
)
def test_scores_of_the_same_pattern_decide_what_is_worth_its_cost(cheap, dear, verdict):
    known = {"cheap": cheap, "dear": dear}
    runs = [make_card(name, accuracy=score, tier="full") for name, score in known.items() if score is not None]
    finding = ask(costly("cheap"), costly("dear", 2, 2), runs=runs, **NOW)
    assert verdicts(finding)["Dear"] == verdict


def test_scores_of_another_pattern_say_nothing():
    runs = [make_card(name, accuracy=0.4, pattern="causal_self") for name in ("cheap", "dear")]
    finding = ask(costly("cheap"), costly("dear", 2, 2), runs=runs, **NOW)
    assert set(column(finding, "Scores")) == {"unknown"}
    assert verdicts(finding)["Dear"] == "if better"


def test_a_rival_must_have_been_run_on_every_task_of_the_other():
    runs = [make_card("dear", task, accuracy=0.4) for task in ("listops", "image")]
    runs += [make_card("cheap", accuracy=0.4)]
    finding = ask(costly("cheap"), costly("dear", 2, 2), runs=runs, **NOW)
    assert verdicts(finding)["Dear"] == "if better"


def test_exact_attention_that_is_cheaper_beats_what_has_no_scores():
    finding = ask(costly("softmax", exact=True), costly("dear", 2, 2), **NOW)
    assert verdicts(finding) == {"Softmax": "yes", "Dear": "no"}


def test_a_dozen_is_shown_and_all_on_request():
    cards = [costly(f"m{i:02d}", 1 + i, 1 + i) for i in range(20)]
    few = ask(*cards, **NOW)
    assert len(few.rows) == 12
    assert any("8 more are not shown" in note for note in few.notes)
    assert len(ask(*cards, **NOW, every=True).rows) == 20


def test_a_length_between_two_is_interpolated_and_said_so():
    finding = ask(length=10_000)
    assert "interpolated between 8,192 and 16,384 tokens" in finding.lede
    assert set(column(finding, "How")) == {"between 8,192 and 16,384"}
    assert set(column(ask(), "How")) == {"measured"}


@pytest.mark.parametrize("length", [100, 100_000])
def test_nothing_is_extrapolated(length):
    with pytest.raises(DataMissing, match="nothing is extrapolated"):
        ask(length=length)


def test_memory_limits_count_and_what_does_not_fit_is_named():
    large = make_core("large", {4096: 1e-6}, bytes_per_token=2**20)
    small = make_core("small", {4096: 1e-3}, bytes_per_token=1024)
    wishes = {"pattern": "noncausal_self", "length": 4096, "mode": "forward"}
    assert {*column(ask(large, small, **wishes), "Mechanism")} == {"Large", "Small"}
    assert column(ask(large, small, **wishes, memory_limit=1.0), "Mechanism") == ["Small"]
    with pytest.raises(DataMissing, match="none is within"):
        ask(large, small, **wishes, memory_limit=0.001)
    assert any('(kernel="plain") (oom)' in note for note in ask(length=65536).notes)


def test_attention_removed_and_twins_are_never_advised():
    wishes = {"pattern": "noncausal_self", "length": 4096, "mode": "forward"}
    cards = [make_core(name, {4096: 1e-9}) for name in ("none", "lra_local")]
    assert column(ask(*cards, make_core("linear", {4096: 1.0}), **wishes), "Mechanism") == ["Linear"]


def test_the_machine_may_be_chosen_and_the_others_are_named():
    other = [make_core("linear", {16384: 1e-9}, pattern="causal_self", environment={"gpu": "Fast GPU"})]
    assert "on Test GPU" in ask(*lab_cards(), *other).lede
    assert any("Fast GPU" in note for note in ask(*lab_cards(), *other).notes)
    assert "on Fast GPU" in ask(*lab_cards(), *other, device="fast").lede
    with pytest.raises(DataMissing, match="measured: Test GPU"):
        ask(device="H200")


def test_scores_stand_beside_with_intervals_where_runs_have_them_and_are_not_invented():
    runs = [
        make_card("linear", seed=seed, accuracy=0.3 + 0.1 * seed, tier="full", pattern="causal_self") for seed in (0, 1)
    ]
    runs += [make_card("linear", accuracy=0.9, tier="smoke", pattern="causal_self")]
    runs += [make_card("performer", "text", variant="standin", pattern="causal_self")]
    finding = ask(runs=runs)
    scores = dict(zip(column(finding, "Mechanism"), column(finding, "Scores"), strict=True))
    assert scores["Linear"].startswith("listops 35.0 ± ")
    assert any("by the fullest tier that was run (listops: longspan · full)" in note for note in finding.notes)
    assert scores["Performer"] == "unknown"
    assert any("Not known: scores" in note and "Performer" in note for note in finding.notes)


def test_runs_of_one_exact_kernel_speak_for_the_others():
    finding = ask(runs=[make_card("softmax", pattern="causal_self")])
    scores = dict(zip(column(finding, "Mechanism"), column(finding, "Scores"), strict=True))
    assert scores['Softmax (kernel="plain")'] == scores["Softmax"] != "unknown"


def test_wrong_wishes_are_refused():
    with pytest.raises(UsageError, match="No mode"):
        ask(mode="trian")
    with pytest.raises(DataMissing, match="causal_cross"):
        ask(pattern="causal_cross")


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["advise", *(str(word) for word in words)])


def test_the_verb_answers_cites_and_speaks_json(call, tmp_path):
    store = Store(tmp_path / "cards")
    for card in lab_cards():
        store.add(card)
    words = ("--pattern", "CS", "--length", 16384, "--mode", "train", "--cards", tmp_path / "cards")
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Fastest is linear")
    assert json.loads(call(*words, "--json").stdout)["rows"][0]["Mechanism"] == "Linear"


def test_where_nothing_was_measured_the_cards_of_the_package_answer(call):
    result = call("--pattern", "causal_self", "--length", 16384)
    assert result.exit_code == 0, result.output
    assert "NVIDIA H200" in result.stdout


def test_named_folders_answer_alone_and_exit_3_where_they_hold_nothing(call, tmp_path):
    result = call("--pattern", "causal_self", "--length", 16384, "--cards", tmp_path)
    assert result.exit_code == 3
    assert "longspan measure" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
