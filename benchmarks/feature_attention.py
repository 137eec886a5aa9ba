"""Kernel attention on a GPU: linear, cosformer and performer by the Triton kernels, first for their answers.

    python benchmarks/feature_attention.py [--only linear] [--length 16384] [--calls 10] [--json FILE] [--sweep]

4 rows, 8 heads of 64 channels, bfloat16, queries, keys and values alone, in self attention, causal and not. Outputs and
gradients are compared with the same mechanism in float64 on one row of 2,048 tokens before anything is timed; beyond
the stated tolerance the program ends with 1. Times are medians over blocks of calls between device events. The floor is
what must cross the memory bus: forward four times the size of q, forward and backward eleven times. `--sweep` tries
other tiles, warps and stages, and other numbers of programs; of performer, which has kernels of its own, warps and
stages of each of them, and blocks of features.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable

import torch
from longspan.kernels.feature_attention import shapes
from torch import Tensor

from longspan import attentions
from longspan.attentions.base import HeadwiseAttention, Pattern
from longspan.kernels.favor import shapes as positive

ROWS, HEADS, WIDTH = 4, 8, 64
NAMES, PATTERNS = ("linear", "cosformer", "performer"), (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF)
TOLERANCE = 0.02  # of the largest number: bfloat16 rounds features, weights, gradients and results
TRIED = [(64, 4, 2), (64, 4, 3), (64, 8, 2), (32, 4, 2), (32, 4, 3), (32, 8, 2), (32, 8, 3)]
SHARE = {"forward": 4, "train": 11}  # of the size of q, that must move


def layer_of(name: str, pattern: Pattern, length: int) -> HeadwiseAttention:
    torch.manual_seed(0)
    layer = attentions.get(name)(HEADS * WIDTH, HEADS, pattern, max_length=length).cuda().eval()
    assert isinstance(layer, HeadwiseAttention)
    return layer


def draw(rows: int, length: int) -> list[Tensor]:
    torch.manual_seed(1)
    tensors = (torch.randn(rows, HEADS, length, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    return [x.requires_grad_() for x in tensors]


def errors(layer: HeadwiseAttention, length: int = 2048) -> dict[str, float]:
    """The largest difference from float64 in the output and each gradient, as a share of the largest number."""
    inputs = draw(1, length)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    y = layer.attend(*inputs)
    dy = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, inputs, dy)]
    law = layer.double().attend(*exact)
    expected = [law, *torch.autograd.grad(law, exact, dy.double())]
    layer.float()
    shares = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True)]
    return dict(zip(("y", "dq", "dk", "dv"), shares, strict=True))


def microseconds(call: Callable[[], object], calls: int, blocks: int = 5) -> float:
    for _ in range(3):
        call()
    found = []
    for _ in range(blocks):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(found)


def ways(layer: HeadwiseAttention, inputs: list[Tensor]) -> dict[str, Callable[[], object]]:
    dy = torch.randn_like(inputs[2])

    def forward() -> Tensor:
        with torch.no_grad():
            return layer.attend(*inputs)

    return {"forward": forward, "train": lambda: torch.autograd.grad(layer.attend(*inputs), inputs, dy)}


def bandwidth(calls: int) -> float:
    """Bytes per microsecond of a plain copy."""
    source = torch.empty(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: target.copy_(source), calls)


def sweep(names: list[str], length: int, calls: int) -> list[dict]:
    """Other shapes of programs, each way by itself; what does not fit the device is left out."""
    rows, inputs, usual = [], draw(ROWS, length), shapes.PROGRAMS
    for name, pattern in itertools.product([name for name in names if name != "performer"], PATTERNS):
        layer, size = layer_of(name, pattern, length), (2, name != "linear")
        for table, way in ((shapes.FORTH, "forward"), (shapes.BACK, "train")):
            chosen = table[size]
            for tile, programs in [(tile, usual) for tile in TRIED] + [(chosen, usual // 2), (chosen, 2 * usual)]:
                table[size], shapes.PROGRAMS = tile, programs
                about = f"{name} {pattern.code} {way}, tile, warps and stages {tile}, {programs} programs"
                try:
                    us = microseconds(ways(layer, inputs)[way], calls, blocks=3)
                except Exception as error:  # Triton has several names for a program that is too large
                    print(f"{about}: {type(error).__name__}", flush=True)
                    continue
                rows.append({"mechanism": name, "pattern": pattern.code, "way": way, "us": us})
                rows[-1] |= {"tile": tile, "programs": programs}
                print(f"{about}: {us:.0f} us", flush=True)
            table[size], shapes.PROGRAMS = chosen, usual
    return rows


def sweep_performer(length: int, calls: int) -> list[dict]:
    """The same of performer: one kernel at a time, and all of them with other tiles and blocks of features."""
    rows, inputs = [], draw(ROWS, length)

    def try_out(pattern: Pattern, way: str, about: str) -> None:
        try:
            us = microseconds(ways(layer_of("performer", pattern, length), inputs)[way], calls, blocks=3)
        except Exception as error:  # Triton has several names for a program that is too large
            print(f"performer {pattern.code} {way}, {about}: {type(error).__name__}", flush=True)
            return
        rows.append({"mechanism": "performer", "pattern": pattern.code, "way": way, "us": us, "shape": about})
        print(f"performer {pattern.code} {way}, {about}: {us:.0f} us", flush=True)

    for pattern, way in itertools.product(PATTERNS, SHARE):
        for tile in [(128, 64), (128, 32), (64, 64), (64, 32)]:
            usual = positive.TILES[2, False]
            positive.TILES[2, False] = tile
            try_out(pattern, way, f"tile and block {tile}")
            positive.TILES[2, False] = usual
        for kernel, usual in list(positive.LAUNCH.items()):
            if way == "forward" and "back" in kernel:
                continue
            for tried in itertools.product((4, 8), (1, 2, 3)):
                positive.LAUNCH[kernel] = (tried, tried)
                try_out(pattern, way, f"warps and stages {tried} of {kernel}")
            positive.LAUNCH[kernel] = usual
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark times a GPU and torch finds none; run it where there is one.")
    names = arguments.only or list(NAMES)
    for name, pattern in itertools.product(names, PATTERNS):
        shares = errors(layer_of(name, pattern, arguments.length))
        print(f"{name} {pattern.code}: off by " + ", ".join(f"{share:.4f} in {what}" for what, share in shares.items()))
        if max(shares.values()) > TOLERANCE:
            sys.exit(f"The kernel is wrong: more than {TOLERANCE} of the largest number; nothing was timed.")
    copied, inputs = bandwidth(arguments.calls), draw(ROWS, arguments.length)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, a copy moves {copied / 1e6:.2f} TB/s")
    rows = []
    for name, pattern in itertools.product(names, PATTERNS):
        for way, call in ways(layer_of(name, pattern, arguments.length), inputs).items():
            us, floor = microseconds(call, arguments.calls), SHARE[way] * inputs[0].nbytes / copied
            rows.append({"mechanism": name, "pattern": pattern.code, "way": way, "us": us, "floor_us": floor})
            print(f"{name} {pattern.code} {way}: {us:.0f} us, {us / floor:.1f} times the floor of {floor:.0f} us")
    swept = sweep(names, arguments.length, arguments.calls) if arguments.sweep else []
    if arguments.sweep and "performer" in names:
        swept += sweep_performer(arguments.length, arguments.calls)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "rows": rows, "sweep": swept}, file, indent=1)


if __name__ == "__main__":
    main()
