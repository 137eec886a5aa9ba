"""Point cloud completion: views are drawn and mirrored by rule, scores are per category, resuming changes nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import longspan
from longspan import attentions, runs, tasks
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots
from longspan.core.errors import UsageError
from longspan.datasets.clouds.files import read_npz
from longspan.datasets.pcn import Clouds
from longspan.metrics.point_cloud import chamfer_l1
from longspan.results.store import Store
from longspan.tasks.point_cloud_completion import (
    Batch,
    Completer,
    EvaluationFeed,
    PointCloudCompletion,
    TrainingFeed,
    fitted,
    mirroring,
    scores,
)
from longspan.training import loop
from longspan.training.evaluation import join, summarised
from longspan.training.optimizer import learning_rate

TASK = tasks.get("point_cloud_completion")
SMOKE = TASK.protocol("longspan", "smoke")
TINY = {
    "data.train": 7,
    "data.valid": 3,
    "data.test": 4,
    "data.partial": 48,
    "data.points": 64,
    "model.dim": 16,
    "model.mlp": 16,
    "model.whole": 16,
    "model.decoder_layers": 1,
    "model.neighbours": 4,
    "model.proxies": 16,
    "model.sample": 24,
    "model.queries": 16,
    "model.predicted": 64,
    "recipe.steps": 7,
    "recipe.batch_size": 3,
    "recipe.warmup": 2,
    "recipe.evaluate_every": 3,
    "recipe.evaluation_batch": 2,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def splits(data):
    return TASK.splits(SMOKE.override(TINY), data)


def clouds(*sizes: int, views: int = 2, training: bool = True) -> Clouds:
    """Models identifiable by their points: view v of model i has points (i + 1, v + 1, k) for k = 1, 2, 3, ..."""
    lengths = [size + view for size in sizes for view in range(views)]
    edges = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(len(sizes))
    flat = np.concatenate(
        [[(i + 1, v + 1, k + 1) for k in range(size + v)] for i, size in enumerate(sizes) for v in range(views)]
    ).astype(np.float32)
    whole = np.stack([np.full((5, 3), i + 1, np.float32) for i in rows])
    ends = edges[rows[:, None] * views + np.arange(views + 1)]
    return Clouds(whole, flat, ends, rows % 2, rows, [str(i) for i in rows], ["chair", "lamp"], training)


# ------------------------------------------------------------------------------------------------------------- batches


def test_mirroring_follows_the_quarters():
    signs = mirroring(torch.tensor([0.2, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9]))[:, 0].tolist()
    both, x, z, none = [-1, 1, -1], [-1, 1, 1], [1, 1, -1], [1, 1, 1]
    assert signs == [both, both, x, x, z, z, none]


def test_a_training_batch_has_one_view_of_each_model_in_random_order_and_zeros_after_it():
    feed = TrainingFeed(clouds(6, 3, 9), 8, "cpu")
    torch.manual_seed(0)
    met = set()
    for _ in range(40):
        batch = feed.batch(np.array([2, 0, 1]))
        for row, points, truth in zip((2, 0, 1), batch.partial, batch.truth, strict=True):
            real = points[(points != 0).any(dim=1)].abs()
            assert (real[:, 0] == row + 1).all()
            view = int(real[0, 1]) - 1
            met.add((row, view))
            assert (real[:, 1] == view + 1).all()
            size = (6, 3, 9)[row] + view
            assert len(real) == min(size, 8)
            assert len(real[:, 2].unique()) == len(real)  # no point twice
            assert (points[len(real) :] == 0).all()
            signs, true_signs = points[0].sign(), truth[0].sign()
            assert torch.equal(signs, true_signs)  # the same draw for both clouds
            assert signs[1] == 1
    assert met == {(row, view) for row in range(3) for view in range(2)}


def test_all_four_mirrorings_happen():
    feed = TrainingFeed(clouds(4, 4), 4, "cpu")
    torch.manual_seed(0)
    found = {tuple(feed.batch(np.array([0])).partial[0, 0].sign().tolist()) for _ in range(60)}
    assert found == {(x, 1.0, z) for x in (-1.0, 1.0) for z in (-1.0, 1.0)}


def test_what_is_drawn_comes_from_torchs_seed_alone():
    feed, drawn = TrainingFeed(clouds(6, 3, 9), 8, "cpu"), []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(feed.batch(np.array([0, 1, 2])))
    torch.testing.assert_close(drawn[0].partial, drawn[1].partial, rtol=0, atol=0)
    assert not torch.equal(drawn[0].partial, feed.batch(np.array([0, 1, 2])).partial)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 5))
def test_a_fitted_view_has_every_point_once_or_as_many_as_fit(there, wanted, seed):
    view = np.arange(1, 3 * there + 1, dtype=np.float32).reshape(-1, 3)
    points = fitted(view, wanted, seed)
    kept = points[: min(there, wanted)]
    assert points.shape == (wanted, 3)
    assert len(np.unique(kept[:, 0])) == len(kept)
    assert set(kept[:, 0]) <= set(view[:, 0])
    assert (points[len(kept) :] == 0).all()


def test_evaluation_goes_over_all_views_with_a_seed_for_each_model():
    whole = EvaluationFeed(clouds(6, 3, 9, training=False), 8, "zero_rows", "cpu")
    assert len(whole) == 6
    alone = clouds(9, training=False)
    third = replace(alone, index=np.array([2]), partial=alone.partial + np.float32([2, 0, 0]))
    torch.testing.assert_close(EvaluationFeed(third, 8, "zero_rows", "cpu").partial, whole.partial[4:])
    assert whole.categories(np.arange(6)).tolist() == ["chair", "chair", "lamp", "lamp", "chair", "chair"]
    places = np.concatenate([places for places, _ in whole.in_batches(np.arange(6), 4)])
    assert places.tolist() == list(range(6))


# -------------------------------------------------------------------------------------------------------------- scores


def test_the_score_is_a_mean_over_categories_not_over_models():
    columns = dict.fromkeys(("cd_l2", "f_score", "input_cd_l1", "mirrored_cd_l1"), np.zeros(3))
    predictions = {"category": np.array(["a", "a", "b"]), "cd_l1": np.array([6.0, 8.0, 10.0]), **columns}
    found = TASK.summary(predictions)
    assert found["cd_l1"] == 8.5
    assert (found["cd_l1_a"], found["cd_l1_b"]) == (7, 10)


class Echo(torch.nn.Module):
    """Completes a cloud with a shifted copy of itself."""

    def forward(self, points):
        return points, points + 0.125


def test_several_processes_score_what_one_does():
    feed = EvaluationFeed(clouds(6, 3, 9, 4, training=False), 8, "zero_rows", "cpu")
    rows = np.arange(len(feed))
    whole = summarised(TASK, TASK.evaluate(Echo(), feed, rows, 3))
    shares = [TASK.evaluate(Echo(), feed, rows[i::3], 2) for i in range(3)]
    joined = summarised(TASK, join(TASK, shares))
    assert joined.metrics == pytest.approx(whole.metrics)
    np.testing.assert_array_equal(joined.predictions["category"], whole.predictions["category"])


def test_the_loss_counts_rows_of_zeros_and_the_score_does_not():
    feed = EvaluationFeed(clouds(3, training=False), 8, "zero_rows", "cpu")
    batch = feed.batch(np.array([0]))
    loss = TASK.loss(Echo(), batch).loss
    expected = chamfer_l1(batch.partial, batch.truth) + chamfer_l1(batch.partial + 0.125, batch.truth)
    torch.testing.assert_close(loss, expected.mean())
    bare = batch.partial[:, :3]
    found = scores(batch.partial, batch, "zero_rows")
    torch.testing.assert_close(found["cd_l1"], 1_000 * chamfer_l1(bare, batch.truth))
    torch.testing.assert_close(found["input_cd_l1"], found["cd_l1"])


def test_chance_is_what_the_views_score_as_they_are(splits):
    result = TASK.evaluate(Echo(), EvaluationFeed(splits.test, 10_000, "zero_rows", "cpu"), np.arange(4), 4)
    assert TASK.chance(splits.test) == pytest.approx(TASK.summary(result.predictions)["input_cd_l1"], rel=1e-5)


@pytest.mark.full
def test_the_baselines_on_the_reference_views_are_the_known_ones():
    """Published beside the data: 28.5 for the input, 23.0 with its mirror image in x = 0, means over models."""
    folder = Path(__file__).parents[2] / "../shared/data/pointcloud_furniture"
    if not folder.exists():
        pytest.skip("the furniture is not on this machine")
    views, found = read_npz(folder / "partial_10.npz", "points", "offsets", "ids", "category"), []
    for i, (name, kind) in enumerate(zip(views["ids"], views["category"], strict=True)):
        models = read_npz(folder / f"{kind}.npz", "points", "ids")
        whole = models["points"][models["ids"].tolist().index(name)].astype(np.float32)
        partial = views["points"][views["offsets"][i] : views["offsets"][i + 1]]
        batch = Batch(torch.tensor(partial)[None], torch.tensor(whole)[None])
        found.append(scores(batch.partial[:, :1], batch, "zero_rows"))
    for name, expected in (("input_cd_l1", 28.5), ("mirrored_cd_l1", 23.0)):
        assert torch.cat([one[name] for one in found]).mean().item() == pytest.approx(expected, abs=0.05)


# ---------------------------------------------------------------------------------------------------------------- runs


def run(out, data, mechanism="softmax", pattern=None, changes=(), **more):
    cell = runs.Cell("point_cloud_completion", mechanism, pattern, "longspan", "smoke", 0, TINY | dict(changes))
    return runs.run(cell, out=out, data=data, device="cpu", progress=False, **more)


def outcome(card, out):
    path, _ = next(iter(Store(out / "cards").entries()))
    with np.load(path.with_name(card["files"]["predictions"])) as arrays:
        predictions = {name: arrays[name].tolist() for name in arrays.files}
    curve = [{name: value for name, value in point.items() if "second" not in name} for point in card["curve"]]
    return card["metrics"], curve, predictions


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_run_cut_in_the_middle_ends_with_the_card_of_an_unbroken_one(data, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", data)
    update, steps = loop.set_learning_rate, []

    def die(optimizer, rate):
        steps.append(rate)
        if len(steps) > 4:
            raise Killed
        update(optimizer, rate)

    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "set_learning_rate", die)
        with pytest.raises(Killed):
            run(tmp_path / "cut", data)
    resumed = run(tmp_path / "cut", data)
    assert resumed["timing"]["resumed"] == 1
    assert outcome(resumed, tmp_path / "cut") == outcome(whole, tmp_path / "whole")


@pytest.mark.parametrize(
    "mechanism, pattern, places",
    [
        ("performer", None, {"decoder.0.cross"}),
        ("cosformer", None, {"decoder.0.cross"}),
        ("abc", None, {"decoder.0.cross"}),
        ("local", "NS", {"encoder.0.attention"}),
        ("s4d", "NS", {"encoder.0.attention"}),
        ("abc", "NS", {"encoder.0.attention"}),
    ],
)
def test_a_pattern_is_replaced_and_the_others_are_left(mechanism, pattern, places, data, tmp_path):
    card = run(tmp_path, data, mechanism, pattern, {"recipe.steps": 2, "recipe.evaluate_every": 2})
    assert {name for name, what in card["slots"].items() if not what.startswith("Softmax")} == places
    assert len(card["slots"]) == 3
    assert (card["dataset"]["variant"], card["score"]["name"]) == ("standin", "cd_l1")


def test_a_trained_network_completes_a_users_cloud(data, tmp_path):
    card = run(tmp_path, data, changes={"recipe.steps": 2, "recipe.evaluate_every": 2}, weights=True)
    path, _ = next(iter(Store(tmp_path / "cards").entries()))
    completer = longspan.load(path)
    given = np.random.default_rng(0).uniform(-0.4, 0.4, (20, 3))
    whole = completer.complete(given)
    assert whole.shape == (64 + 20, 3)
    assert whole.dtype == np.float32
    assert {tuple(point) for point in whole[64:]} == {tuple(point) for point in given.astype(np.float32)}
    np.testing.assert_array_equal(whole, completer.complete(given))
    assert len(completer.complete(np.ones((500, 3)))) == 64 + 48
    assert card["status"] == "ok"


@pytest.mark.parametrize("wrong", [np.zeros((0, 3)), np.zeros((4, 2)), np.full((4, 3), np.nan), np.zeros(3)])
def test_what_is_no_cloud_is_not_completed(wrong):
    with pytest.raises(UsageError, match="finite points"):
        Completer(Echo(), 8, "cpu").complete(wrong)


def test_samples_have_the_form_that_is_drawn(splits):
    from longspan.results import samples

    feed = EvaluationFeed(splits.test, 48, "zero_rows", "cpu")
    found = TASK.evaluate(Echo(), feed, np.arange(len(feed)), 4).samples
    assert samples.fault_of(found) is None
    assert found["partial"].shape == (4, 48, 3)
    assert not TASK.validate(Echo(), feed, np.arange(len(feed)), 4).samples


# --------------------------------------------------------------------------------------------------------------- rules


def test_the_rate_of_cab_falls_every_epoch():
    recipe = TASK.protocol("cab-2023", "full").recipe
    rates = [learning_rate(recipe, epoch * 603) for epoch in (0, 1, 21, 300)]
    assert rates == pytest.approx([5e-4, 4.974977e-4, 4.5e-4, 1.109920e-4], rel=1e-6)
    assert recipe.steps == 603 * 301


def test_cab_selects_on_test_and_longspan_does_not():
    assert TASK.protocol("cab-2023", "full").data.validation == "test"
    assert TASK.protocol("longspan", "full").data.validation == "valid"


@pytest.mark.parametrize(
    "mechanism, pattern, protocol, expected",
    [
        ("softmax", "noncausal_cross", "cab-2023", 52_830_054),
        ("performer", "noncausal_cross", "cab-2023", 52_839_270),
        ("abc(slots=64)", "noncausal_cross", "cab-2023", 52_904_806),
    ],
)
def test_the_full_network_has_the_published_parameters(mechanism, pattern, protocol, expected):
    rules = TASK.protocol(protocol, "full")
    with torch.device("meta"):
        network = TASK.model(Slots(attentions.get(mechanism), frozenset({Pattern(pattern)})), rules)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.full
def test_the_smoke_model_learns(tmp_path):
    card = runs.run(
        runs.Cell("point_cloud_completion", "softmax"), out=tmp_path, data=tmp_path, device="cpu", progress=False
    )
    first, *_, last = (point["valid_cd_l1"] for point in card["curve"])
    assert last < 0.75 * first
    assert card["dataset"]["variant"] == "standin"


def test_the_task_is_found_by_its_name():
    assert isinstance(TASK, PointCloudCompletion)
