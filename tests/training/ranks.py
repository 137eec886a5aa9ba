"""One short training for every kind of task, in one process or in each of several: what is compared between them."""

import dataclasses
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
from longspan.tasks.base import Protocol, Task
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
KINDS = {
    "listops": RECIPE | {"model.dropout": 0.0},
    "batch_norm": RECIPE | {"model.dropout": 0.0, "model.norm": "batch"},  # over rows of many lengths
    "auxiliary": RECIPE | {"model.dropout": 0.0},  # whose term is all that some of its parameters are for
    "lm": TEXT | {"model.dropout": 0.0, "model.layers": 1},
    "streams": TEXT | {"model.dropout": 0.0, "recipe.batch_size": 4, "recipe.order": "streams"},
    "mlm": TEXT | {"model.layers": 1},
    "summarization": RECIPE | PAIRS | {"model.longest": 4, "recipe.label_smoothing": 0.1},
    "forecasting_etth1": RECIPE | {"model.dim": 8, "model.mlp": 8},  # has batch norms
    "parted": RECIPE,  # a loss with several counts
}
NAMES = {"auxiliary": "listops", "batch_norm": "listops", "streams": "lm"}
MECHANISMS = {"auxiliary": Auxiliary, "streams": attentions.get("transformer_xl(memory=6, segment=4)")}
WAYS = {
    "whole": {"recipe.accumulate": 1, "recipe.clip": None},
    "whole, clipped": {"recipe.accumulate": 1, "recipe.clip": 0.1},
    "in parts": {"recipe.accumulate": 2, "recipe.clip": None},
    "in parts, clipped and averaged": {"recipe.accumulate": 2, "recipe.clip": 0.1, "recipe.average": 0.5},
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
    return WAYS | MORE_WAYS if kind == "parted" else WAYS


def train_all(fabric: Fabric, folder: Path) -> None:
    """Train every kind in every way, and leave what came out of it in a file for each process."""
    torch.set_num_threads(1)
    for kind, overrides in KINDS.items():
        for way, changes in ways_of(kind).items():
            task = Parted() if kind == "parted" else tasks.get(NAMES.get(kind, kind))
            rules = RULES if task.name in ("listops", "parted") else task.protocol("longspan", "smoke")
            rules = rules.override(overrides | changes)
            seed_everything(0)
            model = task.model(MECHANISMS.get(kind) or attentions.get("softmax"), rules)
            place = folder / f"{kind} {way}"
            done = train(task, model, splits_of(task, rules), rules, fabric=fabric, seed=0, folder=place)
            found = {"weights": model.state_dict(), "curve": done.progress.curve, **dataclasses.asdict(done.test)}
            found |= {"also": done.also and done.also.metrics, "valid": done.valid.metrics}
            torch.save(found, place / f"rank{fabric.global_rank}.pt")


def splits_of(task: Task, rules: Protocol) -> Splits:
    """Rows of many lengths: 10 for training, 5 to choose by (a single window where there are windows), 7 to test."""
    if task.name in ("listops", "parted"):
        return small_splits()
    make = {"lm": _text, "mlm": _text, "summarization": _pairs}.get(task.name, task.made_up)
    valid = 5 if make is not task.made_up else 1
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
