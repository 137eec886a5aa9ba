"""Segment means against loops, layer-normed means, and what the compiler says.

`test_landmark.py` runs the kernel of layer-normed means, `test_row_kernels.py` the running mean.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.flops import formulas
from longspan.kernels.pooling import borders, normed_means, operator, segment_means
from tests.kernels.sm90 import compiled, needs_compiler


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def runs_of(length, segments, longer):
    """The positions of each segment."""
    if longer == "last" and length >= segments:
        sizes = [length // segments + (r >= segments - length % segments) for r in range(segments)]
        return [list(range(sum(sizes[:r]), sum(sizes[: r + 1]))) for r in range(segments)]
    runs = [[] for _ in range(segments)]
    for place in range(length):
        runs[place * segments // max(length, segments)].append(place)
    return runs


def means_one_by_one(x, segments, mask, longer):
    means = x.new_zeros(x.shape[0], x.shape[1], segments, x.shape[3])
    occupied = torch.zeros(x.shape[0], segments, dtype=torch.bool)
    for b in range(x.shape[0]):
        tokens = x[b] if mask is None else x[b, :, mask[b]]
        for r, run in enumerate(runs_of(tokens.shape[1], segments, longer)):
            if run:
                means[b, :, r] = tokens[:, run].mean(dim=1)
                occupied[b, r] = True
    return means, occupied


@pytest.mark.parametrize("n, r", [(1, 4), (3, 4), (4, 4), (12, 4), (13, 4), (63, 8), (1000, 64)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("longer", ["spread", "last"])
def test_segment_means_are_means_of_runs(n, r, masked, longer):
    x = double(3, 2, n, 5)
    mask = torch.rand(3, n) < torch.tensor([[1.0], [0.6], [0.0]]) if masked else None
    if mask is not None:
        x = x.masked_fill(~mask[:, None, :, None], torch.nan)  # padding may hold anything
    found, expected = segment_means(x, r, mask, longer=longer), means_one_by_one(x, r, mask, longer)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@given(st.integers(1, 30), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=60)
def test_borders_enclose_the_tokens_of_each_segment(n, segments, share):
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < share
    x = double(2, 1, n, 2)
    begins, occupied = borders(mask, segments)
    means, expected = means_one_by_one(x, segments, mask, "last")
    assert torch.equal(occupied, expected)
    assert begins[:, 0].eq(0).all()
    assert begins[:, -1].eq(n).all()
    for row in range(2):
        for r in range(segments):
            run = slice(begins[row, r], begins[row, r + 1])
            tokens = x[row, :, run][:, mask[row, run]]
            found = tokens.mean(dim=1) if tokens.numel() else torch.zeros(1, 2, dtype=x.dtype)
            torch.testing.assert_close(found, means[row, :, r])


def test_normed_means_are_means_of_a_layer_norm():
    x, weight, bias = double(2, 2, 12, 5), double(5, 5), double(5)
    means, _ = normed_means(x, weight, bias, 4, eps=1e-3)
    normed = F.layer_norm(x @ weight.mT + bias, (5,), eps=1e-3)
    torch.testing.assert_close(means, normed.unflatten(2, (4, 3)).mean(dim=3))


def test_operations_count_a_projection_and_three_backward():
    x, few = (2, 3, 100, 8), (2, 3, 5, 8)
    assert formulas()[torch.ops.longspan.normed_means](x, (8, 8)) == 2 * 2 * 3 * 100 * 8 * 8
    assert formulas()[torch.ops.longspan.normed_means_backward](few, x, (8, 8)) == 3 * 2 * 2 * 3 * 100 * 8 * 8


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("segments", [1, 64, 128])
@pytest.mark.parametrize("name", ["normed_means", "normed_means_backward"])
def test_they_compile_for_a_large_gpu_within_the_memory_on_its_chip(name, segments):
    from longspan.kernels.pooling import triton as kernels

    x = torch.empty(1, 1, 8192, 64, dtype=torch.bfloat16, device="meta")
    constants = operator._normed_launch(x, segments)[1] | {"MASKED": True}
    kinds = {"x": "*bf16", "dx": "*bf16", "mask": "*u8", "begins": "*i32", "eps": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "share", "segments", "stride"), "i32")
    built = compiled(getattr(kernels, name), constants, kinds, otherwise="*fp32")
    assert built.metadata.shared <= 112 * 1024
