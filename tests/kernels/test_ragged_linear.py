"""Linear attention on ragged rows: the law against a loop, the kernel against the law, linear attention by both."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.attentions import linear as linear_file
from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.packing import Layout
from longspan.kernels.ragged_linear import ragged_linear
from tests.attentions.agreement import headwise
from tests.kernels.agreement import gradients
from tests.kernels.in_a_process import ROUNDS, assert_passes, needs_triton
from tests.kernels.ragged_rows import draw, offsets_of
from tests.kernels.sm90 import compiled, needs_compiler


def loop(q, k, v, lengths, queries, feature, eps):
    """Pair by pair of row and head, with the whole matrix of weights."""
    phi = (lambda x: F.elu(x) + 1) if feature == "elu" else (lambda x: x)
    y = torch.zeros(len(q), *v.shape[1:], dtype=q.dtype)
    keys_at = queries_at = 0
    for m, n in zip(lengths, queries, strict=True):
        for head in range(q.shape[1]):
            mine = slice(queries_at, queries_at + n), head
            theirs = slice(keys_at, keys_at + m), head
            weights = phi(q[mine]) @ phi(k[theirs]).mT
            y[mine] = weights @ v[theirs] / (weights.sum(dim=1, keepdim=True) + eps)
        keys_at, queries_at = keys_at + m, queries_at + n
    return y


@st.composite
def problems(draw):
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    others = st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths)).filter(any)
    sizes = {"heads": draw(st.integers(1, 3)), "r": draw(st.integers(1, 5)), "e": draw(st.integers(1, 5))}
    return lengths, draw(st.none() | others), sizes, draw(st.sampled_from(["none", "elu"]))


@given(problems(), st.sampled_from([1e-6, 0.5]))
@settings(deadline=None, max_examples=60)
def test_the_law_is_a_loop_over_rows_and_heads_in_outputs_and_gradients(problem, eps):
    lengths, queries, sizes, feature = problem
    inputs = draw(lengths, **sizes, queries=queries, dtype=torch.float64, positive=feature == "none")
    others = {}
    if queries is not None:
        others = {"query_cu_seqlens": offsets_of(queries), "max_query_seqlen": max(queries)}
    y = ragged_linear(*inputs, offsets_of(lengths), max(lengths), **others, feature=feature, eps=eps)
    law = loop(*inputs, lengths, queries or lengths, feature, eps)
    torch.testing.assert_close(y, law)
    for found, expected in zip(gradients(y, inputs), gradients(law, inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_rows_never_see_one_another():
    q, k, v = (x.detach() for x in draw([5, 7, 3], 2, 4, 4))
    before = ragged_linear(q, k, v, offsets_of([5, 7, 3]), 7, feature="elu")
    for x in (q, k, v):
        x[5:12] = 1e4
    after = ragged_linear(q, k, v, offsets_of([5, 7, 3]), 7, feature="elu")
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[12:], after[12:])


def test_a_row_without_keys_gives_zero():
    q, k, v = draw([0, 3], 2, 4, 4, queries=[2, 1])
    y = ragged_linear(
        q, k, v, offsets_of([0, 3]), 3, query_cu_seqlens=offsets_of([2, 1]), max_query_seqlen=2, feature="elu"
    )
    assert not y[:2].any()
    assert y[2].any()


def test_half_precision_is_summed_in_single_precision_also_under_autocast():
    q, k, v = (x.detach().bfloat16() for x in draw([300, 70], 2, 16, 16))
    with torch.autocast("cpu", torch.bfloat16):
        y = ragged_linear(q, k, v, offsets_of([300, 70]), 300, feature="elu")
    assert y.dtype == torch.bfloat16
    exact = ragged_linear(q.double(), k.double(), v.double(), offsets_of([300, 70]), 300, feature="elu")
    assert torch.equal(y, exact.bfloat16())


@pytest.mark.parametrize("r, e, dtype, words", [(12, 16, torch.float32, "multiples of 16"), (16, 144, torch.float32,
    "up to 128"), (16, 16, torch.float64, "float32 or all in bfloat16")])  # fmt: skip
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(r, e, dtype, words):
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        ragged_linear(*draw([3], 1, r, e, dtype=dtype), offsets_of([3]), 3, impl="triton")


def test_rows_of_queries_are_described_whole_or_not_at_all():
    q, k, v = draw([3], 1, 4, 4, queries=[2])
    with pytest.raises(UsageError, match="give both or neither"):
        ragged_linear(q, k, v, offsets_of([3]), 3, query_cu_seqlens=offsets_of([2]))


@pytest.mark.parametrize("lengths", [[4, 9, 1], [9, 9]])
def test_linear_attention_on_ragged_rows_is_itself_on_padded_ones(lengths, monkeypatch):
    layer = headwise("linear", Pattern.NONCAUSAL_SELF)
    layout = Layout.of_lengths(lengths)
    q, k, v = draw(lengths, layer.heads, layer.head_dim, layer.head_dim, dtype=torch.float64)
    first = q[layout.cu_seqlens[:-1].long()]
    padded = layer.attend_packed(q, k, v, layout), layer.attend_first_packed(first, k, v, layout)
    calls = []

    def ragged(*args, **rows):
        calls.append(rows)
        return ragged_linear(*args, **rows)

    monkeypatch.setattr(linear_file, "kernel_fits", lambda q, k, v: True)
    monkeypatch.setattr(linear_file, "ragged_linear", ragged)
    torch.testing.assert_close(layer.attend_packed(q, k, v, layout), padded[0])
    torch.testing.assert_close(layer.attend_first_packed(first, k, v, layout), padded[1])
    assert len(calls) == 2


def test_causal_linear_attention_stays_causal_on_ragged_rows(monkeypatch):
    layer = headwise("linear", Pattern.CAUSAL_SELF)
    layout = Layout.of_lengths([4, 9])
    q, k, v = draw([4, 9], layer.heads, layer.head_dim, layer.head_dim, dtype=torch.float64)
    padded = layer.attend_packed(q, k, v, layout)
    monkeypatch.setattr(linear_file, "kernel_fits", lambda q, k, v: True)
    torch.testing.assert_close(layer.attend_packed(q, k, v, layout), padded)


@needs_triton
@pytest.mark.parametrize("choice", ROUNDS, ids=" ".join)
def test_the_kernel_follows_the_law(choice):
    assert_passes("ragged_linear_kernel.py", *choice)


@needs_compiler
@pytest.mark.parametrize("dtype, width, limit_kib", [("bf16", 64, 88), ("bf16", 128, 160), ("fp32", 64, 88)])
@pytest.mark.parametrize("name", ["_sum_keys", "_read", "_back_to_queries", "_back_to_keys"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, dtype, width, limit_kib):
    from longspan.kernels.ragged_linear import triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(1, 1, width, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    constants = kernels.launch(sample, width)
    constants |= {"ELU": True}
    kinds = {"cu_seqlens": "*i32", "sums": "*fp32", "dsums": "*fp32", "heads": "i32", "eps": "fp32"}
    built = compiled(kernel, constants, kinds, otherwise=f"*{dtype}", multiples="")
    assert built.metadata.shared <= limit_kib * 1024
