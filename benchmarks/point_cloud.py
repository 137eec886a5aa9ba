"""Chamfer distance, nearest neighbours and farthest point sampling, next to what one would write or install instead.

    python benchmarks/point_cloud.py [--clouds 48] [--points 16384] [--calls 10] [--json FILE] [--quick]

Operations: CD-l1 of two batches of clouds, forward and with the gradient of the prediction; the 16 nearest neighbours
within 2,048 points; 1,536 and 512 farthest of 2,048 points. Ways: ours, our reference on the same device (plain
PyTorch that finds indices in chunks), `torch.cdist` cloud by cloud, and packages where they can be imported: pykeops on
the GPU, scipy's k-d tree, point-cloud-utils and fpsample on all cores of the CPU, which take a few clouds whose time is
multiplied (fpsample starts at a point of its own). Times are medians, on a GPU between device events, after a warm-up.
Each result is compared with the one in float64 before it is timed: `off` is the relative difference of the distance,
the share of neighbours that differ, or the relative difference of how far a point is from the nearest sample at most.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.core import atomic, environment, meter
from longspan.efficiency.latency import Spread, affordable, time_calls, warm_up
from longspan.kernels.point_cloud import farthest_points, k_nearest, nearest, take
from longspan.metrics.point_cloud import chamfer_l1

NEIGHBOURS = 16
SECONDS = 1.5  # time budget for the readings of one row
CPU_CLOUDS = 4
Way = Callable[..., Any]  # clouds -> a tensor or an array with a row for each


def ours(a: Tensor, b: Tensor) -> Tensor:
    return chamfer_l1(a, b)


def in_chunks(a: Tensor, b: Tensor) -> Tensor:
    there, back = nearest(a, b, impl="reference")[0], nearest(b, a, impl="reference")[0]
    return (there.sqrt().mean(dim=1) + back.sqrt().mean(dim=1)) / 2


def by_cdist(a: Tensor, b: Tensor) -> Tensor:
    distances = (torch.cdist(one, other) for one, other in zip(a, b, strict=True))
    return torch.stack([(d.amin(dim=0).mean() + d.amin(dim=1).mean()) / 2 for d in distances])


def by_keops(a: Tensor, b: Tensor) -> Tensor:
    LazyTensor = import_module("pykeops.torch").LazyTensor

    def squares(x: Tensor, y: Tensor) -> Tensor:
        pairs = ((LazyTensor(x[:, :, None]) - LazyTensor(y[:, None])) ** 2).sum(-1)
        index = pairs.argmin(dim=2).squeeze(-1)
        return (x - y.gather(1, index[:, :, None].expand(-1, -1, 3))).square().sum(dim=-1)

    return (squares(a, b).sqrt().mean(dim=1) + squares(b, a).sqrt().mean(dim=1)) / 2


def by_scipy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    cKDTree = import_module("scipy.spatial").cKDTree

    def mean(x: np.ndarray, y: np.ndarray) -> float:
        return cKDTree(y).query(x, workers=-1)[0].mean()

    return np.array([(mean(x, y) + mean(y, x)) / 2 for x, y in zip(a, b, strict=True)])


def by_point_cloud_utils(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    pcu = import_module("point_cloud_utils")

    def mean(x: np.ndarray, y: np.ndarray) -> float:
        return pcu.k_nearest_neighbors(x, y, 1)[0].mean()

    return np.array([(mean(x, y) + mean(y, x)) / 2 for x, y in zip(a, b, strict=True)])


def neighbours_by_cdist(x: Tensor) -> Tensor:
    return torch.cdist(x, x).topk(NEIGHBOURS, largest=False).indices


def neighbours_by_scipy(x: np.ndarray) -> np.ndarray:
    cKDTree = import_module("scipy.spatial").cKDTree

    return np.stack([cKDTree(one).query(one, NEIGHBOURS, workers=-1)[1] for one in x])


def farthest_by_a_loop(x: Tensor, k: int) -> Tensor:
    """The straightforward version."""
    chosen, distance = [x.new_zeros(len(x), dtype=torch.long)], x.new_full(x.shape[:2], torch.inf)
    rows = torch.arange(len(x), device=x.device)
    for _ in range(k - 1):
        distance = torch.minimum(distance, (x - x[rows, chosen[-1]][:, None]).square().sum(dim=-1))
        chosen.append(distance.argmax(dim=1))
    return torch.stack(chosen, dim=1)


def farthest_by_fpsample(x: np.ndarray, k: int) -> np.ndarray:
    fpsample = import_module("fpsample")

    return np.stack([fpsample.bucket_fps_kdline_sampling(one, k, h=5, start_idx=0) for one in x]).astype(np.int64)


def operations(sampled: Sequence[int]) -> dict[str, dict[str, Way]]:
    """Implementations of each operation, by name; a name in brackets is a package on the CPU."""
    chamfer = {"ours": ours, "reference": in_chunks, "torch.cdist": by_cdist, "pykeops": by_keops}
    return {
        "chamfer forward": chamfer | {"(scipy)": by_scipy, "(point_cloud_utils)": by_point_cloud_utils},
        "chamfer train": chamfer,
        "k nearest": {
            "ours": partial(_within, k_nearest),
            "torch.cdist": neighbours_by_cdist,
            "(scipy)": neighbours_by_scipy,
        },
        **{
            f"farthest {k}": {
                "ours": partial(farthest_points, k=k),
                "loop": partial(farthest_by_a_loop, k=k),
                "(fpsample)": partial(farthest_by_fpsample, k=k),
            }
            for k in sampled
        },
    }


def _within(search: Callable[..., Tensor], x: Tensor) -> Tensor:
    return search(x, x, NEIGHBOURS)


def measure(operation: str, way: str, function: Way, clouds: list[Tensor], calls: int) -> dict[str, Any]:
    """Median and quartiles in milliseconds for all clouds, the peak of memory beyond the inputs, and how far off."""
    device, times = clouds[0].device.type, 1.0
    inputs: list[Any] = clouds
    if on_cpu := way.startswith("("):
        import_module(way.strip("()"))
        inputs = [x[:CPU_CLOUDS].cpu().numpy() for x in clouds]
        device, times = "cpu", len(clouds[0]) / len(inputs[0])
    if operation == "chamfer train":
        leaf = clouds[0].clone().requires_grad_()

        def call() -> Any:
            return torch.autograd.grad(function(leaf, *clouds[1:]).sum(), leaf)
    else:

        def call() -> Any:
            with torch.no_grad():
                return function(*inputs)

    off = difference(operation, function, inputs)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    meter.reset_peak_memory(device)
    cost = warm_up(call, device, calls=2)
    peak = (meter.peak_memory_bytes(device) or 0) - held if device == "cuda" else None
    spread = Spread.of(time_calls(call, device, count=affordable(cost, calls, seconds=SECONDS)))
    found = {name: getattr(spread, name) * 1e3 * times for name in ("low", "median", "high")}
    found |= {"readings": spread.count, "peak_mib": None if peak is None else peak / 2**20, "off": off}
    return found | ({"clouds_timed": len(inputs[0])} if on_cpu else {})


def difference(operation: str, function: Way, inputs: list[Any]) -> float:
    """The error against the float64 result for the first cloud."""
    first = [x[:1] for x in inputs]
    exact = [torch.as_tensor(x).double() for x in first]
    with torch.no_grad():
        found = torch.as_tensor(function(*first)).to(exact[0].device)
        if operation.startswith("chamfer"):
            expected = in_chunks(*exact)
            return ((found - expected).abs() / expected).max().item()
        if operation == "k nearest":
            return (found != _within(k_nearest, exact[0])).float().mean().item()
        expected = farthest_points(exact[0], found.shape[1])
        radius, least = (nearest(exact[0], take(exact[0], index))[0].amax() for index in (found, expected))
    return abs((radius / least).sqrt().item() - 1)


def draw(clouds: int, points: int, device: str) -> list[Tensor]:
    """Points on spheres, like points of a surface; predicted points lie slightly off the true ones."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(clouds, points, 3, generator=generator) for _ in range(2))
    a, b = (0.5 * x / x.norm(dim=-1, keepdim=True) for x in (a, b))
    return [(a + 0.01 * torch.randn(a.shape, generator=generator)).to(device), b.to(device)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clouds", type=int, default=48)
    parser.add_argument("--points", type=int, default=16_384)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two clouds of 200 points on a CPU")
    arguments = parser.parse_args()
    device, scan, sampled = "cuda", 2_048, (1_536, 512)
    if arguments.quick:
        device, scan, sampled = "cpu", 100, (50,)
        arguments.clouds, arguments.points, arguments.calls = 2, 200, 2
    elif not torch.cuda.is_available():
        sys.exit("This benchmark times a GPU and torch finds none; run it where there is one.")
    large = draw(arguments.clouds, arguments.points, device)
    small = [draw(arguments.clouds, scan, device)[0]]
    rows: list[dict[str, Any]] = []
    for operation, ways in operations(sampled).items():
        clouds = large if operation.startswith("chamfer") else small
        for way, function in ways.items():
            row = {"operation": operation, "way": way, "clouds": len(clouds[0]), "points": clouds[0].shape[1]}
            try:
                row |= measure(operation, way, function, clouds, arguments.calls)
            except (ImportError, torch.OutOfMemoryError, RuntimeError, OSError, ValueError) as error:
                lines = str(error).splitlines() or [""]  # the others are still timed
                row["note"] = f"{type(error).__name__}: {lines[0][:200]}"
            rows.append(row)
            print(_shown(row, rows), flush=True)
            if arguments.json:
                setup = {"clouds": arguments.clouds, "points": arguments.points, "calls": arguments.calls}
                atomic.write_json(arguments.json, {"environment": environment.describe(), "setup": setup, "rows": rows})


def _shown(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    name = f"{row['operation']:16s} {row['way']:20s}"
    if "note" in row:
        return f"{name} {row['note']}"
    mine = next(r for r in rows if r["operation"] == row["operation"])
    share = f", {row['median'] / mine['median']:.1f} x ours" if "median" in mine and mine is not row else ""
    memory = "" if row["peak_mib"] is None else f", {row['peak_mib']:,.0f} MiB"
    return (
        f"{name} {row['median']:10.3f} ms ({row['low']:.3f} to {row['high']:.3f}){memory}, off {row['off']:.1e}{share}"
    )


if __name__ == "__main__":
    main()
