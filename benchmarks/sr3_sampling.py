"""Steps per second of SR3 at full size: sampling (one forward pass and the arithmetic around it) and training.

    python benchmarks/sr3_sampling.py [-a MECHANISM...] [--batch 16] [--steps 5] [--json FILE] [--quick]

Every mechanism in all 21 slots, up to 16,384 pixels and heads of 64 to 512 channels, under bf16 autocast on random
pictures: launched one by one (`eager`) and replayed as a CUDA graph (`graph`), with weights and activations as torch
lays them out (`nchw`) and with channels last (`nhwc`). Medians between device events over blocks of steps, after a
warm-up. `sampling pictures/min` is how many pictures 2,000 steps give. The first lines say which of torch's kernels
computes exact attention at each width. `--quick` is the smoke network on a CPU.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from longspan.backbones.parameters import Unfilled
from longspan.core import meter
from longspan.core.cuda_graph import aside, record
from longspan.kernels.sdpa import chosen
from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.tasks import diffusion
from longspan.tasks.super_resolution import colours
from longspan.training.optimizer import make_optimizer, set_learning_rate
from longspan.training.update import make_update

MECHANISMS = ("softmax", "abc")
BLOCKS = 3


def build(plan: RunPlan, device: str) -> nn.Module:
    """The network with small random weights; the orthogonal ones of a run take longer to draw than the benchmark."""
    with torch.device(device), Unfilled():
        model = plan.task.model(plan.slots, plan.protocol)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    return model


def rate(call: Callable[[], Any], steps: int, device: str) -> float:
    """Steps per second, the median over blocks."""
    for _ in range(2):
        call()
    rates = []
    for _ in range(BLOCKS):
        watch = meter.Stopwatch(device)
        for _ in range(steps):
            call()
        rates.append(steps / watch.elapsed())
    return statistics.median(rates)


def sampling(plan: RunPlan, model: Any, feed: Any, rows: Any, steps: int, device: str) -> dict[str, float]:
    model.eval()
    condition, numbers = colours(feed.pair(rows)[0]), feed.numbers(rows)
    batch = diffusion.Batch.begin(condition, numbers, plan.protocol.model.diffusion.schedule)
    with torch.no_grad():
        found = {"eager": rate(lambda: batch.advance(model), steps, device)}
        if device == "cuda":
            with aside(stream := torch.cuda.Stream()):
                replay, _ = record(lambda: batch.advance(model), stream=stream)
                found["graph"] = rate(replay, steps, device)
    return found


def training(plan: RunPlan, model: Any, optimizer: Any, fabric: Any, feed: Any, rows: Any, steps: int, device: str):
    model.train()

    def eager() -> None:
        optimizer.zero_grad(set_to_none=True)
        fabric.backward(plan.task.loss(model, feed.batch(rows)).loss)
        optimizer.step()

    found = {"eager": rate(eager, steps, device)}
    if device == "cuda":
        update, stage = make_update(plan.task, model, optimizer, plan.protocol.recipe, fabric)
        with stage:
            found["graph"] = rate(lambda: update([feed.batch(rows)]), steps, device)
    return found


def kernels(plan: RunPlan, device: str) -> None:
    sizes = plan.protocol.model
    for side, width in zip(sizes.sides, sizes.widths, strict=True):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        q = torch.zeros(1, 1, side * side, width, device=device, dtype=dtype)
        print(f"exact attention, {side * side:6,} pixels, {width:3} channels: {chosen(q, q, q)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-a", dest="mechanisms", action="append")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="the smoke network on a CPU")
    arguments = parser.parse_args()
    device, tier = ("cpu", "smoke") if arguments.quick else ("cuda", "lite")
    if arguments.quick:
        arguments.batch, arguments.steps = 2, 1
    fabric = make_fabric(device, "bf16" if device == "cuda" else "fp32", 1)
    rows, told = [], False
    for mechanism in arguments.mechanisms or MECHANISMS:
        plan = RunPlan.of(Cell("super_resolution", mechanism, protocol="cab-2023", tier=tier))
        if not told:
            kernels(plan, device)
            told = True
        feed: Any = plan.task.feed(plan.task.made_up(plan.protocol, arguments.batch), plan.protocol, device)
        chosen_rows = feed.pictures.rows
        for layout in ("nchw", "nhwc"):
            torch.manual_seed(0)
            bare: Any = build(plan, device)
            bare = bare.to(memory_format=torch.channels_last) if layout == "nhwc" else bare
            model, optimizer = fabric.setup(bare, make_optimizer(bare, plan.protocol.recipe))
            set_learning_rate(optimizer, 1e-5)
            meter.reset_peak_memory(device)
            how = (feed, chosen_rows, arguments.steps, device)
            sampled = sampling(plan, model, *how)
            trained = training(plan, model, optimizer, fabric, *how)
            for mode in sampled:
                row = {
                    "mechanism": str(plan.mechanism),
                    "layout": layout,
                    "mode": mode,
                    "batch": arguments.batch,
                    "sampling_steps_per_second": sampled[mode],
                    "sampling_pictures_per_minute": sampled[mode] * arguments.batch / 2_000 * 60,
                    "training_steps_per_second": trained[mode],
                    "peak_gib": (meter.peak_memory_bytes(device) or 0) / 2**30,
                }
                rows.append(row)
                print(
                    f"{row['mechanism']:20} {layout} {mode:5}  sampling {sampled[mode]:8.2f} steps/s, "
                    f"{row['sampling_pictures_per_minute']:7.2f} pictures/min;  training {trained[mode]:8.2f} "
                    f"steps/s of {arguments.batch} pictures;  {row['peak_gib']:.1f} GiB",
                    flush=True,
                )
            del bare, model, optimizer
    if arguments.json:
        with open(arguments.json, "w") as handle:
            json.dump(rows, handle, indent=1)


if __name__ == "__main__":
    main()
