"""Optimiser steps per second on the full-size tasks of Long Range Arena (`lra-paper`), next to torch's own encoder.

Rows: our encoder as a run compiles it, with each requested mechanism, and `nn.TransformerEncoder`, compiled, on padded
tokens without any mask. Same data, same optimiser, bf16 autocast, data on the device; warm-up first, then the median
over blocks of steps between device events. Tasks whose data are not on disk get random bytes of full length, with a
note.

    python benchmarks/training_speed.py [TASK...] [-a MECHANISM...] [--steps 40] [--json FILE] [--warm] [--quick]

`--warm` only compiles, so that several processes can fill the compiler's cache before one of them measures.
`--quick` is the smoke tier of ListOps on a CPU, uncompiled.
"""

import argparse
import json
import statistics

import torch
from torch import nn

from longspan import datasets
from longspan.backbones.encoder_classifier import Sizes
from longspan.core import meter
from longspan.kernels.packing import Rows
from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.training.optimizer import make_optimizer, set_learning_rate
from longspan.training.order import ExampleOrder
from longspan.training.update import make_update

TASKS = ("listops", "text_4k", "text_1k", "retrieval", "image", "pathfinder")


class Plain(nn.Module):
    """The straightforward version: torch's encoder on padded tokens, first position pooled."""

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

    The update is that of a run: recorded in a CUDA graph where batches come in few shapes.
    """
    recipe = plan.protocol.recipe
    device = str(next(model.parameters()).device.type)
    fabric = make_fabric(device, "bf16" if device == "cuda" else "fp32", 1)
    model, optimizer = fabric.setup(model, make_optimizer(model, recipe))
    set_learning_rate(optimizer, 1e-4)
    order = ExampleOrder(len(feed), recipe.batch_size, 0)
    model.train()
    meter.reset_peak_memory(device)
    update, stage = make_update(plan.task, model, optimizer, recipe, fabric)

    def stretch(first: int, count: int) -> None:
        for step in range(first, first + count):
            update([feed.batch(order.rows(step))])

    with stage:
        return _rates(stretch, device, recipe.steps, steps, blocks, warmup)


def _rates(stretch, device: str, total_steps: int, steps: int, blocks: int, warmup: int) -> dict:
    watch = meter.Stopwatch(device)
    stretch(0, warmup)
    compiling = watch.elapsed()
    rates = []
    for block in range(blocks if steps else 0):
        watch = meter.Stopwatch(device)
        stretch(warmup + block * steps, steps)
        rates.append(steps / watch.elapsed())
    if not rates:
        return {}
    return {
        "median": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "implied_minutes": total_steps / statistics.median(rates) / 60,
        "peak_gib": (meter.peak_memory_bytes(device) or 0) / 2**30,
        "warmup_seconds": compiling,
    }


def training_feed(plan: RunPlan, device: str):
    """The training split on the device, and a description of its data."""
    if datasets.get(plan.task.dataset).status(plan.protocol.data).ready:
        splits = plan.task.splits(plan.protocol)
        return plan.task.feed(splits.train, plan.protocol, device), splits.variant
    return plan.task.feed(plan.task.made_up(plan.protocol, 512), plan.protocol, device), "random bytes of full length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("-a", dest="mechanisms", action="append")
    parser.add_argument("--protocol", default="lra-paper")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the smoke tier of ListOps on a CPU, uncompiled")
    arguments = parser.parse_args()
    device, tier, how = "cuda", "full", {}
    if arguments.quick:
        device, tier, how = "cpu", "smoke", {"blocks": 2, "warmup": 1}
        arguments.tasks, arguments.protocol, arguments.steps = ["listops"], "longspan", 1
    rows = []
    for task in arguments.tasks:
        for mechanism in [*(arguments.mechanisms or ["softmax"]), *([] if arguments.no_plain else [None])]:
            plan = RunPlan.of(Cell(task, mechanism or "softmax", protocol=arguments.protocol, tier=tier))
            feed, data = training_feed(plan, device)
            if mechanism:
                name, model = f"longspan, {mechanism}", plan.model()
                if not arguments.quick:
                    model.compile_parts()
            else:
                name = "nn.TransformerEncoder, no mask"
                sizes = plan.protocol.model
                model = Plain(sizes, 258, plan.task.longest(plan.protocol), plan.task.classes)
                if not arguments.quick:
                    model.compile()
            rate = steps_per_second(plan, model.to(device), feed, 0 if arguments.warm else arguments.steps, **how)
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
            about = {
                "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
                "torch": torch.__version__,
                "protocol": arguments.protocol,
            }
            json.dump(about | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
