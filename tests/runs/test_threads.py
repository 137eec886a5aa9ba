"""A smoke run on a CPU computes with one thread, whatever the machine has, unless the user says otherwise."""

import pytest
import torch

from longspan.core.cell import Cell
from longspan.runs.train import run

STEP = {"recipe.steps": 1, "recipe.evaluate_every": 1, "data.train": 32, "data.valid": 8, "data.test": 8}


@pytest.mark.parametrize("asked, found", [(None, 1), ("2", 2)])
def test_threads_of_a_smoke_run(asked, found, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cell = Cell("listops", "softmax", overrides=STEP)
        card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", progress=False, weights=False)
        assert card["environment"]["threads"] == found
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
