"""The protocol `strong`: Long Range Arena with the recipes that later papers use to reach their numbers.

    protocols = {..., **strong.tiers(strong.IMAGE, DATA)}      presets = {..., "strong": strong.IMAGE_MODELS}

Any mechanism with queries and keys runs as the rotary Transformer of arXiv:2501.14850: pre-norm with layer norm, a ReLU
MLP of twice the width, mean pooling, one linear layer as head. `s4d` and `s4` have the recipes of state-spaces/s4 (the
small models for Image and the Pathfinder tasks, else those of its fourth version): batch norm, no positions, no MLP,
dropout tied over positions, separate rates for the dynamics, cosine to zero. All on the same data: texts are characters
with an end token, ListOps has the end token too, pictures are ids for the Transformer and numbers for state-space
models. Departs from the sources in: validation texts are held out; the Transformer reads whole texts, not 1,024 or
2,048 bytes, for as many epochs, and its rate follows a cosine after a tenth of the steps. Runs are on the free track.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longspan.backbones.encoder_sizes import Sizes
from longspan.datasets import aan, cifar10, imdb, listops, pathfinder
from longspan.tasks.base import Preset, Protocol, Recipe


def transformer(layers: int, dim: int, heads: int, mlp: int, dropout: float, **other: Any) -> Sizes:
    """The network of a rotary Transformer."""
    other = {"pooling": "mean", "head_layers": 1} | other
    sizes = {"layers": layers, "dim": dim, "heads": heads, "mlp": mlp, "dropout": dropout, "attention_dropout": dropout}
    return Sizes(**sizes, positions="rope", activation="relu", **other)


def recipe(steps: int, batch: int, rate: float, decay: float, every: int) -> Recipe:
    """Warm-up for a tenth of the steps, a cosine to zero, decay of weights only."""
    return Recipe(
        steps=steps,
        batch_size=batch,
        learning_rate=rate,
        warmup=steps // 10,
        schedule="cosine_to_zero",
        weight_decay=decay,
        decay="weights",
        evaluate_every=every,
    )


SMOKE = {"steps": 40, "batch_size": 16, "warmup": 4, "evaluate_every": 20}
SMOKE_SIZES = {"layers": 1, "dim": 32, "mlp": 32}
SMALLER = {f"recipe.{name}": value for name, value in SMOKE.items()}
SMALLER |= {f"model.{name}": value for name, value in SMOKE_SIZES.items()}


def tiers(full: Protocol, data: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Protocol]:
    """The protocol of a task in all tiers: smoke has one layer on little data."""
    small = Protocol(
        data=data["strong", "smoke"],
        model=replace(full.model, heads=1, **SMOKE_SIZES),
        recipe=replace(full.recipe, **SMOKE),
    )
    return {("strong", "smoke"): small, **full.tiers("strong")}


def state_space(
    layers: int,
    dim: int,
    *,
    steps: int,
    batch: int,
    warmup: int,
    rate: float,
    every: int,
    ssm_rate: float = 1e-3,
    dt_rate: float | None = None,
    decay: float = 0.05,
    dropout: float = 0.0,
    **other: Any,
) -> dict[str, Any]:
    """A line of the tables of S4, as settings."""
    network = {"layers": layers, "dim": dim, "heads": 1, "mlp": dim, "norm": "batch", "block": "none"}
    network |= {
        "positions": "none",
        "pooling": "mean",
        "dropout": dropout,
        "embedding_dropout": 0.0,
        "mixer_dropout": dropout,
        "dropout_tied": True,
    }
    network |= {"attention_dropout": 0.0, "projection_bias": True, **other}
    training = {"steps": steps, "batch_size": batch, "warmup": warmup, "learning_rate": rate, "evaluate_every": every}
    training |= {"ssm_learning_rate": ssm_rate, "dt_learning_rate": dt_rate, "weight_decay": decay}
    training |= {"betas": (0.9, 0.999), "eps": 1e-8}
    return {f"model.{name}": value for name, value in network.items()} | {
        f"recipe.{name}": value for name, value in training.items()
    }


def models(
    changes: dict[str, Any],
    options: str = "",
    *,
    start: str = "legs",
    s4: str = "",
) -> dict[str, Preset]:
    """S4D and S4 with the same settings."""
    s4d = ", ".join(filter(None, [f'init="{start}"', options]))
    s4 = ", ".join(filter(None, [s4, options]))
    return {
        "s4d": Preset(f"s4d({s4d})", changes, SMALLER),
        "s4": Preset(f"s4({s4})" if s4 else "s4", changes, SMALLER),
    }


LISTOPS = Protocol(
    data=listops.PRESETS["listops"]["strong", "full"],
    model=transformer(6, 80, 4, 160, 0.0, end_token=True),
    recipe=recipe(120_000, 64, 1e-3, 0.01, every=1_500),
)
LISTOPS_MODELS = models(
    state_space(6, 256, steps=120_000, batch=32, warmup=12_000, rate=0.01, dt_rate=0.01, every=3_000, norm_at="post"),
    "state=4, tied=True",
)
TEXT = Protocol(
    data=imdb.PRESETS["text"]["strong", "full"],
    model=transformer(4, 128, 8, 256, 0.1, end_token=True),
    recipe=recipe(42_000, 32, 4e-3, 0.01, every=700),
)
TEXT_MODELS = models(
    state_space(6, 256, steps=50_000, batch=16, warmup=5_000, rate=0.01, dt_rate=0.01, every=1_400),
    "state=4, tied=True",
)
RETRIEVAL = Protocol(
    data=aan.PRESETS["retrieval"]["strong", "full"],
    model=transformer(6, 128, 4, 256, 0.1, end_token=True, features="four", head_layers=2),
    recipe=recipe(92_000, 64, 1e-3, 0.01, every=2_300),
)
RETRIEVAL_MODELS = models(
    state_space(
        *(6, 128),
        steps=92_000,
        batch=32,
        warmup=4_600,
        rate=2e-3,
        every=4_600,
        head_width="dim",
        head_activation="gelu",
    )
)
IMAGE = Protocol(
    data=cifar10.PRESETS["image"]["strong", "full"],
    model=transformer(8, 160, 4, 320, 0.0),
    recipe=recipe(281_000, 32, 5e-4, 0.0, every=1_400),
)
IMAGE_MODELS = models(
    state_space(
        *(4, 128),
        steps=90_000,
        batch=50,
        warmup=4_500,
        rate=0.01,
        every=900,
        decay=0.01,
        dropout=0.1,
        input_mode="continuous",
        pixel_scale="standard",
        pixel_mean=122.6 / 255,
        pixel_std=61 / 255,
    ),
    start="lin",
    s4="tied=False",
)
PATHFINDER = Protocol(
    data=pathfinder.PRESETS["pathfinder"]["strong", "full"],
    model=transformer(6, 128, 4, 256, 0.0),
    recipe=recipe(125_000, 128, 1e-3, 0.01, every=1_250),
)
PIXELS: dict[str, Any] = {"input_mode": "continuous", "pixel_scale": "unit"}
PATHFINDER_MODELS = models(
    state_space(
        *(6, 128),
        steps=100_000,
        batch=64,
        warmup=2_500,
        rate=4e-3,
        every=2_500,
        dt_rate=4e-3,
        decay=0.01,
        **PIXELS,
    ),
    s4="tied=False",
)
PATHX = Protocol(
    data=pathfinder.PRESETS["pathx"]["strong", "full"],
    model=transformer(4, 128, 4, 128, 0.0, pooling="max"),
    recipe=recipe(250_000, 32, 5e-4, 0.0, every=5_000),
)
PATHX_MODELS = models(
    state_space(
        *(4, 96),
        steps=250_000,
        batch=32,
        warmup=5_000,
        rate=5e-4,
        ssm_rate=5e-4,
        every=5_000,
        **PIXELS,
    ),
    "step_min=0.0001, step_max=0.01",
    s4="tied=False",
)
