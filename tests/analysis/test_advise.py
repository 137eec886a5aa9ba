"""Advice: the fastest that was measured, its cards, what is exact, what it scored; and nothing beyond that."""

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


def test_the_fastest_is_named_with_its_card_and_the_runners_up_follow():
    finding = ask()
    assert finding.lede.startswith("Use linear, not exact attention: ")
    assert "The fastest exact one is softmax" in finding.lede
    assert column(finding, "Mechanism") == ["Linear", "Performer", "Softmax", 'Softmax (kernel="plain")']
    assert column(finding, "Exact") == [False, False, True, True]
    assert column(finding, "Times the first") == sorted(column(finding, "Times the first"))
    (card,) = [one for one in lab_cards() if (one["mechanism"], one["pattern"]) == ("linear", "causal_self")]
    assert filename(card).removesuffix(".json") in finding.notes[-1]
    assert column(finding, "Card")[0] in filename(card)


def test_exact_attention_alone_when_it_is_asked_for_or_fastest():
    assert set(column(ask(exact_only=True), "Exact")) == {True}
    short = ask(length=1024, mode="forward")
    assert short.lede.startswith("Use softmax, exact attention: ")
    assert "fastest exact one" not in short.lede


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
    assert column(ask(large, small, **wishes), "Mechanism") == ["Large", "Small"]
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


def test_scores_stand_beside_where_runs_have_them_and_are_not_invented():
    runs = [make_card("linear", seed=seed, accuracy=0.3 + 0.1 * seed, tier="full") for seed in (0, 1)]
    runs += [make_card("linear", accuracy=0.9, tier="smoke"), make_card("performer", "text", variant="standin")]
    runs += [make_card("performer", "text_4k", accuracy=0.9)]  # no task of the arena's average
    finding = ask(runs=runs)
    assert column(finding, "Scores")[:2] == ["listops 35.0 (longspan · full)", ""]
    assert any("nothing is said about quality" in note for note in ask().notes)


def test_runs_of_one_exact_kernel_speak_for_the_others_under_their_name():
    scores = dict(zip(column(ask(), "Mechanism"), column(ask(runs=[make_card("softmax")]), "Scores"), strict=True))
    assert scores["Softmax"] == "listops 40.0 (longspan · smoke)"
    assert scores['Softmax (kernel="plain")'] == "listops 40.0 (longspan · smoke, softmax)"


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
    assert result.stdout.startswith("Use linear")
    assert "core-linear-causal_self-" in result.stdout
    assert json.loads(call(*words, "--json").stdout)["rows"][0]["Mechanism"] == "Linear"


def test_without_cards_the_verb_says_so_and_exits_3(call):
    result = call("--pattern", "causal_self", "--length", 16384)
    assert result.exit_code == 3
    assert "longspan measure" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
