"""The protocol `strong`: state spaces and rotary Transformers by the recipes of the literature, on the free track."""

import pytest

from longspan import rules
from longspan.attentions import AttentionMeta, Pattern
from longspan.runs import Cell, RunPlan, run
from longspan.runs.cell import count_baseline

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ROWS = {  # spec/lra-recipes.md 5: layers, width, steps, batch, warm-up, rate, rates of dynamics and step sizes, decay
    "listops": (6, 256, 120_000, 32, 12_000, 0.01, 1e-3, 0.01, 0.05),
    "text": (6, 256, 50_000, 16, 5_000, 0.01, 1e-3, 0.01, 0.05),
    "retrieval": (6, 128, 92_000, 32, 4_600, 2e-3, 1e-3, None, 0.05),
    "image": (4, 128, 90_000, 50, 4_500, 0.01, 1e-3, None, 0.01),
    "pathfinder": (6, 128, 100_000, 64, 2_500, 4e-3, 1e-3, 4e-3, 0.01),
    "pathx": (4, 96, 250_000, 32, 5_000, 5e-4, 5e-4, None, 0.05),
}


def plan(task, mechanism, tier="full", **overrides):
    return RunPlan.of(Cell(task, mechanism, None, "strong", tier, 0, overrides))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mechanism", ["s4d", "s4"])
def test_state_spaces_have_the_recipes_of_the_literature(task, mechanism):
    protocol = plan(task, mechanism).protocol
    model, recipe = protocol.model, protocol.recipe
    assert (model.layers, model.dim, recipe.steps, recipe.batch_size, recipe.warmup) == ROWS[task][:5]
    rates = (recipe.learning_rate, recipe.ssm_learning_rate, recipe.dt_learning_rate, recipe.weight_decay)
    assert rates == ROWS[task][5:]
    assert (model.norm, model.norm_at) == ("batch", "post" if task == "listops" else "pre")
    assert (model.positions, model.block, model.pooling) == ("none", "none", "mean")
    assert (model.dropout, model.mixer_dropout) == ((0.1,) * 2 if task == "image" else (0.0,) * 2)
    assert model.embedding_dropout == 0  # there is none at their input
    assert (recipe.betas, recipe.eps, recipe.schedule, recipe.decay) == (
        (0.9, 0.999),
        1e-8,
        "cosine_to_zero",
        "weights",
    )


def test_lite_is_a_tenth_of_the_recipe_of_each_mechanism():
    for mechanism in ("softmax", "s4d"):
        full, lite = (plan("image", mechanism, tier).protocol for tier in ("full", "lite"))
        assert (lite.recipe.steps, lite.recipe.warmup) == (full.recipe.steps // 10, full.recipe.warmup // 10)
        assert (lite.model, lite.recipe.batch_size) == (full.model, full.recipe.batch_size)


def test_the_initial_state_matrices_are_those_of_the_tables():
    assert "init" not in str(plan("image", "s4d").mechanism)  # lin, as in the small models
    assert str(plan("listops", "s4d").mechanism) == str(plan("text", "s4d").mechanism)
    assert "state=4" in str(plan("text", "s4").mechanism)
    assert "legs" in str(plan("pathfinder", "s4d").mechanism)


@pytest.mark.parametrize("mechanism", ["s4d", "softmax"])
def test_parameters_are_compared_with_softmax_in_the_same_network(mechanism):
    assert count_baseline(plan("image", mechanism)) > 0


def test_runs_under_strong_and_pretrained_ones_are_on_the_free_track():
    meta = AttentionMeta(title="T", paper="", family="", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))
    verdicts = rules.judge(meta, {}, 10, 10, [])
    assert rules.track(verdicts, {}, "longspan") == "fixed"
    assert rules.track(verdicts, {}, "strong") == "free"
    pretrained = rules.judge(meta, {}, 10, 10, [], 100)
    assert not pretrained["no pretraining"].kept
    assert rules.track(pretrained, {}, "longspan") == "free"


FEW = {"recipe.steps": 2, "recipe.batch_size": 2, "recipe.evaluate_every": 1, "recipe.warmup": 1, "model.layers": 1}
FEW |= {"data.train": 8, "data.valid": 4, "data.test": 4, "model.dim": 8, "model.mlp": 8, "model.heads": 1}
DATA = {
    "listops": {"data.longer_than": 20, "data.shorter_than": 60, "data.max_depth": 4, "data.max_args": 5},
    "text": {"data.standin": True, "data.length": 64},
    "retrieval": {"data.standin": True, "data.length": 64},
    "image": {"data.standin": True},
    "pathfinder": {"data.difficulty": "easy"},
}


EVERY = [(task, mechanism) for task in DATA for mechanism in ("s4d", "softmax", "s4")]
QUICK = [("image", "s4d"), ("text", "softmax"), ("retrieval", "s4d")]


@pytest.mark.parametrize(
    "task, mechanism", [case if case in QUICK else pytest.param(*case, marks=pytest.mark.full) for case in EVERY]
)
def test_it_runs_on_a_cpu(task, mechanism, tmp_path):
    cell = Cell(task, mechanism, None, "strong", "full", 0, FEW | DATA[task])
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert (card["status"], card["track"]) == ("ok", "free")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mechanism", ["softmax", "s4d", "s4"])
def test_smoke_is_the_same_kind_of_network_made_small(task, mechanism):
    smoke, full = (plan(task, mechanism, tier).protocol for tier in ("smoke", "full"))
    assert (smoke.model.layers, smoke.model.dim, smoke.model.heads) == (1, 32, 1)
    assert smoke.recipe.steps <= 40
    assert smoke.recipe.warmup < smoke.recipe.steps
    for name in ("norm", "norm_at", "block", "positions", "pooling", "input_mode", "end_token"):
        assert getattr(smoke.model, name) == getattr(full.model, name), name
    for name in ("learning_rate", "ssm_learning_rate", "schedule", "decay", "betas"):
        assert getattr(smoke.recipe, name) == getattr(full.recipe, name), name


def test_smoke_needs_no_download():
    for task in TASKS:
        data = plan(task, "softmax", "smoke").protocol.data
        assert getattr(data, "standin", True), task


@pytest.mark.full
@pytest.mark.parametrize("task, mechanism", [("listops", "s4d"), ("listops", "softmax"), ("text", "s4d")])
def test_smoke_runs_as_it_is(task, mechanism, tmp_path):
    cell = Cell(task, mechanism, None, "strong", "smoke")
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert (card["status"], card["track"], card["tier"]) == ("ok", "free", "smoke")
