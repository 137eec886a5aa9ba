"""Probes of small trained models: every answer is a valid card, and questions that make no sense are refused."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import longspan
from longspan import analysis, probes
from longspan.cli import app
from longspan.core.errors import DataMissing, UnknownName, UsageError
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.results.verify import verify

SMALL = {"recipe.steps": 2, "recipe.evaluate_every": 1, "recipe.batch_size": 4, "recipe.evaluation_batch": 4}
SMALL |= {"data.train": 12, "data.valid": 8, "data.test": 8, "model.dim": 8, "model.mlp": 8}
FEW_BOOKS = {"data.train": 2, "data.valid": 1, "data.test": 1, "data.vocabulary": 300, "model.layers": 1}
RUNS = {
    "listops": ("listops", "softmax", {"model.layers": 2}),
    "recurrent": ("listops", "s4d", {"model.layers": 1}),
    "text": ("text", "softmax", {"model.layers": 1}),
    "pathfinder": ("pathfinder_cls", "softmax", {"model.layers": 2}),
    "local": ("pathfinder", "local(window=4)", {}),
    "learned": ("pathfinder", "softmax", {"model.positions": "learned"}),
    "linformer": ("pathfinder", "linformer", {}),
    "gpt2": ("lm", "softmax", FEW_BOOKS | {"data.length": 16}),
    "roberta": ("mlm", "softmax", FEW_BOOKS),
    "transformer": ("summarization", "softmax", {"model.heads": 2, "model.longest": 4}),
    "kinds": ("recall", "linear", {"model.layers": 1}),
    "informer": ("forecasting_etth1", "softmax", {}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("inquiry")


@pytest.fixture(scope="module")
def trained(place):
    """The card of each run, trained on first use."""
    known = {}

    def get(name):
        if name not in known:
            task, mechanism, changes = RUNS[name]
            where = {"out": place / name, "data": place / "data", "device": "cpu"}
            longspan.run(task, mechanism, overrides=SMALL | changes, progress=False, **where)
            (known[name],) = (path for path, card in Store(place / name / "cards").entries() if card["kind"] == "run")
        return known[name]

    return get


@pytest.fixture
def ask(trained, place):
    def ask_(question, name, **how):
        return longspan.ask(question, trained(name), out=place / name, data=place / "data", device="cpu", **how)

    return ask_


def test_a_span_by_weights_lies_between_none_and_the_longest(ask):
    card, path = ask("span", "listops", samples=5)
    found = card["results"]
    assert path.parent.name == "probes"
    assert found["source"] == "weights"
    assert found["samples"] == 5
    assert 0 < found["mean"] < found["length"]
    assert np.shape(found["by_layer"]) == (2, 2)
    assert found["mean"] == pytest.approx(np.mean(found["by_layer"]), rel=1e-3)
    assert all(finding.status != "broken" for finding in verify(path))


def test_an_answer_away_from_the_card_of_its_run_still_says_which_data_and_settings_it_had(ask):
    """Without these an answer about a stand-in would look like one about the real data."""
    card, path = ask("span", "text", samples=2)
    alone = analysis.Evidence(probes=[card])
    assert alone.rules(card) == analysis.gather([path.parents[1]]).rules(card)
    assert alone.rules(card).startswith("longspan · smoke · stand-in data · with recipe.steps=2")


def test_an_answer_that_names_its_data_takes_the_place_of_one_that_does_not(ask):
    card, _ = ask("span", "listops", samples=5)
    earlier = {name: value for name, value in card.items() if name != "sha256"}
    earlier["subject"] = {k: v for k, v in card["subject"].items() if k not in ("dataset", "overrides")}
    earlier = cards.seal(earlier)
    cards.validate(earlier)
    assert cards.cell(card) == cards.cell(earlier)
    assert analysis.Evidence(probes=[earlier]).rules(earlier) == "longspan · smoke"


def test_a_mechanism_without_a_matrix_is_asked_by_gradients_and_the_card_says_so(ask):
    card, _ = ask("span", "recurrent", samples=3)
    assert card["results"]["source"] == "gradients"
    assert "d y_i / d x_j" in card["method"]
    local, _ = ask("span", "local", samples=2)
    assert local["results"]["mean"] <= 4  # tokens a window of 4 can reach


def test_the_same_question_has_the_same_answer(ask):
    assert ask("span", "recurrent", samples=3)[0]["results"] == ask("span", "recurrent", samples=3)[0]["results"]


def test_the_subject_names_the_very_run(ask, trained):
    run, card = cards.read(trained("listops")), ask("gap", "listops")[0]
    assert card["subject"]["card"] == run["sha256"]
    assert card["subject"]["mechanism"] == "softmax"


def test_the_gap_is_that_of_the_whole_training_set_to_the_test_score(ask, trained):
    run, found = cards.read(trained("listops")), ask("gap", "listops")[0]["results"]
    assert found["train"]["count"] == SMALL["data.train"]
    assert found["test"]["accuracy"] == run["score"]["value"]
    assert found["gap"] == pytest.approx(found["train"]["accuracy"] - found["test"]["accuracy"])


def test_the_gap_of_an_accuracy_that_is_a_mean_over_kinds(ask, trained):
    run, found = cards.read(trained("kinds")), ask("gap", "kinds")[0]["results"]
    assert found["test"]["accuracy"] == run["score"]["value"]
    assert 0 <= found["train"]["accuracy"] <= 1


def test_rollout_maps_lie_over_their_images(ask):
    card, _ = ask("rollout", "pathfinder", samples=2)
    assert card["results"]["query"] == "cls"
    assert {example["label"] for example in card["results"]["examples"]} == {0, 1}
    for example in card["results"]["examples"]:
        assert np.shape(example["image"]) == np.shape(example["map"]) == (12, 12)
        assert 0 < np.sum(example["map"]) < 1  # the rest lies on the class token
        assert 0 <= example["lit_share"] <= 1


def test_a_model_that_pools_by_mean_is_labelled_so(ask):
    card, _ = ask("rollout", "learned", samples=1)
    assert card["results"]["query"] == "mean"
    assert "no class token" in card["method"]


def test_embeddings_come_with_their_arrays(ask, place):
    card, path = ask("embeddings", "learned")
    evidence = analysis.gather([place / "learned" / "cards"])
    arrays = evidence.arrays(card)
    assert arrays["intensity"].shape == (256, 256)
    assert arrays["position"].shape == (144, 144)
    np.testing.assert_allclose(np.diag(arrays["position"].astype(float)), 1, atol=1e-3)
    assert card["results"]["by_intensity_distance"][0] == 1
    assert all(finding.status != "broken" for finding in verify(path))


def test_transfer_evaluates_on_the_longer_task(ask):
    card, _ = ask("transfer", "local", samples=2)
    found = card["results"]
    assert (found["from_length"], found["to_length"]) == (12 * 12, 14 * 14)
    assert found["count"] == 2
    assert found["above_chance"] == (found["accuracy"] > found["chance"] + 3 * found["standard_error"])


@pytest.mark.parametrize(
    "question, name, words",
    [
        ("transfer", "learned", "learned 144 positions"),
        ("transfer", "linformer", "bound to the length"),
        ("transfer", "listops", "trained on Pathfinder"),
        ("rollout", "listops", "square image"),
        ("rollout", "local", "has none"),
        ("embeddings", "pathfinder", "sinusoids"),
        ("embeddings", "listops", "belong to images"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(ask, question, name, words):
    with pytest.raises(UsageError, match=words):
        ask(question, name)


@pytest.mark.parametrize("name", ["gpt2", "roberta", "transformer", "informer"])
@pytest.mark.parametrize("question", probes.QUESTIONS)
def test_a_network_that_is_no_classifier_is_asked_only_what_it_can_answer(call, trained, question, name, tmp_path):
    """A language model has a perplexity at every length; all else is about encoders that classify."""
    result = call("probe", question, trained(name), "--samples", 1, "--out", tmp_path, "--device", "cpu")
    if (question, name) == ("extrapolation", "gpt2"):
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2
    assert RUNS[name][0] in result.stderr
    assert "name the card of a" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_unknown_question_and_a_card_of_another_kind_are_refused(ask, trained):
    with pytest.raises(UnknownName, match="Did you mean 'span'"):
        longspan.ask("spam", trained("listops"))
    _, path = ask("gap", "listops")
    with pytest.raises(UsageError, match="card of a probe, not of a run"):
        longspan.ask("gap", path)


def test_other_data_than_those_of_the_run_are_refused(trained, place, tmp_path):
    run = cards.read(trained("listops"))
    changed = {**run, "dataset": {**run["dataset"], "sha256": "0" * 64}}
    del changed["sha256"]
    path = cards.write(tmp_path / "card.json", cards.seal(changed))
    weights = run["files"]["weights"]
    (tmp_path / weights).write_bytes(trained("listops").with_name(weights).read_bytes())
    with pytest.raises(DataMissing, match="prepare the data of the run"):
        longspan.ask("span", path, data=place / "data", out=tmp_path)


# ---------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def call(place, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(place / "data"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(place)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_probe_prints_the_answer_and_where_it_lies(call, trained, tmp_path):
    result = call("probe", "span", trained("listops"), "--samples", 2, "--out", tmp_path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "Required attention span" in result.stdout
    (path,) = (tmp_path / "cards" / "probes").glob("*.json")
    assert path.name in result.stdout.replace("\n", "")
    verified = call("verify", path)
    assert verified.exit_code == 0, verified.output


def test_probe_draws_and_prints_cards_as_json(call, trained, tmp_path):
    words = ("--samples", 2, "--json", "-o", tmp_path / "figures", "--out", tmp_path, "--device", "cpu")
    result = call("probe", "rollout", trained("pathfinder"), *words)
    assert result.exit_code == 0, result.output
    (card,) = json.loads(result.stdout)
    assert card["question"] == "rollout"
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"rollout.html", "rollout.pdf", "rollout.png"}


def test_a_card_without_weights_is_one_sentence(call, trained, tmp_path):
    run = cards.read(trained("listops"))
    bare = {name: value for name, value in run.items() if name != "sha256"} | {"files": {}}
    result = call("probe", "span", cards.write(tmp_path / "card.json", bare))
    assert result.exit_code == 2
    assert "no weights beside it" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
