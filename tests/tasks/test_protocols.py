"""Frozen rules: every protocol builds, has the published settings, and changes only by name and in kind."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots
from longspan.core.errors import UnknownName, UsageError
from longspan.runs import Cell, run
from longspan.tasks.base import Protocol, Recipe
from longspan.training.optimizer import learning_rate

LRA = [name for name in tasks.names() if tasks.get(name).meta.backbone == "encoder_classifier"]
EVERY = [(name, *key) for name in LRA for key in tasks.get(name).protocols]
FULL = [(name, protocol) for name, protocol, tier in EVERY if tier == "full"]
ENCODERS = [case for case in EVERY if tasks.get(case[0]).meta.backbone == "encoder_classifier"]


@pytest.mark.parametrize("name, protocol, tier", ENCODERS)
def test_every_protocol_builds_a_network_that_answers(name, protocol, tier):
    task = tasks.get(name)
    rules = task.protocol(protocol, tier)
    small = rules.override({"model.layers": 1})
    model = task.model(attentions.get("linear"), small).eval()
    tokens = torch.ones(task.texts, task.longest(rules), dtype=torch.int32)
    with torch.no_grad():
        logits = model(tokens, [tokens.shape[1]] * task.texts)
    assert logits.shape == (1, 10 if name in ("listops", "image") else 2)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name, protocol", FULL)
def test_lite_is_a_tenth_of_the_steps_with_the_same_data_and_model(name, protocol):
    full, lite = (tasks.get(name).protocol(protocol, tier) for tier in ("full", "lite"))
    assert (lite.data, lite.model) == (full.data, full.model)
    assert lite.recipe.steps == full.recipe.steps // 10
    assert lite.recipe.warmup == full.recipe.warmup // 10
    assert lite.recipe.evaluate_every <= lite.recipe.steps / 10
    changed = {"steps", "warmup", "evaluate_every", "decay_every"}
    changed |= {"learning_rate"} if full.recipe.schedule == "rsqrt" else set()  # so that the peak stays the same
    for field in dataclasses.fields(Recipe):
        assert field.name in changed or getattr(lite.recipe, field.name) == getattr(full.recipe, field.name)


OWN_LITE = {("lm", "longspan"), ("mlm", "longspan")}  # small models with their own recipe
SCALED = {(name, protocol) for name in tasks.names() for protocol, _ in tasks.get(name).protocols} - OWN_LITE


@pytest.mark.parametrize("name, protocol", sorted(SCALED))
def test_lite_has_the_highest_rate_of_full(name, protocol):
    """A tenth of the warm-up of an rsqrt schedule with the same learning rate would raise the peak by sqrt(10)."""
    full, lite = (tasks.get(name).protocol(protocol, tier).recipe for tier in ("full", "lite"))
    highest = [learning_rate(recipe, min(recipe.warmup, recipe.steps - 1)) for recipe in (full, lite)]
    assert highest[1] == pytest.approx(highest[0], rel=0.01)  # where warm-up never ends, lite ends a little earlier


@given(st.integers(10, 20_000), st.integers(10, 20_000), st.floats(1e-4, 1))
def test_lite_never_moves_the_peak_of_an_rsqrt_schedule(steps, warmup, rate):
    full = Recipe(steps=steps, batch_size=1, learning_rate=rate, warmup=warmup)
    lite = Protocol(None, None, full).lite().recipe
    assert learning_rate(lite, lite.warmup) == pytest.approx(learning_rate(full, full.warmup), rel=1e-9)


def test_every_task_has_every_tier_of_the_longspan_protocol():
    for name in tasks.names():
        assert {tier for protocol, tier in tasks.get(name).protocols if protocol == "longspan"} == {
            *("smoke", "lite", "full")
        }


CAB = [name for name in tasks.names() if any(protocol == "cab-2023" for protocol, _ in tasks.get(name).protocols)]
FEW = {
    "point_cloud_completion": {"data.train": 8, "data.valid": 2, "data.test": 2, "recipe.batch_size": 4},
    "summarization": {"data.train": 8, "data.valid": 4, "data.test": 6, "data.size": 300, "recipe.batch_size": 4},
    "lm": {"data.train": 2, "data.valid": 1, "data.test": 1, "recipe.batch_size": 4},
    "mlm": {"data.train": 2, "data.valid": 1, "data.test": 1, "recipe.batch_size": 4},
    "tts_fastspeech2": {"data.train": 8, "data.valid": 2, "data.test": 2, "model.turns": 2},
    "tts_transformer": {"data.train": 8, "data.valid": 2, "data.test": 2, "model.turns": 2, "model.longest": 20},
}


@pytest.mark.parametrize("name", CAB)
def test_smoke_of_cab_has_its_quirks_in_a_small_network_on_a_stand_in(name):
    task = tasks.get(name)
    smoke, full = (task.protocol("cab-2023", tier) for tier in ("smoke", "full"))
    assert smoke.data.standin
    assert not full.data.standin
    assert smoke.model.dim < full.model.dim
    network = ("self_slots", "sinusoid", "stop", "untrained_place", "coarse", "skip", "removed", "qkv_bias")
    for field in (*network, "pads", "together", "heard"):
        assert getattr(smoke.model, field, None) == getattr(full.model, field, None)
    for field in ("layout", "breaks", "scored", "whole_batches", "validation"):
        assert getattr(smoke.data, field, None) == getattr(full.data, field, None)
    for field in ("schedule", "clip", "selection", "optimizer", "drop_last", "label_smoothing", "decay_after", "parts"):
        assert getattr(smoke.recipe, field) == getattr(full.recipe, field)


@pytest.mark.parametrize("name", ["forecasting_etth1", *FEW])
def test_smoke_of_cab_runs_on_a_cpu(name, tmp_path):
    few = FEW.get(name, {"data.train": 40, "data.valid": 33, "data.test": 40})
    cell = Cell(name, "abc", None, "cab-2023", "smoke", 0, few | {"recipe.steps": 2})
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert (card["status"], card["dataset"]["variant"]) == ("ok", "standin")


@pytest.mark.parametrize("name", tasks.names())
def test_made_up_rows_are_whole_ones_and_feed_a_loss(name):
    """The rows a dry run times in place of data that may be absent."""
    task = tasks.get(name)
    rules = task.protocol("longspan", "smoke")
    feed = task.feed(task.made_up(rules, 2), rules, "cpu")
    assert len(feed) == 2
    patterns = frozenset(task.patterns(None))
    model = task.model(Slots(attentions.get("linear"), patterns, task.others(rules)), rules)
    outcome = task.loss(model, feed.batch(np.arange(2)))
    outcome.loss.backward()
    assert outcome.loss.isfinite()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


SHARED = {"weight_decay": 0.1, "schedule": "rsqrt", "betas": (0.9, 0.98), "eps": 1e-9, "clip": None}
IMAGE = SHARED | {"weight_decay": 0.0, "schedule": "cosine", "steps": 62_400, "batch_size": 512, "warmup": 312}
TEXT = SHARED | {"steps": 5_000, "batch_size": 32, "warmup": 1_000, "learning_rate": 0.05}
REVIEWS = TEXT | {"steps": 20_000, "warmup": 8_000, "selection": "last"}
SMALL_TEXT = {"dim": 256, "heads": 4, "layers": 4, "mlp": 1_024, "pooling": "cls", "positions": "sinusoid"}
PAIRS = SHARED | {"steps": 5_000, "batch_size": 32, "warmup": 8_000}
TOWERS = {"dim": 128, "heads": 4, "layers": 4, "mlp": 512, "positions": "sinusoid"}
CIFAR = SHARED | {"weight_decay": 0.0, "schedule": "cosine", "steps": 35_000, "batch_size": 256, "warmup": 175}
ONE_LAYER = {"dim": 128, "heads": 8, "layers": 1, "mlp": 128, "inner": 64, "pooling": "cls", "positions": "learned"}
PATHX = IMAGE | {"steps": 500_000, "batch_size": 64, "warmup": 2_500, "clip": 1.0}
TINY = {"dim": 32, "heads": 2, "layers": 1, "mlp": 32, "inner": 16, "pooling": "mean", "positions": "learned"}


def reviews(longspan, paper, released):
    """The settings of Text with reviews of these lengths."""
    return {
        "lra-released": {
            "data": {"length": released, "validation": "test"},
            "model": SMALL_TEXT | {"dropout": 0.1, "attention_dropout": 0.1},
            "recipe": REVIEWS,
        },
        "lra-paper": {
            "data": {"length": paper, "validation": "test"},
            "model": {"dim": 512, "heads": 8, "layers": 6, "mlp": 2_048, "pooling": "cls"},
            "recipe": REVIEWS,
        },
        "longspan": {
            "data": {"length": longspan, "validation": "held-out"},
            "model": SMALL_TEXT,
            "recipe": {"steps": 10_000, "batch_size": 32, "selection": "best"},
        },
    }


def pairs(steps, warmup):
    """The settings of Retrieval for this many steps."""
    return {
        "lra-released": {
            "data": {"length": 4_000},
            "model": TOWERS | {"pooling": "first", "features": "two", "head_layers": 3},
            "recipe": PAIRS | {"steps": steps, "warmup": warmup, "learning_rate": 0.05, "selection": "last"},
        },
        "lra-paper": {
            "data": {"length": 4_000},
            "model": TOWERS | {"pooling": "cls", "features": "four", "head_layers": 2},
            "recipe": PAIRS | {"steps": steps, "warmup": warmup, "learning_rate": 0.5, "selection": "best"},
        },
        "longspan": {
            "model": TOWERS | {"pooling": "cls", "features": "four", "head_layers": 2},
            "recipe": {"steps": steps, "batch_size": 32, "selection": "best"},
        },
    }


VARIANTS = {
    "text": reviews(4_000, 4_000, 1_000),
    **{f"text_{k}k": reviews(1_000 * k, 1_000 * k, 1_000 * k) for k in (1, 2, 3, 4)},
    "retrieval": pairs(5_000, 8_000),
    "retrieval_30k": pairs(30_000, 8_000),
}
PUBLISHED = {  # spec/lra.md 4.1 and 5
    **{(task, protocol): rules for task, own in VARIANTS.items() for protocol, rules in own.items()},
    ("image", "lra-released"): {
        "data": {"split": "longspan"},
        "model": ONE_LAYER | {"dropout": 0.3, "attention_dropout": 0.2, "hide_zeros": True},
        "recipe": CIFAR | {"learning_rate": 5e-4, "evaluate_every": 175, "selection": "last"},
    },
    ("image", "lra-paper"): {
        "model": {"dim": 64, "heads": 4, "layers": 3, "mlp": 128, "inner": None, "positions": "learned"},
        "recipe": CIFAR | {"learning_rate": 0.01, "selection": "best"},
    },
    ("image", "longspan"): {
        "model": ONE_LAYER | {"hide_zeros": False},
        "recipe": CIFAR | {"steps": 17_500, "learning_rate": 5e-4, "selection": "best"},
    },
    ("pathx", "lra-released"): {
        "data": {"size": 128, "difficulty": "hard", "train": 160_000, "valid": 20_000, "test": 20_000},
        "model": TINY | {"dropout": 0.1, "attention_dropout": 0.1, "hide_zeros": True},
        "recipe": PATHX | {"learning_rate": 1e-3, "evaluate_every": 2_500, "selection": "last"},
    },
    ("pathx", "lra-paper"): {
        "model": {"dim": 128, "heads": 8, "layers": 4, "mlp": 128, "inner": None, "pooling": "cls"},
        "recipe": PATHX | {"learning_rate": 0.01, "selection": "best"},
    },
    ("pathx", "longspan"): {
        "model": TINY | {"hide_zeros": False},
        "recipe": PATHX | {"learning_rate": 1e-3, "selection": "best"},
    },
    ("listops", "lra-released"): {
        "data": {"train": 96_000, "valid": 2_000, "test": 2_000, "shorter_than": 2_000, "longer_than": 500},
        "model": {"dim": 512, "heads": 8, "layers": 4, "mlp": 1_024, "inner": None, "pooling": "cls"}
        | {"dropout": 0.1, "attention_dropout": 0.1, "positions": "sinusoid"},
        "recipe": TEXT | {"selection": "last"},
    },
    ("listops", "lra-paper"): {
        "model": {"dim": 512, "heads": 8, "layers": 6, "mlp": 2_048, "pooling": "cls"},
        "recipe": TEXT | {"selection": "best"},
    },
    ("listops", "longspan"): {
        "model": {"dim": 512, "heads": 8, "layers": 6, "mlp": 2_048, "pooling": "cls"},
        "recipe": {"steps": 5_000, "batch_size": 32, "selection": "best"},
    },
    ("pathfinder", "lra-released"): {
        "data": {"size": 32, "difficulty": "hard", "train": 160_000, "valid": 20_000, "test": 20_000},
        "model": {"dim": 32, "heads": 4, "layers": 4, "mlp": 32, "inner": 16, "pooling": "mean", "hide_zeros": True}
        | {"dropout": 0.2, "attention_dropout": 0.1, "positions": "sinusoid"},
        "recipe": IMAGE | {"learning_rate": 1e-3, "evaluate_every": 312, "selection": "last"},
    },
    ("pathfinder", "lra-paper"): {
        "model": {"dim": 128, "heads": 8, "layers": 4, "mlp": 128, "inner": None, "pooling": "cls"},
        "recipe": IMAGE | {"learning_rate": 0.01, "selection": "best"},
    },
    ("pathfinder", "longspan"): {
        "model": {"dim": 32, "heads": 4, "layers": 4, "mlp": 32, "inner": 16, "pooling": "mean", "hide_zeros": False},
        "recipe": IMAGE | {"learning_rate": 1e-3, "selection": "best"},
    },
    ("pathfinder_cls", "longspan"): {
        "model": {"dim": 32, "heads": 4, "layers": 4, "mlp": 32, "inner": 16, "pooling": "cls", "hide_zeros": False},
        "recipe": IMAGE | {"learning_rate": 1e-3, "selection": "best"},
    },
    **{  # spec/lra-recipes.md 1.5
        (task, "strong"): {
            "data": data,
            "model": dict(zip(("layers", "dim", "heads", "mlp", "dropout"), network, strict=True))
            | {"positions": "rope", "norm": "layer", "activation": "relu", "hide_zeros": False},
            "recipe": dict(zip(("batch_size", "learning_rate", "weight_decay"), training, strict=True))
            | {"betas": (0.9, 0.98), "decay": "weights", "schedule": "cosine_to_zero", "selection": "best"},
        }
        for task, data, network, training in (
            ("listops", {}, (6, 80, 4, 160, 0.0), (64, 1e-3, 0.01)),
            ("text", {"length": 4_095, "tokens": "characters"}, (4, 128, 8, 256, 0.1), (32, 4e-3, 0.01)),
            ("retrieval", {"length": 3_999, "tokens": "characters"}, (6, 128, 4, 256, 0.1), (64, 1e-3, 0.01)),
            ("image", {}, (8, 160, 4, 320, 0.0), (32, 5e-4, 0.0)),
            ("pathfinder", {"difficulty": "hard"}, (6, 128, 4, 256, 0.0), (128, 1e-3, 0.01)),
            ("pathx", {"size": 128}, (4, 128, 4, 128, 0.0), (32, 5e-4, 0.0)),
        )
    },
    ("summarization", "cab-2023"): {
        "data": {
            "source": 4_096,
            "target": 400,
            "vocabulary": "bart-base",
            "size": 50_265,
            "train": None,
            "test": None,
        },
        "model": {"dim": 512, "heads": 8, "layers": 6, "mlp": 2_048, "dropout": 0.1, "attention_dropout": 0.0}
        | {"source_places": 4_096, "target_places": 512, "shortest": 200, "longest": 400},
        "recipe": {"steps": 50_000, "batch_size": 64, "learning_rate": 5e-4, "warmup": 1_000, "weight_decay": 0.01}
        | {"schedule": "inverse_sqrt", "label_smoothing": 0.1, "betas": (0.9, 0.98), "eps": 1e-8, "clip": None}
        | {"optimizer": "adamw", "selection": "last"},
    },
    ("summarization", "longspan"): {
        "data": {"source": 4_096, "target": 400, "vocabulary": "own", "size": 50_265, "train": None, "test": None},
        "model": {"dim": 512, "attention_dropout": 0.1, "shortest": 0, "longest": 400},
        "recipe": {"steps": 50_000, "batch_size": 64, "clip": 1.0, "label_smoothing": 0.1, "selection": "best"},
    },
}


@pytest.mark.parametrize("name, protocol", FULL)
def test_settings_are_the_published_ones(name, protocol):
    rules = tasks.get(name).protocol(protocol, "full")
    for group, settings in PUBLISHED[name, protocol].items():
        found = {setting: getattr(getattr(rules, group), setting) for setting in settings}
        assert found == settings


@pytest.mark.parametrize("protocol", ["longspan", "lra-paper", "lra-released"])
def test_retrieval_for_30_000_steps_warms_up_by_the_same_rates(protocol):
    short, long = (tasks.get(name).protocol(protocol, "full").recipe for name in ("retrieval", "retrieval_30k"))
    for step in (0, 1, 250, 499):
        assert learning_rate(long, step) == learning_rate(short, step)
    if protocol != "longspan":
        base = {"lra-paper": 0.5, "lra-released": 0.05}[protocol]
        assert learning_rate(long, 4_999) == learning_rate(short, 4_999)
        assert learning_rate(long, 8_000) == pytest.approx(base / 8_000**0.5)  # the peak


def test_smoke_listops_is_what_was_agreed():
    rules = tasks.get("listops").protocol("longspan", "smoke")
    data, model = rules.data, rules.model
    assert (data.longer_than + 1, data.shorter_than - 1, data.max_depth, data.max_args) == (51, 127, 5, 8)
    assert (model.layers, model.dim) == (2, 64)


def test_smoke_pathfinder_is_small_and_easy():
    for name, size in (("pathfinder", 12), ("pathx", 14)):
        data = tasks.get(name).protocol("longspan", "smoke").data
        assert (data.size, data.difficulty) == (size, "short")


# --------------------------------------------------------------------------------------------------------------- names


def test_unknown_protocols_tiers_tasks_and_patterns_are_answered_with_a_hint():
    task = tasks.get("listops")
    with pytest.raises(UnknownName, match=r"no protocol 'lra-papers'\. Did you mean 'lra-paper'"):
        task.protocol("lra-papers", "full")
    with pytest.raises(UnknownName, match="listops under lra-paper has no tier 'smoke'"):
        task.protocol("lra-paper", "smoke")
    with pytest.raises(UnknownName, match=r"No task named 'listop'\. Did you mean 'listops'"):
        tasks.get("listop")
    with pytest.raises(UsageError, match="listops has no slot for causal_self; its slots are noncausal_self"):
        task.patterns("causal_self")


@pytest.mark.parametrize("asked", [None, "NS", "noncausal_self"])
def test_the_only_slot_need_not_be_named(asked):
    assert tasks.get("listops").patterns(asked) == (Pattern.NONCAUSAL_SELF,)


# ----------------------------------------------------------------------------------------------------------- overrides

RULES = tasks.get("listops").protocol("longspan", "smoke")


def test_an_override_changes_one_setting_of_a_copy():
    changed = RULES.override({"recipe.steps": 7, "model.pooling": "mean", "recipe.clip": 2, "model.inner": 32})
    assert (changed.recipe.steps, changed.model.pooling, changed.model.inner) == (7, "mean", 32)
    assert type(changed.recipe.clip) is float
    assert changed.recipe.clip == 2
    assert changed.recipe == dataclasses.replace(RULES.recipe, steps=7, clip=2.0)
    assert tasks.get("listops").protocol("longspan", "smoke") == RULES
    assert RULES.override({}) == RULES


@given(
    st.dictionaries(
        st.sampled_from(["recipe.steps", "recipe.batch_size", "data.train", "data.seed", "model.mlp"]),
        st.integers(1, 10_000),
    )
)
def test_overrides_give_what_was_asked_in_any_order(changes):
    changed = RULES.override(changes)
    assert changed == RULES.override(dict(reversed(changes.items())))
    for name, value in changes.items():
        group, setting = name.split(".")
        assert getattr(getattr(changed, group), setting) == value


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("recipe.stepz", 5, "No setting 'recipe.stepz'. Did you mean 'steps'"),
        ("recip.steps", 5, "No setting 'recip.steps'. Did you mean 'recipe'"),
        ("steps", 5, "No setting 'steps'"),
        ("", 5, "No setting ''"),
        ("recipe.steps.more", 5, "No setting 'recipe.steps.more'"),
        ("recipe", 5, "'recipe' is a group of settings; name one of recipe.steps, recipe.batch_size"),
        ("recipe.steps", 5.5, "Setting 'recipe.steps' takes int, got 5.5"),
        ("recipe.steps", True, "takes int, got True"),
        ("recipe.steps", "many", "takes int, got 'many'"),
        ("recipe.steps", None, "takes int, got None"),
        ("recipe.clip", "tight", "takes float or None, got 'tight'"),
        ("recipe.learning_rate", False, "takes float, got False"),
        ("recipe.schedule", "cosin", "takes 'rsqrt' or 'cosine' or .* or 'exponential', got 'cosin'"),
        ("recipe.betas", (0.9,), r"takes \(float, float\), got \(0.9,\)"),
        ("recipe.betas", ("a", "b"), "Setting 'recipe.betas' takes float, got 'a'"),
        ("model.hide_zeros", 1, "takes bool, got 1"),
        ("model.pooling", "sum", "takes 'cls' or 'mean' or .*, got 'sum'"),
        ("recipe.steps", 0, "steps of at least 1, got 0"),
        ("recipe.batch_size", -1, "batch_size of at least 1, got -1"),
        ("recipe.evaluate_every", 0, "evaluate_every of at least 1, got 0"),
        ("recipe.evaluation_batch", 0, "evaluation_batch of at least 1"),
        ("recipe.warmup", -1, "warmup of at least 0"),
        ("recipe.average", 1.0, "average from 0 to below 1"),
        ("data.train", 0, "at least 1 example, got train=0"),
    ],
)
def test_an_override_that_cannot_be_is_refused_with_a_sentence(name, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        RULES.override({name: value})


def test_numbers_inside_a_pair_become_what_the_setting_is():
    betas = RULES.override({"recipe.betas": (0, 0.5)}).recipe.betas
    assert betas == (0.0, 0.5)
    assert all(type(beta) is float for beta in betas)


def test_rules_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RULES.recipe.steps = 3
    assert isinstance(hash(RULES), int)
    assert isinstance(RULES, Protocol)
