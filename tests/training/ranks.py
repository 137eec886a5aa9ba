"""One short training for every kind of task, in one process or in each of several: what is compared between them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric

from longspan import attentions, tasks
from longspan.core.seeding import seed_everything
from longspan.datasets import pg19
from longspan.datasets.base import Split, Splits
from longspan.datasets.bpe import END
from longspan.datasets.multi_news import Clusters
from longspan.datasets.speech.view import Speech
from longspan.tasks.base import Protocol, Task
from longspan.tasks.speech_feed import END as ENDS_CLIP
from longspan.training.loop import train
from tests.conformance.declared import Auxiliary
from tests.training.parted import Parted
from tests.training.small import RULES, small_splits

# A second moment of rounding errors must not become a step (keys have biases whose gradient is 0), and Adam must notice
# a gradient of the wrong scale: hence the large eps.
RECIPE = {"recipe.steps": 5, "recipe.batch_size": 8, "recipe.evaluate_every": 2, "recipe.warmup": 1}
RECIPE |= {"recipe.evaluation_batch": 2, "recipe.eps": 1e-2, "recipe.selection": "last"}
TEXT = RECIPE | {"data.length": 9, "data.vocabulary": 260, "model.dim": 8, "model.mlp": 8}
PAIRS = {"data.source": 12, "data.target": 9, "data.size": 260, "model.dim": 8, "model.heads": 2, "model.mlp": 8}
SPEECH = {"model.dim": 8, "model.mlp": 16}
SPEECH |= {"model.heard": 2, "model.turns": 1, "model.validation_turns": 1}
CLOUDS = {
    "data.points": 64,
    "data.partial": 64,
    "model.dim": 16,
    "model.mlp": 16,
    "recipe.steps": 2,
}  # then nearest points flip
PICTURES = {"model.attn_res": (16,), "model.side": 16, "data.low": 4, "data.high": 16, "model.dim": 8}
PICTURES |= {"model.multipliers": (1, 2), "model.diffusion.sampled": 3}
KINDS = {
    "listops": RECIPE | {"model.dropout": 0.0},
    "batch_norm": RECIPE | {"model.dropout": 0.0, "model.norm": "batch"},  # over rows of many lengths
    "auxiliary": RECIPE | {"model.dropout": 0.0},  # whose term is all that some of its parameters are for
    "lm": TEXT | {"model.dropout": 0.0, "model.layers": 1},
    "streams": TEXT | {"model.dropout": 0.0, "recipe.order": "streams"},
    "mlm": TEXT | {"model.layers": 1},
    "summarization": RECIPE | PAIRS | {"model.longest": 4, "recipe.label_smoothing": 0.1},
    "forecasting_etth1": RECIPE | {"model.dim": 8, "model.mlp": 8},  # has batch norms
    "parted": RECIPE,  # a loss with several counts
    "tts_fastspeech2": RECIPE | SPEECH,
    "point_cloud_completion": RECIPE | CLOUDS,  # views, shuffles and mirrors are drawn for each row
    "super_resolution": RECIPE | PICTURES,  # and so are noise, its level and mirrors
    "recall": RECIPE | {"model.dim": 8, "model.mlp": 8, "model.layers": 1, "model.dropout": 0.0},
}
TWO_WAYS = ("tts_fastspeech2", "point_cloud_completion", "super_resolution", "recall")
NAMES = {"auxiliary": "listops", "batch_norm": "listops", "streams": "lm"}
MECHANISMS = {"auxiliary": Auxiliary, "streams": attentions.get("transformer_xl(memory=6, segment=4)")}
WAYS = {
    "whole": {"recipe.accumulate": 1, "recipe.clip": None},
    "whole, clipped": {"recipe.accumulate": 1, "recipe.clip": 0.1},
    "in parts": {"recipe.accumulate": 2, "recipe.clip": None},
    "in parts, clipped and averaged": {"recipe.accumulate": 2, "recipe.clip": 0.1, "recipe.average": 0.5},
}
SHARDED = {
    "sharded, in parts, clipped and averaged": WAYS["in parts, clipped and averaged"] | {"recipe.parallel": "fsdp"}
}
PARTED = {"recipe.accumulate": 2, "recipe.clip": None}
MORE_WAYS = {  # for a loss with several counts alone
    "parts by their mean": PARTED | {"recipe.parts": "mean"},
    "parts over samples": PARTED | {"recipe.parts": "sum_over_samples", "recipe.eps": 1e-4},
    "by length": PARTED | {"recipe.order": "by_length", "recipe.parts": "mean"},
    "mean of the last": PARTED | {"recipe.selection": "mean_of_last", "recipe.averaged": 2},
    "also best at 3": PARTED | {"recipe.selection": "best", "recipe.also_at": 3},
}


def ways_of(kind: str) -> dict[str, dict]:
    if kind in TWO_WAYS:
        return {way: WAYS[way] for way in ("whole", "in parts, clipped and averaged")} | SHARDED
    return WAYS | SHARDED | (MORE_WAYS if kind == "parted" else {})


def train_all(fabric: Fabric, folder: Path, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Train each kind in every way, and leave what came out of it in a file for each process."""
    torch.set_num_threads(1)
    for kind in kinds:
        overrides = KINDS[kind]
        for way, changes in ways_of(kind).items():
            if way == "by length" and fabric.world_size > 2:
                continue  # its last group has 2 rows
            task = Parted() if kind == "parted" else tasks.get(NAMES.get(kind, kind))
            rules = RULES if task.name in ("listops", "parted") else task.protocol("longspan", "smoke")
            rules = rules.override(overrides | changes)
            seed_everything(0)
            model = task.model(MECHANISMS.get(kind) or attentions.get("softmax"), rules)
            place = folder / f"{kind} {way}"
            done = train(task, model, splits_of(task, rules), rules, fabric=fabric, seed=0, folder=place)
            found = {"weights": done.weights, "curve": done.progress.curve, **dataclasses.asdict(done.test)}
            found |= {"also": done.also and done.also.metrics, "valid": done.valid.metrics}
            torch.save(found, place / f"rank{fabric.global_rank}.pt")


def splits_of(task: Task, rules: Protocol) -> Splits:
    """Rows of many lengths: 10 for training, 5 to choose by (a single window where there are windows), 7 to test."""
    if task.name in ("listops", "parted"):
        return small_splits()
    if task.name == "point_cloud_completion":
        train, *others = (task.made_up(rules, count) for count in (10, 5, 7))
        return Splits(train, *(dataclasses.replace(one, training=False) for one in others), {"variant": "made up"})
    makes = {"lm": _text, "mlm": _text, "summarization": _pairs, "tts_fastspeech2": _clips}
    make = makes.get(task.name, task.made_up)
    valid = 1 if task.name.startswith("forecasting") else 5
    return Splits(make(rules, 10), make(rules, valid), make(rules, 7), {"variant": "made up"})


def _text(rules: Protocol, count: int) -> pg19.Stream:
    """Books of 1 to 8 tokens, of which a row holds one or, where they fit together, several."""
    rng = np.random.default_rng(count)
    books = [np.append(rng.integers(4, 60, rng.integers(1, 9)), END) for _ in range(2 * count)]
    tokens = np.concatenate(books).astype(np.uint16)
    return pg19.Stream(tokens, **pg19._rows(tokens, rules.data.length, "complete"), frequencies=np.bincount(tokens))


def _pairs(rules: Protocol, count: int) -> Clusters:
    """Articles of 1 to 12 tokens with summaries of 2 to 10."""
    made = tasks.get("summarization").made_up(rules, count)
    assert isinstance(made, Clusters)
    rng = np.random.default_rng(count)
    lengths = np.stack([rng.integers(1, 13, count), rng.integers(2, 11, count)], axis=1)
    ids = Split(made.ids.tokens, made.ids.starts, made.ids.starts + lengths, made.ids.labels)
    return dataclasses.replace(made, ids=ids)


def _clips(rules: Protocol, count: int) -> Speech:
    """Clips of 2 to 6 phones, each of which lasts 3 frames."""
    made = tasks.get("tts_fastspeech2").made_up(rules, count)
    assert isinstance(made, Speech)
    rng = np.random.default_rng(count)
    spoken = rng.integers(2, 7, count)
    edges, frames = np.append(0, np.cumsum(spoken + 1)), np.append(0, np.cumsum(3 * spoken))
    tokens = rng.integers(4, 20, edges[-1]).astype(np.int16)
    tokens[edges[1:] - 1] = ENDS_CLIP
    lasts = np.where(tokens == ENDS_CLIP, 0, 3).astype(np.int16)
    values = np.ones(len(tokens), np.float32)
    texts = {"tokens": tokens, "token_edges": edges, "durations": lasts, "pitch": values, "energy": values}
    return dataclasses.replace(made, mel=made.mel[: frames[-1]], mel_edges=frames, **texts)
