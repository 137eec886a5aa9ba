"""Super-resolution: the published rules, losses with known noise, pictures independent of the batch, a resumed run."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import longspan
from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.backbones.parameters import count_shapes
from longspan.backbones.slots import Slots
from longspan.cli import app
from longspan.core.errors import UsageError
from longspan.datasets import faces
from longspan.results.samples import fault_of
from longspan.runs import Cell, RunPlan, count_parameters, run
from longspan.runs.fabric import make_fabric
from longspan.tasks import super_resolution
from longspan.tasks.diffusion import Diffusion, normal
from longspan.tasks.super_resolution import Network, Upscaler, colours, to_pictures
from longspan.training.loop import train

TINY = Network(
    side=16, dim=8, multipliers=(1, 2), blocks=1, attn_res=(8,), groups=4, dropout=0.1, diffusion=Diffusion(sampled=4)
)
DATA = faces.Data(low=4, high=16, train=27, valid=3, test=5, standin=True)


@pytest.fixture(scope="module")
def task():
    return tasks.get("super_resolution")


@pytest.fixture(scope="module")
def rules(task):
    smoke = task.protocol("longspan", "smoke")
    recipe = dataclasses.replace(smoke.recipe, steps=6, batch_size=4, evaluate_every=3)
    return dataclasses.replace(smoke, data=DATA, model=TINY, recipe=recipe)


@pytest.fixture(scope="module")
def splits(task, rules, tmp_path_factory):
    return task.splits(rules, tmp_path_factory.mktemp("data"))


def slots(mechanism="softmax"):
    return Slots(attentions.get(mechanism), frozenset({Pattern.NONCAUSAL_SELF}))


class Fixed(nn.Module):
    """A network that returns the given function of the noisy picture and the level."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, upsampled, noisy, level):
        return self.answer(noisy, level)


# ---------------------------------------------------------------------------------------------------------------- rules


def test_cab_trains_as_the_specification_says(task):
    rules = task.protocol("cab-2023", "full")
    assert dataclasses.asdict(rules.recipe) == dataclasses.asdict(rules.recipe) | {
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "schedule": "constant",
        "warmup": 0,
        "betas": (0.9, 0.999),
        "weight_decay": 0.0,
        "batch_size": 4,
        "steps": 1_000_000,
        "clip": None,
        "average": 0.0,
        "evaluate_every": 50_000,
        "selection": "mean_of_last",
        "averaged": 5,
    }
    assert rules.recipe.evaluations()[-5:] == [800_000, 850_000, 900_000, 950_000, 1_000_000]
    assert rules.model == Network(levels="batch")
    assert rules.model.diffusion == Diffusion(2_000, 1e-6, 1e-2)
    assert not rules.data.held_out  # all of FFHQ is training data
    assert rules.recipe.steps / (70_000 / 4) == pytest.approx(57.1, abs=0.1)


def test_longspan_shows_as_many_pictures_and_keeps_validation_apart(task):
    cab, longspan = (task.protocol(name, "full") for name in ("cab-2023", "longspan"))
    assert longspan.recipe.steps * longspan.recipe.batch_size == cab.recipe.steps * cab.recipe.batch_size
    assert longspan.data.held_out
    assert dataclasses.replace(longspan.model, levels="batch", diffusion=Diffusion()) == cab.model
    assert longspan.model.diffusion == Diffusion(predicts="velocity")


@pytest.mark.parametrize("protocol", ["cab-2023", "longspan"])
def test_lite_has_the_full_network_and_diffusion_and_is_scored_on_16_pictures(task, protocol):
    full, lite, smoke = (task.protocol(protocol, tier) for tier in ("full", "lite", "smoke"))
    assert lite.model == full.model
    assert lite.data.test == 16
    assert not lite.data.standin
    assert smoke.data.standin


@pytest.mark.parametrize(
    "mechanism, total",
    [("softmax", 99_550_467), ("abc", 99_720_451), ("longshort", 99_657_043), ("s4d", 93_621_651)],
)
def test_the_published_parameters_are_those_of_the_presets(mechanism, total):
    form = str(RunPlan.of(Cell("super_resolution", mechanism, None, "cab-2023", "full")).mechanism)
    assert count_parameters("super_resolution", form, "cab-2023", "full")["total"] == total


def test_where_attention_stands_is_a_setting_that_is_on_the_card():
    overrides = {"model.attn_res": (16, 32, 64)}
    plan = RunPlan.of(Cell("super_resolution", "softmax", None, "cab-2023", "full", overrides=overrides))
    assert count_shapes(plan.model)["total"] == 99_466_627
    assert tuple(plan.identity["settings"]["model"]["attn_res"]) == (16, 32, 64)


def test_a_list_of_sides_is_typed_like_any_setting(rules):
    with pytest.raises(UsageError, match=r"takes \(int, \.\.\.\)"):
        rules.override({"model.attn_res": 16})
    with pytest.raises(UsageError, match="takes int"):
        rules.override({"model.attn_res": (8, "16")})


def test_network_and_data_of_different_sides_are_refused(task, rules):
    with pytest.raises(UsageError, match=r"model\.side and data\.high"):
        task.model(slots(), rules.override({"data.high": 32}))


# ------------------------------------------------------------------------------------------------------------- training


def test_a_network_that_knows_the_noise_has_no_loss(task, rules, splits):
    black = dataclasses.replace(splits.train, high=np.full_like(splits.train.high, 255))
    batch = task.feed(black, rules, "cpu").batch(np.arange(4))
    # Every colour is 1, so the noise can be read off the noisy picture.
    perfect = Fixed(lambda x, g: (x - g[:, None, None, None]) / (1 - g**2).sqrt()[:, None, None, None])
    assert float(task.loss(perfect, batch).loss) == pytest.approx(0, abs=1e-3)


def test_a_network_that_sees_no_noise_loses_its_mean_size(task, rules, splits):
    torch.manual_seed(0)
    batch = task.feed(splits.train, rules, "cpu").batch(np.arange(27))
    result = task.loss(Fixed(lambda x, g: torch.zeros_like(x)), batch)
    assert float(result.loss) == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)
    assert result.count == 27


@pytest.mark.parametrize("levels", ["batch", "sample"])
def test_a_batch_has_one_step_of_the_diffusion_or_each_picture_its_own(task, rules, splits, levels):
    feed = task.feed(splits.train, rules.override({"model.levels": levels}), "cpu")
    torch.manual_seed(3)
    batch = feed.batch(np.arange(8))
    assert batch.between.shape == (2, 1 if levels == "batch" else 8)
    assert bool((batch.between[0] > batch.between[1]).all())
    torch.manual_seed(3)
    torch.testing.assert_close(feed.batch(np.arange(8, 16)).between, batch.between)  # drawn from the loop's seed
    seen = []
    task.loss(Fixed(lambda x, g: seen.append(g) or x), batch)
    assert bool(((seen[0] <= batch.between[0]) & (seen[0] >= batch.between[1])).all())
    assert len(set(seen[0].tolist())) > 1  # a separate level for each, even between the same two


def test_pictures_and_their_conditions_are_mirrored_together(task, rules, splits):
    twins = dataclasses.replace(splits.train, upsampled=splits.train.high)
    batch = task.feed(twins, rules, "cpu").batch(np.arange(16))
    seen = []

    class Spy(nn.Module):
        def forward(self, upsampled, noisy, level):
            seen.append((upsampled, noisy, level))
            return torch.zeros_like(noisy)

    quiet = dataclasses.replace(batch, between=torch.ones(2, 1))  # level 1: no noise at all
    task.loss(Spy(), quiet)
    upsampled, noisy, _ = seen[0]
    torch.testing.assert_close(upsampled, noisy)
    plain = colours(batch.high)
    kept = [bool(torch.equal(made, true)) for made, true in zip(upsampled, plain, strict=True)]
    turned = [bool(torch.equal(made, true.flip(2))) for made, true in zip(upsampled, plain, strict=True)]
    assert all(a or b for a, b in zip(kept, turned, strict=True))
    assert 0 < sum(turned) < 16


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_network_trains_in_either_precision(precision, task, rules, splits):
    model = task.model(slots("linear"), rules)
    batch = task.feed(splits.train, rules, "cpu").batch(np.arange(4))
    with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
        result = task.loss(model, batch)
    result.loss.backward()
    assert result.loss.dtype == torch.float32
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_pictures_too_many_for_the_device_stay_on_the_host(task, rules, splits, monkeypatch):
    held = task.feed(splits.train, rules, "cpu")
    monkeypatch.setattr(super_resolution, "ON_THE_DEVICE", 0)
    mapped = task.feed(splits.train, rules, "cpu")
    assert mapped.held is None
    for one, other in zip(held.pair(np.array([3, 1])), mapped.pair(np.array([3, 1])), strict=True):
        torch.testing.assert_close(one, other)


# ----------------------------------------------------------------------------------------------------------- evaluation


def test_validation_asks_the_same_each_time_and_never_samples(task, rules, splits, monkeypatch):
    monkeypatch.setattr(super_resolution, "Sampler", None)
    model = task.model(slots(), rules).eval()
    feed = task.feed(splits.valid, rules, "cpu")
    with torch.no_grad():
        first, second = (task.validate(model, feed, np.arange(3), size) for size in (3, 2))
    assert first.metrics["loss"] == pytest.approx(second.metrics["loss"], abs=1e-5)
    np.testing.assert_allclose(first.predictions["loss"], second.predictions["loss"], atol=1e-5)
    assert task.meta.selection_metric == "loss"
    assert not task.meta.selection_is_higher


def test_the_score_of_a_perfect_network_is_infinite_and_its_samples_are_the_truth(task, rules, splits):
    feed = task.feed(splits.test, rules, "cpu")
    truth = colours(torch.from_numpy(np.stack([splits.test.example(i).high for i in range(5)])))

    def perfect(x, g):
        gamma = g[:, None, None, None]
        return (x - gamma * truth) / (1 - gamma**2).sqrt()

    found = task.evaluate(Fixed(perfect), feed, np.arange(5), 5)
    assert found.metrics["psnr"] == math.inf
    assert found.metrics["ssim"] == pytest.approx(1)
    np.testing.assert_array_equal(found.samples["restored"], found.samples["truth"])
    assert fault_of(found.samples) is None
    assert found.metrics["bicubic_psnr"] == pytest.approx(task.chance(splits.test))
    assert found.metrics["nearest_psnr"] < math.inf


def test_a_picture_is_the_same_whatever_the_batch_size(task, rules, splits):
    torch.manual_seed(0)
    model = task.model(slots("linear"), rules).eval()
    feed = task.feed(splits.test, rules, "cpu")
    with torch.no_grad():
        whole, single = (task.evaluate(model, feed, np.arange(5), size) for size in (5, 1))
        some = task.evaluate(model, feed, np.array([4, 2]), 2)
    # bytes may differ by one where a colour lies between two
    assert np.abs(whole.samples["restored"].astype(int) - single.samples["restored"]).max() <= 1
    assert np.abs(whole.samples["restored"][[4, 2]].astype(int) - some.samples["restored"]).max() <= 1
    np.testing.assert_allclose(whole.predictions["psnr"], single.predictions["psnr"], atol=0.01)


def test_a_trained_network_upscales_pictures(task, rules):
    model = task.model(slots(), rules)
    upscaler = task.user_object(model, rules, None, "cpu")
    assert isinstance(upscaler, Upscaler)
    small = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    large = upscaler.upscale(small)
    assert large.shape == (16, 16, 3)
    assert large.dtype == np.uint8
    np.testing.assert_array_equal(upscaler.upscale(Image.fromarray(small)), large)
    assert not np.array_equal(upscaler.upscale(small, seed=1), large)
    assert upscaler.upscale(small, steps=2).shape == (16, 16, 3)
    with pytest.raises(UsageError, match="4 x 4"):
        upscaler.upscale(np.zeros((8, 8, 3), np.uint8))


def test_bytes_become_colours_and_bytes_again():
    pictures = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3)
    np.testing.assert_array_equal(to_pictures(colours(pictures)), pictures.numpy())
    assert colours(pictures).min() == -1
    assert colours(pictures).max() == 1


def test_noise_of_sampling_starts_from_the_number_of_the_picture():
    first = normal(0, torch.tensor([7]), (3, 4, 4))
    torch.testing.assert_close(first, normal(0, torch.tensor([1, 7]), (3, 4, 4))[1:], atol=0, rtol=0)


# ----------------------------------------------------------------------------------------------------------------- runs


class Cut(Exception):
    """Raised where a test ends a run."""


@pytest.mark.parametrize("protocol", ["longspan", "cab-2023"])
def test_a_run_that_was_cut_goes_on_to_the_same_numbers(task, rules, splits, tmp_path, protocol):
    """With dropout, a running mean of the weights or the mean of the last ones, and sampled pictures at the end."""
    cab = task.protocol("cab-2023", "full")
    if protocol == "cab-2023":
        recipe = dataclasses.replace(cab.recipe, steps=6, evaluate_every=1)
        rules = dataclasses.replace(rules, model=dataclasses.replace(rules.model, levels="batch"), recipe=recipe)

    def cut(progress, steps):
        if progress.step == 4:
            raise Cut

    def trained(folder, watch=None):
        torch.manual_seed(0)
        network, fabric = task.model(slots("abc"), rules), make_fabric("cpu", "fp32", 1)
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
    np.testing.assert_array_equal(resumed.test.samples["restored"], whole.test.samples["restored"])


SHORT = {"recipe.steps": 2, "recipe.evaluate_every": 2, "model.diffusion.sampled": 2}


def test_a_card_has_the_scores_beside_bicubic_and_its_samples(tmp_path):
    cell = Cell("super_resolution", "softmax", tier="smoke", overrides=SHORT)
    card = run(cell, out=tmp_path / "out", data=tmp_path / "data", device="cpu", progress=False)
    scores = card["metrics"]["test"]
    assert {"psnr", "ssim", "bicubic_psnr", "bicubic_ssim", "nearest_psnr", "nearest_ssim"} <= scores.keys()
    assert card["score"]["chance"] == scores["bicubic_psnr"]["value"]
    assert card["score"]["higher_is_better"]
    assert card["dataset"]["variant"] == "standin"
    assert "samples" in card["files"]
    (path,) = (tmp_path / "out" / "cards").rglob("*.json")
    small = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert longspan.load(path).upscale(small).shape == (32, 32, 3)


def test_real_data_that_are_absent_end_a_run_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    words = ["run", "super_resolution", "-a", "softmax", "--tier", "smoke", "--real", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3
    assert "longspan data import faces" in " ".join(done.output.split())


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["softmax", "local", "abc", "performer", "s4d"])
def test_smoke_runs_end_to_end(mechanism, tmp_path):
    cell = Cell("super_resolution", mechanism, tier="smoke")
    card = run(cell, out=tmp_path / "out", data=tmp_path / "data", device="cpu", progress=False)
    assert card["status"] == "ok"
    assert card["score"]["value"] > 5
