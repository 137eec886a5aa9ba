"""Forecasting: the published rules, windows taken from the series as they are, and a smoke run that learns."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import attentions, datasets, tasks
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots, filled
from longspan.cli import app
from longspan.runs import Cell, RunPlan, count_parameters, run
from longspan.runs.fabric import make_fabric
from longspan.tasks.forecasting import Forecasting, WindowFeed
from longspan.training.loop import train
from longspan.training.optimizer import learning_rate

SETTINGS = {  # past, prefix, horizon, encoder and decoder layers of CAB's table, and six epochs of whole batches
    "etth1": ((336, 336, 720, 2, 1), 6 * 237),
    "etth1_univariate": ((168, 168, 720, 2, 1), 6 * 242),
    "etth2": ((720, 336, 720, 2, 1), 6 * 225),
    "etth2_univariate": ((336, 336, 720, 2, 1), 6 * 237),
    "ettm1": ((672, 384, 672, 2, 1), 6 * 1_038),
    "ettm1_univariate": ((384, 384, 672, 2, 1), 6 * 1_047),
    "ecl": ((336, 336, 960, 3, 2), 6 * 534),
    "ecl_univariate": ((336, 336, 960, 3, 2), 6 * 534),
    "weather": ((720, 336, 720, 3, 2), 6 * 722),
    "weather_univariate": ((720, 336, 720, 3, 2), 6 * 722),
}
NAMES = [f"forecasting_{name}" for name in SETTINGS]


@pytest.fixture(scope="module")
def task():
    return tasks.get("forecasting_etth1")


@pytest.fixture(scope="module")
def splits(task, tmp_path_factory):
    return task.splits(task.protocol("longspan", "smoke"), tmp_path_factory.mktemp("data"))


# ---------------------------------------------------------------------------------------------------------------- rules


def test_every_setting_of_the_table_is_a_task_and_there_is_no_other():
    assert sorted(NAMES) == [name for name in tasks.names() if isinstance(tasks.get(name), Forecasting)]


@pytest.mark.parametrize("name", SETTINGS)
def test_both_protocols_have_the_published_lengths_layers_and_steps(name):
    (past, prefix, horizon, encoder, decoder), steps = SETTINGS[name]
    for protocol in ("cab-2023", "longspan"):
        rules = tasks.get(f"forecasting_{name}").protocol(protocol, "full")
        assert (rules.data.past, rules.data.prefix, rules.data.horizon) == (past, prefix, horizon)
        assert rules.data.variables == ("target" if name.endswith("univariate") else "all")
        model = rules.model
        assert (model.encoder_layers, model.decoder_layers, model.dim, model.heads, model.mlp) == (
            *(encoder, decoder),
            *(512, 8, 2_048),
        )
        assert model.dropout == model.attention_dropout == 0.05
        assert rules.recipe.steps == steps


def test_cab_trains_as_the_specification_says():
    recipe = tasks.get("forecasting_etth1").protocol("cab-2023", "full").recipe
    assert dataclasses.asdict(recipe) == dataclasses.asdict(recipe) | {
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "schedule": "exponential",
        "decay_rate": 0.5,
        "decay_every": 237,
        "decay_after": 1,
        "evaluate_every": 237,
        "batch_size": 32,
        "warmup": 0,
        "weight_decay": 0.0,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "clip": None,
        "patience": 3,
        "selection": "best",
        "drop_last": True,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_second_epoch_runs_at_the_full_rate_and_each_later_one_at_half_of_the_last(name):
    recipe = tasks.get(name).protocol("cab-2023", "full").recipe
    epoch = recipe.evaluate_every
    first, last = ([learning_rate(recipe, e * epoch + at) / 1e-4 for e in range(6)] for at in (0, epoch - 1))
    assert first == last == pytest.approx([1, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16])


@pytest.mark.parametrize("name", NAMES)
def test_longspan_counts_every_window_and_cab_whole_batches(name):
    task = tasks.get(name)
    rules = {protocol: task.protocol(protocol, "full") for protocol in ("longspan", "cab-2023")}
    corpus = datasets.get(task.dataset)
    every, whole = (corpus.counts(rules[protocol].data) for protocol in ("longspan", "cab-2023"))
    assert whole == {"train": every["train"]} | {split: every[split] // 32 * 32 for split in ("valid", "test")}
    assert not rules["longspan"].recipe.drop_last


@pytest.mark.parametrize("protocol", ["cab-2023", "longspan"])
@pytest.mark.parametrize("name", NAMES)
def test_lite_is_a_tenth_and_smoke_is_a_stand_in(name, protocol):
    task = tasks.get(name)
    full, lite = (task.protocol(protocol, tier) for tier in ("full", "lite"))
    assert (lite.data, lite.model, lite.recipe.steps) == (full.data, full.model, full.recipe.steps // 10)
    assert task.protocol("longspan", "smoke").data.standin
    assert not full.data.standin


# ---------------------------------------------------------------------------------------------------------------- slots


def test_the_self_slots_have_probsparse_under_cab_and_softmax_under_longspan():
    for protocol, others in (("cab-2023", "InformerProbSparse"), ("longspan", "Softmax")):
        plan = RunPlan.of(Cell("forecasting_ecl", "abc", None, protocol, "full"))
        with torch.device("meta"):
            found = filled(plan.task.model(plan.slots, plan.protocol.override({"model.dim": 16})))
        selfs = {f"encoder.{layer}.attention": f"{others} (noncausal_self)" for layer in range(3)}
        selfs |= {f"decoder.{layer}.attention": f"{others} (causal_self)" for layer in range(2)}
        assert found == selfs | {f"decoder.{layer}.cross": "ABC (noncausal_cross)" for layer in range(2)}


def test_other_patterns_can_be_asked_for_one_by_one_or_together(task):
    assert task.patterns(None) == (Pattern.NONCAUSAL_CROSS,)
    assert task.patterns("NS+CS") == (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF)
    plan = RunPlan.of(Cell("forecasting_etth1", "linear", "NS", "cab-2023", "full", overrides={"model.dim": 16}))
    kinds = {name: what.split()[0] for name, what in filled(plan.model()).items()}
    assert kinds == {
        "encoder.0.attention": "LinearAttention",
        "encoder.1.attention": "LinearAttention",
        "decoder.0.attention": "InformerProbSparse",
        "decoder.0.cross": "Softmax",
    }


@pytest.mark.parametrize(
    "name, mechanism, total",
    [
        ("forecasting_etth1", "softmax", 11_330_055),
        ("forecasting_ettm1_univariate", "softmax", 11_308_545),
        ("forecasting_ecl", "abc(slots=16)", 20_604_225),
        ("forecasting_weather", "softmax", 19_492_364),
        ("forecasting_weather_univariate", "softmax", 19_452_929),
    ],
)
def test_parameters_by_task_are_the_published_ones(name, mechanism, total):
    assert count_parameters(name, mechanism, "cab-2023", "full")["total"] == total


# ----------------------------------------------------------------------------------------------------------------- feed


@given(rows=st.lists(st.integers(0, 399), min_size=1, max_size=9))
@settings(deadline=None, max_examples=30)
def test_a_batch_holds_its_windows_as_they_lie_in_the_series(rows, splits):
    windows = splits.train
    batch = WindowFeed(windows, "cpu").batch(np.array(rows))
    for place, row in enumerate(rows):
        past, future = windows.example(row)
        np.testing.assert_array_equal(batch.seen[place], past)
        np.testing.assert_array_equal(batch.truth[place], future)
        start = windows.starts[row]
        np.testing.assert_array_equal(batch.times[place], windows.times[start : start + 72])


def test_scores_are_means_over_all_windows_whatever_the_batch(task, splits):
    rules = task.protocol("longspan", "smoke")
    torch.manual_seed(0)
    model = task.model(Slots(attentions.get("softmax"), frozenset()), rules).eval()
    feed = task.feed(splits.test, rules, "cpu")
    rows = np.arange(len(feed))
    with torch.no_grad():
        one, other = (task.evaluate(model, feed, rows, size) for size in (64, 7))
        forecast = model(feed.batch(rows).seen, feed.batch(rows).times)
    truth = np.stack([splits.test.example(int(row))[1] for row in rows])
    difference = forecast.numpy().astype(np.float64) - truth
    assert one.metrics["mse"] == pytest.approx(np.square(difference).mean(), rel=1e-5)
    assert one.metrics["mae"] == pytest.approx(np.abs(difference).mean(), rel=1e-5)
    assert other.metrics == pytest.approx(one.metrics, rel=1e-5)
    assert one.count == 64
    np.testing.assert_array_equal(one.predictions["row"], rows)
    assert one.predictions["mse"].mean() == pytest.approx(one.metrics["mse"], rel=1e-5)


def test_made_up_windows_are_as_long_as_real_ones(task):
    rules = task.protocol("cab-2023", "full")
    batch = task.feed(task.made_up(rules, 3), rules, "cpu").batch(np.arange(3))
    assert batch.seen.shape == (3, 336, 7)
    assert batch.truth.shape == (3, 720, 7)


# ----------------------------------------------------------------------------------------------------------------- runs


def test_a_smoke_run_learns_and_its_card_says_how(tmp_path):
    card = run(Cell("forecasting_etth1_univariate", "abc"), out=tmp_path, data=tmp_path / "data", progress=False)
    score = card["score"]
    assert (score["name"], score["higher_is_better"], score["count"]) == ("mse", False, 64)
    assert score["value"] < 0.5 * score["chance"]
    assert card["metrics"]["test"]["mae"]["value"] < score["value"] ** 0.5  # by Jensen's inequality
    assert (card["pattern"], card["dataset"]["variant"]) == ("noncausal_cross", "standin")
    assert card["slots"]["decoder.0.cross"] == "ABC (noncausal_cross)"
    assert card["slots"]["decoder.0.attention"] == "Softmax (causal_self)"


@pytest.mark.parametrize(
    "words, code, sentence",
    [
        (["--tier", "full"], 3, "longspan data import etth1 PATH"),
        (["--real"], 3, "longspan data prepare etth1"),
        (["--pattern", "CC"], 2, "no slot for causal_cross"),
        (["--set", "data.prefix=100"], 2, "prefix=100 and past=48"),
        (["--set", "model.self_slots=sofmax"], 2, "Did you mean 'softmax'"),
    ],
)
def test_what_cannot_be_run_ends_with_a_sentence(words, code, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    done = CliRunner().invoke(app, ["run", "forecasting_etth1", "-a", "softmax", "--out", str(tmp_path), *words])
    assert done.exit_code == code
    assert sentence in " ".join(done.output.split())


class Cut(Exception):
    """Raised where a test ends a run."""


def test_a_run_that_was_cut_in_an_epoch_goes_on_to_the_same_numbers(task, splits, tmp_path):
    """With batch norm, ProbSparse's own sampling, dropout, only whole batches and a decaying learning rate."""
    smoke, cab = task.protocol("longspan", "smoke"), task.protocol("cab-2023", "full")
    model = dataclasses.replace(smoke.model, dropout=0.1, attention_dropout=0.1, self_slots=cab.model.self_slots)
    recipe = dataclasses.replace(cab.recipe, steps=10, batch_size=8, decay_every=4, evaluate_every=4)
    rules = dataclasses.replace(smoke, model=model, recipe=recipe)
    slots = Slots(attentions.get("performer"), frozenset({Pattern.NONCAUSAL_CROSS}), task.others(rules))

    def cut(progress, steps):
        if progress.step == 6:
            raise Cut

    def trained(folder, watch=None):
        torch.manual_seed(0)
        network, fabric = task.model(slots, rules), make_fabric("cpu", "fp32", 1)
        pause = 60.0 if watch is None else -1.0
        return train(
            task, network, splits, rules, fabric=fabric, seed=0, folder=folder, watch=watch, save_every_seconds=pause
        )

    whole = trained(tmp_path / "whole")
    with pytest.raises(Cut):
        trained(tmp_path / "cut", cut)
    resumed = trained(tmp_path / "cut")
    assert resumed.progress.resumed == 1
    assert resumed.progress.curve == whole.progress.curve
    assert resumed.test.metrics == whole.test.metrics


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_network_trains_in_either_precision(precision, task, splits):
    rules = task.protocol("longspan", "smoke").override({"model.self_slots": "informer_probsparse"})
    model = task.model(
        Slots(attentions.get("cosformer"), frozenset({Pattern.NONCAUSAL_CROSS}), task.others(rules)), rules
    )
    batch = task.feed(splits.train, rules, "cpu").batch(np.arange(4))
    with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
        result = task.loss(model, batch)
    result.loss.backward()
    assert result.loss.dtype == torch.float32
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
