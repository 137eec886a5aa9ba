"""One integer seeds every named stream: the same name gives the same numbers, another name gives others."""

import random
import traceback

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.seeding import derive, seed_everything, seed_torch


@given(st.integers(), st.lists(st.text(max_size=5) | st.integers(), max_size=3))
def test_a_derived_seed_fits_every_generator(seed, names):
    assert 0 <= derive(seed, *names) < 2**63
    assert derive(seed, *names) == derive(seed, *names)


def test_streams_of_other_names_and_seeds_are_others():
    seeds = {derive(seed, name, i) for seed in range(5) for name in ("data", "model") for i in range(5)}
    assert len(seeds) == 50


def test_derived_seeds_never_change():
    """Cards record seeds; a release that derived different ones would make the cards wrong."""
    assert derive(0, "shuffle", 3) == 2386335075006008887


def draw():
    return random.random(), float(np.random.rand()), torch.rand(3).tolist()


def test_everything_is_seeded():
    seed_everything(7)
    first = draw()
    seed_everything(7)
    assert draw() == first
    seed_everything(8)
    assert not set(map(str, draw())) & set(map(str, first))


def test_a_step_is_seeded_as_torch_would_without_a_copy_of_the_call_stack(monkeypatch):
    torch.manual_seed(7)
    expected = torch.rand(3)
    monkeypatch.setattr(traceback, "format_stack", lambda *how: pytest.fail("a copy of the call stack"))
    seed_torch(7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("device, seeded", [("cpu", []), ("cuda", [7]), (torch.device("cuda", 0), [7])])
def test_a_gpu_is_seeded_where_it_computes(monkeypatch, device, seeded):
    asked = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    seed_torch(7, device)
    assert asked == seeded
