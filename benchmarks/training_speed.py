"""Optimiser steps per second on the full-size tasks of Long Range Arena (`lra-paper`), side by side with torch's own.

Rows: our encoder as a run compiles it, with each mechanism asked for, and `nn.TransformerEncoder`, compiled, on padded
tokens without any mask. Same data, same optimiser, bf16 autocast, data on the device; warm-up first, then the median
over blocks of steps between device events. Tasks whose data are not on disk get random bytes of full length, said so.

    python benchmarks/training_speed.py [TASK...] [-a MECHANISM...] [--steps 40] [--json FILE] [--warm]

`--warm` only compiles, so that several processes can fill the compiler's cache before one of them measures.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from longspan import datasets
from longspan.backbones.encoder_classifier import Sizes
from longspan.kernels.packing import Rows
from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.training.loop import ExampleOrder, make_update
from longspan.training.optimizer import make_optimizer, set_learning_rate

TASKS = ("listops", "text_4k", "text_1k", "retrieval", "image", "pathfinder")


class Plain(nn.Module):
    """What one would write first: torch's encoder on padded tokens, first position pooled."""

    def __init__(self, sizes: Sizes, vocabulary: int, length: int, classes: int):
        super().__init__()
        self.length, self.pair = length, sizes.features != "one"
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        self.positions = nn.Parameter(torch.zeros(length, sizes.dim))
        layer = nn.TransformerEncoderLayer(
            sizes.dim, sizes.heads, sizes.mlp, sizes.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
        self.head = nn.Linear(sizes.dim * (2 if self.pair else 1), classes)

    def forward(self, tokens: torch.Tensor, lengths: Rows | None) -> torch.Tensor:
        tokens = tokens if lengths is None else tokens[: lengths.count]
        padded = nn.functional.pad(tokens, (0, self.length - tokens.shape[1]))
        pooled = self.encoder(self.embedding(padded) + self.positions)[:, 0]
        return self.head(torch.cat(pooled.chunk(2), dim=-1) if self.pair else pooled)


def steps_per_second(plan: RunPlan, model: nn.Module, feed, steps: int, blocks: int = 5, warmup: int = 60) -> dict:
    """The median over blocks; with no steps at all the model is only warmed up, that is, compiled and recorded.

    The update is that of a run: recorded where batches come in few shapes.
    """
    recipe = plan.protocol.recipe
    fabric = make_fabric("cuda", "bf16", 1)
    model, optimizer = fabric.setup(model, make_optimizer(model, recipe))
    set_learning_rate(optimizer, 1e-4)
    order = ExampleOrder(len(feed), recipe.batch_size, 0)
    model.train()
    torch.cuda.reset_peak_memory_stats()
    update, stage = make_update(plan.task, model, optimizer, recipe, fabric)

    def stretch(first: int, count: int) -> None:
        for step in range(first, first + count):
            update([feed.batch(order.rows(step))])

    with stage:
        return _rates(stretch, recipe.steps, steps, blocks, warmup)


def _rates(stretch, total_steps: int, steps: int, blocks: int, warmup: int) -> dict:
    started = time.perf_counter()
    stretch(0, warmup)
    torch.cuda.synchronize()
    compiling = time.perf_counter() - started
    rates = []
    for block in range(blocks if steps else 0):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        stretch(warmup + block * steps, steps)
        end.record()
        torch.cuda.synchronize()
        rates.append(steps / (start.elapsed_time(end) / 1e3))
    if not rates:
        return {}
    return {
        "median": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "implied_minutes": total_steps / statistics.median(rates) / 60,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "warmup_seconds": compiling,
    }


def training_feed(plan: RunPlan):
    """The training split on the device, and what it holds."""
    if datasets.get(plan.task.dataset).status(plan.protocol.data).ready:
        splits = plan.task.splits(plan.protocol)
        return plan.task.feed(splits.train, plan.protocol, "cuda"), splits.variant
    return plan.task.feed(plan.task.made_up(plan.protocol, 512), plan.protocol, "cuda"), "random bytes of full length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("-a", dest="mechanisms", action="append")
    parser.add_argument("--protocol", default="lra-paper")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--warm", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for task in arguments.tasks:
        for mechanism in [*(arguments.mechanisms or ["softmax"]), *([] if arguments.no_plain else [None])]:
            plan = RunPlan.of(Cell(task, mechanism or "softmax", protocol=arguments.protocol, tier="full"))
            feed, data = training_feed(plan)
            if mechanism:
                name, model = f"longspan, {mechanism}", plan.model()
                model.compile_parts()
            else:
                name = "nn.TransformerEncoder, no mask"
                sizes = plan.protocol.model
                model = Plain(sizes, 258, plan.task.longest(plan.protocol), plan.task.classes)
                model.compile()
            rate = steps_per_second(plan, model.cuda(), feed, 0 if arguments.warm else arguments.steps)
            if not rate:
                continue
            rows.append({"task": task, "row": name, "data": data} | rate)
            print(
                f"{task:12s} {name:34s} {rate['median']:7.2f} steps/s ({rate['least']:.2f} to {rate['most']:.2f}), "
                f"{rate['implied_minutes']:6.1f} min, {rate['peak_gib']:5.1f} GiB, on {data} "
                f"(first steps {rate['warmup_seconds']:.0f} s)",
                flush=True,
            )
            del model, feed
            torch.compiler.reset()
            torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w") as file:
            about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "protocol": arguments.protocol}
            json.dump(about | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
