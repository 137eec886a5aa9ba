"""Point cloud completion: from what a depth camera sees of one side of a shape to its whole surface, by PoinTr.

The score is CD-l1, the Chamfer distance between completed and true points times 1,000 (lower is better): a mean over
the models of each category, then over categories; `cd_l1_models` is the plain mean over models. Chance is what the
partial view scores as it is. Beside it are CD-l2, the F-score at 0.01, and the view joined with its mirror image in the
plane x = 0, in which most man-made objects are symmetric. The mechanism on trial sits in the noncausal cross slots,
where queries attend to the encoded view, unless another pattern is given.

In training each model comes with one of its views, drawn at random, and both clouds are mirrored together: x and z
negated, x, z, or neither. A view is shuffled and cut to 2,048 points, or padded with rows of zeros; in validation and
test with a fixed seed for each model. True clouds are used as they are, whatever their number of points: 16,384 in PCN,
8,192 in its substitutes here.

`cab-2023` is the recipe of the Comprehensive Attention Benchmark (arXiv:2210.07661), which is that of PoinTr's code of
July 2022: 301 epochs of AdamW, weight decay on everything. It selects on the test split, as that code did, whose
validation loader reads test: the setting `data.validation` says so on every card, and such a score is optimistic.
`longspan` selects on the validation split, samples and scores all points but rows of zeros, and its coarse cloud ends
with the input itself. `lite` is not a tenth of either but a few minutes on a GPU for the network of full size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.pointr import PoinTr, Sizes
from longspan.backbones.slots import AttentionFactory
from longspan.core.errors import UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import Splits
from longspan.datasets.pcn import COUNTS, PRESETS, Clouds
from longspan.metrics.point_cloud import SCALE, Removed, category_mean, chamfer_l1, chamfer_l2, f_score
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task, TaskMeta
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.row_draws import for_rows

BATCH = 48
EPOCH, EPOCHS = COUNTS["train"] // BATCH, 301
SHOWN, SHOWN_POINTS = 6, 4_096  # clouds kept for people to look at
SCORES = ("cd_l1", "cd_l2", "f_score", "input_cd_l1", "mirrored_cd_l1")


@dataclass(frozen=True)
class Network(Sizes):
    """The sizes of a PoinTr, and which rows of a cloud its metrics do not count as points."""

    removed: Removed = "zero_rows"


DATA = PRESETS["point_cloud_completion"]
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=Network(),
    recipe=Recipe(
        steps=EPOCHS * EPOCH,
        batch_size=BATCH,
        learning_rate=5e-4,
        warmup=0,
        schedule="exponential",
        decay_rate=0.9 ** (1 / 21),
        decay_every=EPOCH,
        weight_decay=5e-4,
        betas=(0.9, 0.999),
        eps=1e-8,
        evaluate_every=EPOCH,
        evaluation_batch=24,
        drop_last=True,
    ),
)
QUIRKS: Mapping[str, Any] = {
    "qkv_bias": "inexact",
    "skip": "near_origin",
    "coarse": "sampled",
    "removed": "zero_sums",
}  # of CAB's network
CAB = Protocol(data=DATA["cab-2023", "full"], model=Network(**QUIRKS), recipe=LONGSPAN.recipe)
FADING = replace(LONGSPAN.recipe, schedule="linear", drop_last=False)
SHORT: Mapping[str, Any] = {"steps": 1_000, "batch_size": 12, "evaluate_every": 100}
TINY = Network(
    dim=32,
    heads=2,
    encoder_layers=1,
    decoder_layers=2,
    mlp=64,
    whole=64,
    sample=64,
    proxies=48,
    queries=64,
    predicted=256,
    neighbours=8,
    geometry=4,
)
TINY_RULES: Mapping[str, Any] = {
    "steps": 200,
    "batch_size": 4,
    "learning_rate": 5e-3,
    "evaluate_every": 50,
    "evaluation_batch": 12,
}


@dataclass(frozen=True)
class Batch:
    """Partial clouds, padded with rows of zeros, and the true ones."""

    partial: Float[Tensor, "b n 3"]
    truth: Float[Tensor, "b m 3"]


class TrainingFeed(Feed):
    """Models on the device; a batch takes one view of each, shuffled, and mirrors both clouds together."""

    def __init__(self, clouds: Clouds, points: int, device: torch.device | str):
        self.complete, self.flat = (
            torch.tensor(np.asarray(x), device=device) for x in (clouds.complete, clouds.partial)
        )
        self.edges = torch.tensor(clouds.partial_edges, device=device)
        self.width = max(points, int(np.diff(clouds.partial_edges).max()))
        self.points, self.device = points, device

    def __len__(self) -> int:
        return len(self.complete)

    def batch(self, rows: np.ndarray) -> Batch:
        row = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device, non_blocking=True)
        views, count = self.edges.shape[1] - 1, len(row)
        view = for_rows(lambda n: torch.randint(views, (n,), device=self.device), count)
        start, end = self.edges[row, view], self.edges[row, view + 1]
        keys = for_rows(lambda n: torch.rand(n, self.width, device=self.device), count)
        there = torch.arange(self.width, device=self.device) < (end - start)[:, None]
        order = keys.masked_fill(~there, 2.0).argsort(dim=1)[:, : self.points]
        real = order < (end - start)[:, None]
        partial = self.flat[start[:, None] + order * real].float() * real[:, :, None]
        signs = mirroring(for_rows(lambda n: torch.rand(n, device=self.device), count))
        return Batch(partial * signs, self.complete[row].float() * signs)

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for first in range(0, len(rows), size):
            places = np.arange(first, min(first + size, len(rows)))
            yield places, self.batch(rows[places])


class EvaluationFeed(Feed):
    """Every view of every model, shuffled by a seed of its own; row `model * views + view`."""

    def __init__(self, clouds: Clouds, points: int, removed: Removed, device: torch.device | str):
        self.clouds, self.device = clouds, device
        self.removed: Removed = removed
        self.complete = torch.tensor(np.asarray(clouds.complete), device=device)
        inputs = [
            fitted(clouds.view(model, view), points, derive(0, "pcn", "input", int(clouds.index[model]), view))
            for model in range(len(clouds))
            for view in range(clouds.views)
        ]
        self.partial = torch.tensor(np.stack(inputs), device=device)

    def __len__(self) -> int:
        return len(self.partial)

    def batch(self, rows: np.ndarray) -> Batch:
        row = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device, non_blocking=True)
        return Batch(self.partial[row], self.complete[row // self.clouds.views].float())

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for first in range(0, len(rows), size):
            places = np.arange(first, min(first + size, len(rows)))
            yield places, self.batch(rows[places])

    def categories(self, rows: np.ndarray) -> np.ndarray:
        """The names of the categories of some rows."""
        return np.array(self.clouds.categories)[self.clouds.category[rows // self.clouds.views]]


class PointCloudCompletion(Task):
    """Partial views, PoinTr, and Chamfer distances."""

    meta = TaskMeta(
        title="Point cloud completion",
        version=1,
        paper="arXiv:2210.07661",
        score="cd_l1",
        higher_is_better=False,
        backbone="pointr",
        slots={"cross": Pattern.NONCAUSAL_CROSS, "encoder": Pattern.NONCAUSAL_SELF},
        unit="plain",
    )
    protocols = {
        ("longspan", "smoke"): Protocol(DATA["longspan", "smoke"], TINY, replace(FADING, warmup=10, **TINY_RULES)),
        ("cab-2023", "smoke"): Protocol(
            DATA["cab-2023", "smoke"], replace(TINY, **QUIRKS), replace(CAB.recipe, decay_every=1, **TINY_RULES)
        ),
        ("longspan", "lite"): replace(LONGSPAN, recipe=replace(FADING, warmup=50, **SHORT)),
        ("cab-2023", "lite"): replace(CAB, recipe=replace(CAB.recipe, decay_every=4, **SHORT)),
        ("longspan", "full"): LONGSPAN,
        ("cab-2023", "full"): CAB,
    }
    presets = {"cab-2023": cab_presets("point_cloud_completion")}
    dataset = "pcn"

    def longest(self, protocol: Protocol) -> int:
        return max(protocol.model.queries, protocol.model.proxies)

    def made_up(self, protocol: Protocol, count: int) -> Clouds:
        """Clouds of noise, to be timed and thrown away."""
        data, rng = protocol.data, np.random.default_rng(0)
        points, seen = data.points or 16_384, data.partial
        complete, flat = rng.uniform(-0.5, 0.5, (count, points, 3)), rng.uniform(-0.5, 0.5, (count * seen, 3))
        rows = np.arange(count)
        edges, names = np.stack([rows * seen, (rows + 1) * seen], axis=1), [str(row) for row in rows]
        clouds = (complete.astype(np.float16), flat.astype(np.float16), edges, 0 * rows)
        return Clouds(*clouds, rows, names, ["noise"], training=True)

    def model(self, attention: AttentionFactory, protocol: Protocol) -> PoinTr:
        return PoinTr(attention, protocol.model)

    def feed(self, split: Clouds, protocol: Protocol, device: torch.device | str) -> Feed:
        if split.training:
            return TrainingFeed(split, protocol.data.partial, device)
        return EvaluationFeed(split, protocol.data.partial, protocol.model.removed, device)

    def loss(self, model: nn.Module, batch: Batch, *, smoothing: float = 0.0) -> StepResult:
        """The Chamfer distances of the coarse and the dense cloud, rows of zeros included; no labels to smooth."""
        coarse, dense = (chamfer_l1(cloud.float(), batch.truth).mean() for cloud in model(batch.partial))
        count = len(batch.partial)
        sums = {"loss": (coarse + dense).detach() * count, "coarse": coarse.detach() * count}
        return StepResult(coarse + dense, sums, count)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        result = self.validate(model, feed, rows, batch_size)
        return replace(result, samples=_samples(model, feed, rows[:SHOWN]))

    def validate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        assert isinstance(feed, EvaluationFeed)
        found = [scores(model(b.partial)[1].float(), b, feed.removed) for _, b in feed.in_batches(rows, batch_size)]
        columns = {name: torch.cat([part[name] for part in found]).double().cpu().numpy() for name in SCORES}
        metrics = {f"{name}_models": float(column.mean()) for name, column in columns.items()}
        metrics["loss"] = metrics["cd_l1_models"] / SCALE
        return Evaluation(metrics, len(rows), {"row": rows, "category": feed.categories(rows), **columns})

    def summary(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Means over categories, and CD-l1 within each."""
        kinds, category = np.unique(predictions["category"], return_inverse=True)
        found = {name: category_mean(predictions[name], category) for name in SCORES}
        within = {f"cd_l1_{kind}": float(predictions["cd_l1"][category == i].mean()) for i, kind in enumerate(kinds)}
        return found | (within if len(kinds) <= 64 else {})

    def chance(self, split: Clouds) -> float:
        """CD-l1 of the partial views as they are."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows = [(model, view) for model in range(len(split)) for view in range(split.views)]
        distances = [
            float(chamfer_l1(_on(split.view(*row), device), _on(split.complete[row[0]], device)) * SCALE)
            for row in rows
        ]
        return category_mean(np.array(distances), split.category[[model for model, _ in rows]])

    def user_object(self, model: nn.Module, protocol: Protocol, splits: Splits | None, device: Any) -> "Completer":
        return Completer(model, protocol.data.partial, device)


class Completer:
    """A trained network for a user's own scans.

    longspan.load(card).complete(points)      # [n 3], y up, in the frame of the whole shape: centre 0, diagonal 1
    """

    def __init__(self, model: nn.Module, points: int, device: torch.device | str):
        self.model, self.points, self.device = model, points, device

    @torch.no_grad()
    def complete(self, points: Any) -> np.ndarray:
        """The whole shape, float32 [m 3]; the last points are those that were given, shuffled, at most 2,048."""
        given = np.asarray(points, dtype=np.float32)
        if given.ndim != 2 or given.shape[1] != 3 or not len(given) or not np.isfinite(given).all():
            raise UsageError(f"A cloud to complete is finite points [n 3], got an array {list(given.shape)}.")
        self.model.eval()
        seen = fitted(given, self.points, derive(0, "pcn", "input", "user"))
        dense = self.model(torch.tensor(seen, device=self.device)[None])[1][0].float().cpu().numpy()
        return dense[: len(dense) - max(0, self.points - len(given))]  # without the rows of zeros


def mirroring(u: Float[Tensor, " b"]) -> Float[Tensor, "b 1 3"]:
    """The signs of x, y and z: x and z negated up to 1/4, x up to 1/2, z up to 3/4, then neither.

    >>> mirroring(torch.tensor([0.2, 0.3, 0.6, 0.9]))[:, 0].int().tolist()
    [[-1, 1, -1], [-1, 1, 1], [1, 1, -1], [1, 1, 1]]
    """
    x = torch.where(u <= 0.5, -1.0, 1.0)
    z = torch.where((u <= 0.25) | ((u > 0.5) & (u <= 0.75)), -1.0, 1.0)
    return torch.stack([x, torch.ones_like(x), z], dim=-1)[:, None]


def fitted(view: np.ndarray, points: int, seed: int) -> np.ndarray:
    """A shuffled view of exactly `points` points, cut or padded with rows of zeros, float32."""
    order = np.random.default_rng(seed).permutation(len(view))[:points]
    whole = np.zeros((points, 3), np.float32)
    whole[: len(order)] = np.asarray(view)[order]
    return whole


def scores(dense: Float[Tensor, "b n 3"], batch: Batch, removed: Removed) -> dict[str, Float[Tensor, " b"]]:
    """What each completed cloud scores, and what the view would, as it is and with its mirror image."""
    truth, mirrored = batch.truth, torch.cat([batch.partial, batch.partial * batch.partial.new_tensor([-1, 1, 1])], 1)
    return {
        "cd_l1": chamfer_l1(dense, truth, removed=removed) * SCALE,
        "cd_l2": chamfer_l2(dense, truth, removed=removed) * SCALE,
        "f_score": f_score(dense, truth),
        "input_cd_l1": chamfer_l1(batch.partial, truth, removed="zero_rows") * SCALE,
        "mirrored_cd_l1": chamfer_l1(mirrored, truth, removed="zero_rows") * SCALE,
    }


def _samples(model: nn.Module, feed: Feed, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The first clouds for people to look at: the view, the completed and the true cloud."""
    assert isinstance(feed, EvaluationFeed)
    batch = feed.batch(rows)
    completed = model(batch.partial)[1]
    clouds = {"partial": batch.partial, "completed": completed, "truth": batch.truth}
    return {"kind": np.array("clouds"), "category": feed.categories(rows)} | {
        name: _thinned(cloud).float().cpu().numpy().astype(np.float16) for name, cloud in clouds.items()
    }


def _thinned(clouds: Float[Tensor, "b n 3"]) -> Float[Tensor, "b m 3"]:
    places = torch.arange(min(clouds.shape[1], SHOWN_POINTS), device=clouds.device) * clouds.shape[1]
    return clouds[:, places // min(clouds.shape[1], SHOWN_POINTS)]


def _on(cloud: np.ndarray, device: str) -> Float[Tensor, "1 n 3"]:
    return torch.tensor(np.asarray(cloud, np.float32), device=device)[None]
