"""Small settings and the reference samples for the dataset tests."""

from pathlib import Path

import pytest

from longspan.datasets import listops, pathfinder

REFERENCE = Path(__file__).parents[2] / "../shared/data"


@pytest.fixture
def small_listops() -> listops.Data:
    return listops.Data(train=2_100, valid=300, test=300, longer_than=50, shorter_than=128, max_depth=5, max_args=8)


@pytest.fixture
def small_pathfinder() -> pathfinder.Data:
    return pathfinder.Data(size=32, difficulty="easy", train=1_100, valid=50, test=50)


@pytest.fixture
def reference():
    """A function from a file name to its path among the reference samples; skips if they are missing."""

    def find(name: str) -> Path:
        path = REFERENCE / name
        if not path.exists():
            pytest.skip(f"the reference sample {name} is not on this machine")
        return path

    return find
