"""A short training run for every kind of task, in one process or in several, whose results are compared."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import DoublePrecision
from torch import Tensor

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.core.seeding import seed_everything
from longspan.datasets import pg19
from longspan.datasets.base import Split, Splits
from longspan.datasets.bpe import END
from longspan.datasets.multi_news import Clusters
from longspan.datasets.speech.view import Speech
from longspan.kernels.context_parallel import shared
from longspan.kernels.point_cloud import reference as clouds
from longspan.tasks.base import Protocol, Task
from longspan.tasks.speech_feed import END as ENDS_CLIP
from longspan.training.loop import train
from longspan.training.progress import Progress
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
SPEECH |= {
    "recipe.drop_last": True,
    "recipe.evaluation_batch": 8,
    "model.heard": 2,
    "model.turns": 1,
    "model.validation_turns": 1,
}
CLOUDS = {
    "data.points": 64,
    "data.partial": 64,
    "model.dim": 16,
    "model.mlp": 16,
    "recipe.steps": 2,
}  # after two steps nearest points flip
PICTURES = {"model.attn_res": (16,), "model.side": 16, "data.low": 4, "data.high": 16, "model.dim": 8}
PICTURES |= {"recipe.evaluation_batch": 8, "recipe.steps": 3, "model.multipliers": (1, 2), "model.diffusion.sampled": 3}
KINDS = {
    "listops": RECIPE | {"model.dropout": 0.0},
    "batch_norm": RECIPE | {"model.dropout": 0.0, "model.norm": "batch", "recipe.decay": "weights"},
    "auxiliary": RECIPE | {"model.dropout": 0.0},  # some of its parameters are used only by the auxiliary term
    "lm": TEXT | {"model.dropout": 0.0, "model.layers": 1},
    "context, softmax": TEXT | {"model.dropout": 0.0},  # every process has a part of the tokens of each row
    "context, linear": TEXT | {"model.dropout": 0.0},
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
# In float32 the order of a sum may decide which of two points is the nearest, and a weight then differs by 1e-5 after
# two steps; in float64, where this does not happen, by 1e-14.
IN_DOUBLE = ("point_cloud_completion",)
ONE_WAY = ("tts_fastspeech2", "point_cloud_completion", "super_resolution", "recall")
ALSO_SHARDED = ("auxiliary", "batch_norm", "streams", "tts_fastspeech2")
NAMES = {"auxiliary": "listops", "batch_norm": "listops", "streams": "lm"}
MECHANISMS = {"auxiliary": Auxiliary, "streams": attentions.get("transformer_xl(memory=6, segment=4)")}
for kind in ("context, softmax", "context, linear"):
    NAMES[kind], MECHANISMS[kind] = "lm", attentions.get(kind.partition(", ")[2])
WAYS = {
    "whole": {"recipe.accumulate": 1, "recipe.clip": None},
    "whole, clipped": {"recipe.accumulate": 1, "recipe.clip": 0.1},
    "in parts": {"recipe.accumulate": 2, "recipe.clip": None},
    "in parts, clipped and averaged": {"recipe.accumulate": 2, "recipe.clip": 0.1, "recipe.average": 0.5},
}
PARTS = "in parts, clipped and averaged"
SHARDED = {f"sharded, {PARTS}": WAYS[PARTS] | {"recipe.parallel": "fsdp"}}
IN_CONTEXT = {way: WAYS[way] | {"recipe.parallel": "context"} for way in ("whole", PARTS)}
PARTED = {"recipe.accumulate": 2, "recipe.clip": None}
MORE_WAYS = {  # only for a loss with several counts
    "parts by their mean": PARTED | {"recipe.parts": "mean"},
    "parts over samples": PARTED | {"recipe.parts": "sum_over_samples", "recipe.eps": 1e-4},
    "by length": PARTED | {"recipe.order": "by_length", "recipe.parts": "mean"},
    "mean of the last": PARTED | {"recipe.selection": "mean_of_last", "recipe.averaged": 2},
    "also best at 3": PARTED | {"recipe.selection": "best", "recipe.also_at": 3},
}


def ways_of(kind: str, *, full: bool) -> dict[str, dict]:
    """How a kind is trained: in every way, or in the most informative ones."""
    if kind.startswith("context"):
        return IN_CONTEXT if full else {PARTS: IN_CONTEXT[PARTS]}
    ways = WAYS if full else {way: WAYS[way] for way in ([PARTS] if kind in ONE_WAY else ["whole", PARTS])}
    sharded = SHARDED if full or kind in ALSO_SHARDED else {}
    return ways | sharded | (MORE_WAYS if kind == "parted" else {})


def train_all(fabric: Fabric, folder: Path, *, full: bool = False) -> None:
    """Train each kind in its ways, and save the outcome in a file for each process."""
    torch.set_num_threads(1)
    attend_all(fabric, folder)
    for kind in KINDS:
        for way, changes in ways_of(kind, full=full).items():
            if way == "by length" and fabric.world_size > 2:
                continue  # its last group has 2 rows
            train_one(fabric, folder / f"{kind} {way}", kind, changes)


class Interrupted(Exception):
    pass


def train_one(fabric: Fabric, place: Path, kind: str, changes: Mapping[str, Any], stop_at: int | None = None) -> None:
    """Train one kind from where it stopped, up to an interruption or to the end, where the outcome is saved."""
    task = Parted() if kind == "parted" else tasks.get(NAMES.get(kind, kind))
    rules = RULES if task.name in ("listops", "parted") else task.protocol("longspan", "smoke")
    rules = rules.override(KINDS[kind] | changes)

    def watch(progress: Progress, steps: int) -> None:
        if progress.step == stop_at:
            raise Interrupted

    how = {"fabric": fabric, "seed": 0, "folder": place, "watch": watch, "save_every_seconds": -1.0}
    try:
        with in_double(fabric) if kind in IN_DOUBLE else contextlib.nullcontext():
            seed_everything(0)
            model = task.model(MECHANISMS.get(kind) or attentions.get("softmax"), rules)
            done = train(task, model, splits_of(task, rules), rules, **how)
    except Interrupted:
        return
    found = {"weights": done.weights, "curve": done.progress.curve, **dataclasses.asdict(done.test)}
    found |= {"also": done.also and done.also.metrics, "valid": done.valid.metrics, "resumed": done.progress.resumed}
    torch.save(found, place / f"rank{fabric.global_rank}.pt")


@contextlib.contextmanager
def in_double(fabric: Fabric) -> Iterator[None]:
    """Train in float64, even what requests float32."""
    smallest, precision = clouds._smallest, DoublePrecision()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fabric, "_precision", precision)
            patch.setattr(fabric.strategy, "precision", precision)
            patch.setattr(Tensor, "float", Tensor.double)
            patch.setattr(clouds, "_smallest", lambda distance, k: smallest(distance.to(torch.float32), k))  # by bits
            yield
    finally:
        torch.set_default_dtype(torch.float32)


RESUMED = {  # runs resumed with another number of processes
    "lm": SHARDED[f"sharded, {PARTS}"],
    "streams": WAYS[PARTS],
    "parted": PARTED | {"recipe.parallel": "fsdp", "recipe.selection": "mean_of_last", "recipe.averaged": 2},
}


def train_resumed(fabric: Fabric, folder: Path, stop_at: int | None = None) -> None:
    """Start those runs and interrupt them after step 3, or resume them to the end."""
    for kind, changes in RESUMED.items():
        train_one(fabric, folder / kind, kind, changes, stop_at)


def train_several(fabric: Fabric, folder: Path, *, full: bool = False) -> None:
    """Everything that several processes do, in one launch, since starting them is slow."""
    train_all(fabric, folder, full=full)
    train_resumed(fabric, folder / "begun by one")
    train_resumed(fabric, folder / "begun by several", stop_at=3)


def attend_all(fabric: Fabric, folder: Path) -> None:
    """One layer of each mechanism on rows of 12 tokens split among processes: its outputs and all gradients."""
    rank, processes = fabric.global_rank, fabric.world_size
    for name in ("softmax", "linear", "dpfp"):
        seed_everything(1)
        layer = attentions.get(name)(8, 2, Pattern.CAUSAL_SELF).double()
        x, towards = torch.randn(2, 2, 12, 8, dtype=torch.float64)
        mine = x.chunk(processes, dim=1)[rank].clone().requires_grad_()
        with shared(rank, processes):
            y = layer(mine)
            (y * towards.chunk(processes, dim=1)[rank]).sum().backward()
        weights = {n: p.grad.clone() for n, p in layer.named_parameters()}
        for gradient in weights.values() if processes > 1 else ():
            torch.distributed.all_reduce(gradient)
        torch.save({"y": y.detach(), "x": mine.grad, "weights": weights}, folder / f"{name} rank{rank}.pt")


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
