"""Block-sparse attention on a GPU: the Triton kernel compared with gathered blocks and with dense attention.

    python benchmarks/block_sparse.py [--lengths 4096 8192 16384 32768] [--json FILE] [--quick]

Four rows, 8 heads of 64 channels, bfloat16, the cores of bigbird, longformer, sparse_transformer and two windows, whole
mechanisms as `attend` runs them: once with the fused path, once without it (blocks are gathered, windows unfolded), and
torch's fused attention over all pairs for scale. Every output is compared with the gathered one in float32 before it is
timed. Times are medians between device events, forward and with backward, called one by one (`eager`) and replayed as a
graph; the first call, with its compilation, is reported separately. A ratio above 1 in the last column means that the
fused path is faster.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.latency import Spread, time_calls, warm_up
from longspan.efficiency.variants import captured
from longspan.kernels import block_sparse, sdpa

ROWS, HEADS, WIDTH = 4, 8, 64
DEVICE, DTYPE = "cuda", torch.bfloat16
SPECS = ("bigbird", "longformer", "sparse_transformer", "local(window=256)", "local")
TOLERANCE = 0.03  # relative to the largest entry, in bfloat16


def ways(spec: str, pattern: Pattern, length: int) -> dict[str, Callable[..., Tensor]]:
    """The core by each path."""
    layer: Any = attentions.get(spec)(HEADS * WIDTH, HEADS, pattern, max_length=length).to(DEVICE).eval()

    def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with (
            mock.patch.object(block_sparse, "is_faster", return_value=False),
            mock.patch.object(sdpa, "flash_fits", return_value=False),
        ):
            return layer.attend(q, k, v)

    return {"gather": gathered, "fused": layer.attend}


def all_pairs(pattern: Pattern) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=pattern.causal)


def draw(length: int) -> list[Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    shape = ROWS, HEADS, length, WIDTH
    return [torch.randn(shape, generator=generator, device=DEVICE, dtype=DTYPE) for _ in range(4)]


def calls(attend: Callable[..., Tensor], length: int) -> dict[str, Callable[[], Any]]:
    q, k, v, dy = draw(length)
    leaves = [u.clone().requires_grad_() for u in (q, k, v)]

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(q, k, v)

    return {"forward": forward, "train": lambda: torch.autograd.grad(attend(*leaves), leaves, dy)}


def microseconds(call: Callable[[], Any], count: int) -> float:
    warm_up(call, DEVICE, calls=3)
    return Spread.of(time_calls(call, DEVICE, count=count)).median * 1e6


def measure(attend: Callable[..., Tensor], length: int, count: int) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for mode, call in calls(attend, length).items():
        try:
            began = time.perf_counter()
            call()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            found[f"{mode} first"] = (time.perf_counter() - began) * 1e6
            found[mode] = microseconds(call, count)
            if DEVICE == "cuda":
                found[f"{mode} graph"] = microseconds(captured([call]).run, count)
        except (RuntimeError, torch.OutOfMemoryError) as error:  # the other paths are still timed
            found[f"{mode} failed"] = str(error).splitlines()[0][:200]
            torch.cuda.empty_cache()
    return found


def off(spec: str, pattern: Pattern, length: int) -> float:
    """The largest error of the fused path against the gathered one in float32, relative to the largest entry."""
    paths = ways(spec, pattern, length)
    q, k, v, _ = draw(length)
    with torch.no_grad():
        found = paths["fused"](q, k, v).float()
        expected = torch.cat([_alone(paths["gather"], q, k, v, row) for row in range(ROWS)])
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _alone(gathered: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, row: int) -> Tensor:
    return gathered(*(u[row : row + 1].float() for u in (q, k, v)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="512 tokens of one head on a CPU, gathered both ways")
    arguments = parser.parse_args()
    if arguments.quick:
        global ROWS, HEADS, WIDTH, DEVICE, DTYPE
        ROWS, HEADS, WIDTH, DEVICE, DTYPE = 1, 1, 8, "cpu", torch.float32
        arguments.lengths, arguments.calls = [512], 2
    elif not torch.cuda.is_available():
        sys.exit("This benchmark times a GPU and torch finds none; run it where there is one.")
    rows: list[dict[str, Any]] = []
    for pattern in (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF):
        for length in arguments.lengths:
            dense = measure(all_pairs(pattern), length, arguments.calls)
            rows.append({"spec": "all pairs", "pattern": pattern.code, "length": length, "way": "torch"} | dense)
            for spec in SPECS:
                share = off(spec, pattern, length)
                if share > TOLERANCE:
                    sys.exit(f"{spec} as {pattern} at {length} is off by {share:.3f}; nothing more was timed.")
                times = {
                    way: measure(core, length, arguments.calls) for way, core in ways(spec, pattern, length).items()
                }
                for way, found in times.items():
                    rows.append({"spec": spec, "pattern": pattern.code, "length": length, "way": way} | found)
                print(f"{pattern.code} {length:6d} {spec:20s} " + _shown(times, dense), flush=True)
                torch.cuda.empty_cache()
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file)


def _shown(times: dict[str, dict[str, Any]], dense: dict[str, Any]) -> str:
    parts = []
    for mode in ("forward", "forward graph", "train", "train graph") if DEVICE == "cuda" else ("forward", "train"):
        gather, fused, full = (found.get(mode) for found in (times["gather"], times["fused"], dense))
        numbers = " / ".join("failed" if number is None else f"{number:.0f}" for number in (gather, fused, full))
        share = f"{gather / fused:.2f}" if gather and fused else "-"
        parts.append(f"{mode}: {numbers} us ({share})")
    return "gather / fused / all pairs, " + "; ".join(parts)


if __name__ == "__main__":
    main()
