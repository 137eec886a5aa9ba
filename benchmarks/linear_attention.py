"""Kernel attention on a GPU: linear, cosformer and performer by the Triton kernels, checked and then timed.

    python benchmarks/linear_attention.py [--only linear] [--length 16384] [--calls 10] [--json FILE] [--sweep]
    python benchmarks/linear_attention.py --quick            # tiny sizes by the reference, on a CPU, in seconds

Padded: 4 rows, 8 heads of 64 channels, bfloat16, queries, keys and values alone, in self attention, causal and not.
Ragged, for linear: 32 rows of 88 to 2000 tokens, and 32 rows of 4000, next to the padded path that they replace and
torch's fused softmax attention on the same rows. Outputs and gradients are compared with the same mechanism in float64
before anything is timed; if the stated tolerance is exceeded, the program exits with 1.

Times are medians over blocks of calls between device events; the device is kept busy while a block is queued, so that
they measure device work only. The floor is what must cross the memory bus: forward four times the size of q
(q, k, v, y), forward and backward eleven times. `--sweep` tries other tiles, warps and stages of the padded kernels.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions.base import HeadwiseAttention, Pattern
from longspan.kernels.favor import shape as favor_shape
from longspan.kernels.linear_attention import shape
from longspan.kernels.packing import Layout

HEADS, WIDTH = 8, 64
NAMES, PATTERNS = ("linear", "cosformer", "performer"), (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF)
RAGGED = {"1044 of 2000": [88 + (2000 - 88) * row // 31 for row in range(32)], "4000 of 4000": [4000] * 32}
TOLERANCE = 0.02  # relative to the largest entry: bfloat16 rounds features, weights, gradients and results
TRIED = [(64, 4, 2), (64, 4, 3), (64, 8, 2), (32, 4, 2), (32, 4, 3), (32, 8, 2), (32, 8, 3)]
SHARE = {"forward": 4, "train": 11}  # memory that must move, in units of the size of q
BUSY = 20_000_000  # cycles, about 10 ms: longer than queueing a block takes

Call = Callable[..., Tensor]


def layer_of(name: str, pattern: Pattern, length: int, device: str) -> HeadwiseAttention:
    torch.manual_seed(0)
    layer = attentions.get(name)(HEADS * WIDTH, HEADS, pattern, max_length=length).to(device).eval()
    assert isinstance(layer, HeadwiseAttention)
    return layer


def draw(*shape: int, device: str) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]


def errors(attend: Call, exact_attend: Call, inputs: list[Tensor]) -> dict[str, float]:
    """The largest error against float64 in the output and each gradient, relative to the largest entry."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    y, expected = attend(*inputs), exact_attend(*exact)
    dy = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, inputs, dy)]
    known = [expected, *torch.autograd.grad(expected, exact, dy.double())]
    shares = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, known, strict=True)]
    return dict(zip(("y", "dq", "dk", "dv"), shares, strict=True))


def microseconds(call: Callable[[], object], calls: int, blocks: int = 5) -> float:
    on_gpu = torch.cuda.is_available()
    for _ in range(3 if on_gpu else 1):
        call()
    found = []
    for _ in range(blocks):
        if not on_gpu:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            found.append((time.perf_counter() - began) / calls * 1e6)
            continue
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(found)


def passes(attend: Call, inputs: list[Tensor]) -> dict[str, Callable[[], object]]:
    dy = torch.randn_like(inputs[2])

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*inputs)

    return {"forward": forward, "train": lambda: torch.autograd.grad(attend(*inputs), inputs, dy)}


def bandwidth(calls: int, numbers: int, device: str) -> float:
    """Bytes per microsecond of a plain copy, the most that any of this can reach."""
    source = torch.empty(numbers, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: target.copy_(source), calls)


def ragged_forms(layer: HeadwiseAttention, layout: Layout, device: str) -> dict[str, Call]:
    """The kernel for ragged rows, what it replaces, and exact attention."""
    forms: dict[str, Call] = {
        "ragged": lambda q, k, v: layer.attend_packed(q, k, v, layout),
        "padded": lambda q, k, v: HeadwiseAttention.attend_packed(layer, q, k, v, layout),
    }
    if device == "cuda":
        softmax = layer_of("softmax", Pattern.NONCAUSAL_SELF, layout.max_seqlen, device)
        forms["softmax"] = lambda q, k, v: softmax.attend_packed(q, k, v, layout)
    return forms


def sweep(names: list[str], length: int, calls: int) -> list[dict]:
    """Other tile shapes, each pass separately; those that do not fit the device are skipped."""
    rows, inputs = [], draw(4, HEADS, length, WIDTH, device="cuda")
    for name, pattern in itertools.product(names, PATTERNS):
        layer = layer_of(name, pattern, length, "cuda")
        size, causal = (2, name == "cosformer"), pattern.causal
        tables = {"forward": shape.FORWARD, "train": shape.CAUSAL_BACKWARD if causal else shape.BACKWARD}
        tried = TRIED
        if name == "performer":  # tokens per tile, features per block and warps
            size, tables = (2, False), dict.fromkeys(SHARE, favor_shape.CAUSAL_TILES if causal else favor_shape.TILES)
            tried = [(tile, block, warps) for tile in (64, 128) for block in (32, 64) for warps in (4, 8)]
        for way, table in tables.items():
            usual = table[size]
            for tile in tried:
                table[size] = tile
                about = f"{name} {pattern.code} {way}, {tile}"
                try:
                    us = microseconds(passes(layer.attend, inputs)[way], calls, blocks=3)
                except Exception as error:  # Triton has several exceptions for a program that is too large
                    print(f"{about}: {type(error).__name__}", flush=True)
                    continue
                rows.append({"mechanism": name, "pattern": pattern.code, "way": way, "us": us, "tile": tile})
                print(f"{about}: {us:.0f} us", flush=True)
            table[size] = usual
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.quick:
        sys.exit("This benchmark times a GPU and torch finds none; run it where there is one, or take --quick.")
    names, length, calls = arguments.only or list(NAMES), arguments.length, arguments.calls
    batch, ragged = (4, HEADS, length, WIDTH), RAGGED
    if arguments.quick:
        length, calls, ragged = 96, 1, {"3 rows": [9, 40, 23]}
        batch = (1, HEADS, length, WIDTH)
    cases: list[tuple[str, Call, list[Tensor]]] = []
    for name, pattern in itertools.product(names, PATTERNS):
        layer, exact = (layer_of(name, pattern, length, device) for _ in range(2))
        short = draw(1, HEADS, min(2048, length), WIDTH, device=device)
        assert_right(f"{name} {pattern.code}", errors(layer.attend, exact.double().attend, short))
        cases.append((f"{name} {pattern.code}", layer.attend, draw(*batch, device=device)))
        for rows, lengths in ragged.items() if name == "linear" else ():
            layout, inputs = Layout.of_lengths(lengths, device=device), draw(sum(lengths), HEADS, WIDTH, device=device)
            forms = ragged_forms(layer, layout, device)
            assert_right(f"{name} {pattern.code}, {rows}", errors(forms["ragged"], forms["padded"], inputs))
            taken = forms.items() if pattern is Pattern.NONCAUSAL_SELF else [("ragged", forms["ragged"])]
            cases += [(f"{name} {pattern.code}, {rows}, {form}", attend, inputs) for form, attend in taken]
    copied = bandwidth(calls, 2**20 if arguments.quick else 2**29, device)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{machine}, torch {torch.__version__}, a copy moves {copied / 1e6:.2f} TB/s")
    measured = []
    for case, attend, inputs in cases:
        for way, call in passes(attend, inputs).items():
            us, floor = microseconds(call, calls), SHARE[way] * inputs[0].nbytes / copied
            measured.append({"case": case, "way": way, "us": us, "floor_us": floor})
            print(f"{case} {way}: {us:.0f} us, {us / floor:.1f} times the floor of {floor:.0f} us", flush=True)
    swept = sweep(names, length, calls) if arguments.sweep and device == "cuda" else []
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": machine, "rows": measured, "sweep": swept}, file, indent=1)


def assert_right(case: str, shares: dict[str, float]) -> None:
    print(f"{case}: off by " + ", ".join(f"{share:.4f} in {name}" for name, share in shares.items()), flush=True)
    if max(shares.values()) > TOLERANCE:
        sys.exit(f"The kernel is wrong: more than {TOLERANCE} of the largest number; nothing was timed.")


if __name__ == "__main__":
    main()
