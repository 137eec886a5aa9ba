"""Optimiser steps per second on full-size ListOps (6 layers, 512 wide, up to 2,000 tokens, batch 32), side by side.

Rows: our encoder on packed real tokens, eager and compiled, and torch's own `nn.TransformerEncoder`, compiled, on
padded tokens without any mask. Same data, same optimiser, bf16 autocast; warm-up first, then the median over blocks of
steps between device events.

    python benchmarks/training_speed.py [--steps 60] [--json FILE]
"""

import argparse
import json
import statistics

import torch
from torch import nn

from longspan.runs import Cell, Plan
from longspan.training.loop import ExampleOrder
from longspan.training.optimizer import make_optimizer, set_learning_rate


class Plain(nn.Module):
    """What one would write first: torch's encoder on padded tokens, first position pooled."""

    def __init__(self, vocabulary: int, length: int):
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocabulary, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(512, 10)

    def forward(self, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        padded = nn.functional.pad(tokens, (0, self.length - tokens.shape[1]))
        return self.head(self.encoder(self.embedding(padded))[:, 0])


def steps_per_second(plan: Plan, model: nn.Module, feed, steps: int, blocks: int = 5, warmup: int = 25) -> dict:
    optimizer = make_optimizer(model, plan.protocol.recipe)
    set_learning_rate(optimizer, 1e-4)
    order = ExampleOrder(len(feed), plan.protocol.recipe.batch_size, 0)
    model.train()

    def stretch(first: int, count: int) -> None:
        for step in range(first, first + count):
            batch = feed.batch(order.rows(step))
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = plan.task.loss(model, batch).loss
            loss.backward()
            optimizer.step()

    stretch(0, warmup)
    rates = []
    for block in range(blocks):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        stretch(warmup + block * steps, steps)
        end.record()
        torch.cuda.synchronize()
        rates.append(steps / (start.elapsed_time(end) / 1e3))
    return {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    plan = Plan.of(Cell("listops", "softmax", protocol="lra-paper", tier="full"))
    feed = plan.task.feed(plan.task.splits(plan.protocol).train, plan.protocol, "cuda")
    results = {}

    def measure(name: str, model: nn.Module) -> None:
        results[name] = steps_per_second(plan, model.cuda(), feed, arguments.steps)
        rate = results[name]
        print(f"{name:48s} {rate['median']:7.2f} steps/s  ({rate['least']:.2f} to {rate['most']:.2f})")

    measure("longspan, packed, eager", plan.model())
    compiled = plan.model()
    compiled.compile_parts()
    measure("longspan, packed, compiled", compiled)
    plain = Plain(17, 2000)
    plain.compile()
    measure("nn.TransformerEncoder, padded, no mask, compiled", plain)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": results}, file, indent=1
            )


if __name__ == "__main__":
    main()
