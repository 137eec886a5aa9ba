"""Scores of point cloud completion without learning: CD-l1 x 1,000 on the test views of the PCN data on disk.

    python benchmarks/point_cloud_baselines.py [--data FOLDER]

The input as it is; the input and its mirror image in x = 0; and the input joined with the training model that is
nearest to it, by the mean distance from the view's points to the first 2,048 of a model. Means over models, and over
categories like the score of the task.
"""

import argparse
import tempfile
from pathlib import Path
from typing import cast

import numpy as np
import torch

from longspan.datasets import pcn
from longspan.datasets.base import Splits
from longspan.kernels.point_cloud import nearest
from longspan.metrics.point_cloud import SCALE, category_mean, chamfer_l1

COMPARED = 2_048  # points of a training model that a view is compared with
QUICK = pcn.Data(points=128, train=6, valid=3, test=3, standin=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Baselines of point cloud completion.")
    parser.add_argument("--data", type=Path, help="the root of the data; $LONGSPAN_DATA or out/data if left out")
    parser.add_argument("--quick", action="store_true", help="a few stand-ins, on a CPU")
    asked = parser.parse_args()
    if asked.quick:
        with tempfile.TemporaryDirectory() as scratch:
            return report(pcn.load(QUICK, root=scratch), "cpu")
    return report(pcn.load(root=asked.data), "cuda" if torch.cuda.is_available() else "cpu")


def report(splits: Splits, device: str) -> None:
    train, test = cast(pcn.Clouds, splits.train), cast(pcn.Clouds, splits.test)
    print(f"pcn ({splits.variant}): {len(train)} training models, {len(test)} test models of {test.views} view(s)")
    found = {"input": [], "input and mirror image": [], "input and nearest training model": []}
    for model in range(len(test)):
        truth, view = on(test.complete[model], device), on(test.view(model), device)
        best = min(range(len(train)), key=lambda i: distance(view, on(train.complete[i][:COMPARED], device)))
        joined = {
            "input": view,
            "input and mirror image": torch.cat([view, view * view.new_tensor([-1, 1, 1])], dim=1),
            "input and nearest training model": torch.cat([view, on(train.complete[best], device)], dim=1),
        }
        for name, cloud in joined.items():
            found[name].append(float(chamfer_l1(cloud, truth)) * SCALE)
    print("| baseline | mean over models | mean over categories |\n| --- | --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {np.mean(values):.2f} | {category_mean(np.array(values), test.category):.2f} |")


def on(cloud: np.ndarray, device: str) -> torch.Tensor:
    return torch.tensor(np.asarray(cloud, np.float32), device=device)[None]


def distance(view: torch.Tensor, model: torch.Tensor) -> float:
    """The mean distance from the points of a view to the nearest of a model."""
    return float(nearest(view, model)[0].sqrt().mean())


if __name__ == "__main__":
    main()
