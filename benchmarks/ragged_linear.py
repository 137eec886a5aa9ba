"""Linear attention on ragged rows on a GPU: the Triton kernel beside what it replaces, first for its answers.

    python benchmarks/ragged_linear.py [--calls 20] [--json FILE] [--sweep]

32 rows, 8 heads of 64 channels, bfloat16: rows of 88 to 2000 tokens, 1044 on average, and rows of 4000. Side by side
the padded path of `linear` (unpack, attend in float32, pack), the same compiled for any length, the kernel, and for
scale torch's fused softmax attention on the same ragged rows. Outputs and gradients of the kernel are compared with the
reference in float64 before anything is timed; beyond the stated tolerance the program ends with 1. Times are medians
over blocks of calls between device events; the device is kept busy while a block is queued, so that they hold the
work of the device alone. The time that the host needs to queue a call stands beside them.

The floor, in bytes that must cross the memory bus: forward reads q, k, v and writes y, four times tokens * 8 * 64 * 2;
backward reads dy, q, k, v and writes three gradients, seven times. So for 33 393 tokens 137 MB and 376 MB in all, 28
and 78 microseconds at 4.8 TB/s; for 128 000 tokens 524 MB and 1.44 GB, 109 and 300 microseconds. The sums of a row are
small beside that. `--sweep` tries other numbers of programs and of tiles each takes, forward and backward.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from longspan.kernels.ragged_linear import ragged_linear
from torch import Tensor

from longspan.attentions.base import HeadwiseAttention, Pattern
from longspan.attentions.linear import LinearAttention
from longspan.attentions.softmax import Softmax
from longspan.kernels.packing import Layout

ROWS, HEADS, WIDTH = 32, 8, 64
CASES = {
    "1044 of 2000": [88 + (2000 - 88) * row // (ROWS - 1) for row in range(ROWS)],
    "4000 of 4000": [4000] * ROWS,
}
TOLERANCE = 0.02  # of the largest number: bfloat16 rounds features, gradients and results by up to 0.004 of themselves
BUSY = 20_000_000  # cycles, about 10 ms: longer than queueing a block takes

Triple = tuple[Tensor, Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


def ways() -> dict[str, Attend]:
    linear = LinearAttention(HEADS * WIDTH, HEADS, Pattern.NONCAUSAL_SELF)
    softmax = Softmax(HEADS * WIDTH, HEADS, Pattern.NONCAUSAL_SELF)

    def padded(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return HeadwiseAttention.attend_packed(linear, q, k, v, layout)

    return {
        "padded": padded,
        "padded, compiled": torch.compile(padded, dynamic=True),
        "triton": kernel,
        "softmax, ragged": softmax.attend_packed,
    }


def kernel(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    return ragged_linear(q, k, v, layout.cu_seqlens, layout.max_seqlen, feature="elu", impl="triton")


def draw(lengths: list[int], device: str) -> tuple[Triple, Tensor, Layout]:
    """q, k, v; the gradient of y; and where the rows lie."""
    generator = torch.Generator(device).manual_seed(0)
    shape = sum(lengths), HEADS, WIDTH
    q, k, v, dy = (torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(4))
    return (q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), dy, Layout.of_lengths(lengths, device=device)


def errors(inputs: Triple, dy: Tensor, layout: Layout) -> dict[str, float]:
    """The largest difference from float64 in the output and each gradient, as a share of the largest number."""
    q, k, v = exact = [x.detach().double().requires_grad_() for x in inputs]
    y = kernel(*inputs, layout)
    law = ragged_linear(q, k, v, layout.cu_seqlens, layout.max_seqlen, feature="elu", impl="reference")
    found = [y, *torch.autograd.grad(y, inputs, dy)]
    expected = [law, *torch.autograd.grad(law, exact, dy.double())]
    shares = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, expected, strict=True)]
    return dict(zip(("y", "dq", "dk", "dv"), shares, strict=True))


def measure(call: Callable[[], object], calls: int, blocks: int = 7) -> tuple[float, float]:
    """Microseconds of the device and of the host for one call: medians over blocks."""
    for _ in range(3):
        call()
    device, host = [], []
    for _ in range(blocks):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY)
        start.record()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        host.append((time.perf_counter() - began) / calls * 1e6)
        end.record()
        torch.cuda.synchronize()
        device.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(device), statistics.median(host)


def both_ways(attend: Attend, inputs: Triple, dy: Tensor, layout: Layout) -> dict[str, Callable[[], object]]:
    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*inputs, layout)

    def forward_and_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(*inputs, layout), inputs, dy)

    return {"forward": forward, "forward and backward": forward_and_backward}


def bandwidth(calls: int) -> float:
    """Bytes per microsecond of a plain copy, the most that any of this can reach."""
    source = torch.empty(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / measure(lambda: target.copy_(source), calls)[0]


def sweep(calls: int) -> list[dict]:
    from longspan.kernels.ragged_linear import triton as kernels

    found = []
    for case, lengths in CASES.items():
        inputs, dy, layout = draw(lengths, "cuda")
        for programs in (256, 512, 1024, 2048):
            for tiles in (2, 4, 8):
                kernels.PROGRAMS, kernels.TILES_EACH = programs, tiles
                times = {name: measure(call, calls)[0] for name, call in both_ways(kernel, inputs, dy, layout).items()}
                found.append({"case": case, "programs": programs, "tiles": tiles} | times)
                shown = ", ".join(f"{name} {us:.0f} us" for name, us in times.items())
                print(f"{case}, {programs} programs, {tiles} tiles each: {shown}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json")
    parser.add_argument("--sweep", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark times a GPU and torch finds none; run it where there is one.")
    for case, lengths in CASES.items():
        shares = errors(*draw(lengths, "cuda"))
        print(f"{case}: off by " + ", ".join(f"{share:.4f} in {name}" for name, share in shares.items()), flush=True)
        if max(shares.values()) > TOLERANCE:
            sys.exit(f"The kernel is wrong: more than {TOLERANCE} of the largest number; nothing was timed.")
    torch.cuda.empty_cache()
    copied = bandwidth(arguments.calls)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, a copy moves {copied / 1e6:.2f} TB/s")
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_tb_per_s": copied / 1e6}
    rows = []
    attends = ways()
    for case, lengths in CASES.items():
        inputs, dy, layout = draw(lengths, "cuda")
        for name, attend in attends.items():
            for way, call in both_ways(attend, inputs, dy, layout).items():
                device, host = measure(call, arguments.calls)
                floor = (4 if way == "forward" else 11) * dy.nbytes / copied
                rows.append({"case": case, "way": way, "row": name, "device_us": device, "host_us": host})
                rows[-1]["floor_us"] = floor
                print(
                    f"{case:14s} {way:21s} {name:18s} {device:8.0f} us, {device / floor:5.1f} times the floor of "
                    f"{floor:.0f} us; host {host:.0f} us",
                    flush=True,
                )
    swept = sweep(arguments.calls) if arguments.sweep else []
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(about | {"rows": rows, "sweep": swept}, file, indent=1)


if __name__ == "__main__":
    main()
