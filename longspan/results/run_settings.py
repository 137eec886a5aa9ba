"""The settings that decide what a run computes, and those in which two runs differ.

    difference(decisive(card), decisive(other))        # "recipe.learning_rate 0.05, the board shows 0.03"

These are the resolved settings of data, model and recipe. Precision decides too, but is compared separately.
The device, the number of devices and the settings in `SPEED` affect the speed: they change a score only by rounding.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

PARTS = ("data", "model", "recipe")

# Settings added after the first cards, with the value that runs without them used.
LATER = {
    "data.curriculum": 0,
    "data.fresh": 0,
    "data.symmetries": False,
    "data.tokens": "bytes",
    "model.activation": "gelu_tanh",
    "model.block": "mlp",
    "model.dropout_tied": False,
    "model.embedding_dropout": None,
    "model.embedding_std": 1.0,
    "model.end_token": False,
    "model.features": "one",
    "model.final_norm": True,
    "model.head_activation": "relu",
    "model.head_layers": 2,
    "model.head_width": "mlp",
    "model.input_mode": "ids",
    "model.mixer_dropout": 0.0,
    "model.norm": "layer",
    "model.norm_at": "pre",
    "model.norm_momentum": 0.1,
    "model.pixel_mean": 0.5,
    "model.pixel_scale": "signed",
    "model.pixel_std": 0.5,
    "model.position_std": 0.02,
    "model.projection_bias": False,
    "model.sinusoid": "alternating",
    "model.zero_rule": "release",
    "recipe.accumulate": 1,
    "recipe.also_at": None,
    "recipe.average": 0.0,
    "recipe.averaged": 5,
    "recipe.decay": "all",
    "recipe.decay_after": 0,
    "recipe.decay_every": 0,
    "recipe.decay_rate": 0.5,
    "recipe.drop_last": False,
    "recipe.dt_learning_rate": None,
    "recipe.give_up_at": None,
    "recipe.initial_rate": 0.0,
    "recipe.initial_weights": None,
    "recipe.label_smoothing": 0.0,
    "recipe.optimizer": "adamw",
    "recipe.masked": 0.5,
    "recipe.order": "shuffled",
    "recipe.parts": "counts",
    "recipe.patience": None,
    "recipe.power": 1.0,
    "recipe.pretraining_rate": None,
    "recipe.pretraining_steps": 0,
    "recipe.pretraining_warmup": None,
    "recipe.ssm_learning_rate": None,
    "recipe.warmup_power": 1.0,
}
SPEED = ("recipe.checkpoint_activations", "recipe.parallel")  # settings that affect only speed and memory
MOST_NAMED = 3
MOST_LETTERS = 60  # of a name or a value


def decisive(card: Mapping[str, Any]) -> dict[str, str]:
    """Every resolved setting by its dotted name, as JSON text; an old card gets later settings from `LATER`."""
    return dict(_decisive(_resolved(card)))


def decisive_text(card: Mapping[str, Any]) -> str:
    """The same as one text, equal for cards with equal decisive settings."""
    return _decisive_text(_resolved(card))


def _resolved(card: Mapping[str, Any]) -> str:
    return json.dumps([card["settings"][part] for part in PARTS])


@functools.lru_cache(maxsize=4096)  # thousands of cards have the same settings
def _decisive(settings: str) -> dict[str, str]:
    """`decisive`, from the parts as JSON text."""
    parts = zip(PARTS, json.loads(settings), strict=True)
    named = {f"{part}.{name}": value for part, own in parts for name, value in own.items()}
    return {name: _text(value) for name, value in (LATER | named).items() if name not in SPEED}


@functools.lru_cache(maxsize=4096)
def _decisive_text(settings: str) -> str:
    return json.dumps(_decisive(settings), sort_keys=True)


def difference(own: Mapping[str, str], shown: Mapping[str, str], of: str = "the board shows") -> str | None:
    """What differs in plain words, a few names at most; None where nothing does."""
    if own == shown:
        return None
    names = sorted(name for name in own.keys() | shown.keys() if own.get(name) != shown.get(name))
    told = [
        f"{_cut(name)} {_cut(own.get(name, 'not set'))}, {of} {_cut(shown.get(name, 'none'))}"
        for name in names[:MOST_NAMED]
    ]
    more = [f"{len(names) - MOST_NAMED} more settings differ"] if len(names) > MOST_NAMED else []
    return "; ".join([*told, *more]) or None


def _text(value: Any) -> str:
    return _written(value) if isinstance(value, (str, int, float, type(None))) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


_written = functools.lru_cache(maxsize=4096, typed=True)(_json)  # thousands of cards have the same few values


def _plain(value: Any) -> Any:
    """With 1.0 written as 1, since a setting may change its type and mean the same."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _cut(text: str) -> str:
    text = text.strip('"')
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"
