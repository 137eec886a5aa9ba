"""Attention with labels: the reference against a loop, copies of keys against the reference, compiled for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import plan
from longspan.kernels.block_sparse.labels import label_of, labelled_global_queries, labelled_window
from longspan.kernels.dispatch import HAS_TRITON
from tests.attentions.allowed import assert_same, holes, tensors
from tests.kernels.sm90 import compiled, needs_compiler


@st.composite
def problems(draw):
    n, step, wanted = draw(st.integers(1, 24)), draw(st.integers(1, 6)), draw(st.integers(0, 4))
    end = min(n, step * wanted)
    return n, {"global_tokens": slice(0, end, step), "causal": draw(st.booleans())}


sides, distances, seeds = st.integers(0, 9), st.integers(1, 6), st.integers(0, 99)


def terms_of(rows, distance, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, rows, 2 * distance + 2, dtype=torch.float64, generator=generator).requires_grad_()


def label(i, j, distance, differ):
    return 2 * distance + 1 if differ else min(j - i, distance) if j >= i else distance + min(i - j, distance)


def of_one_row(q, k, v, terms, labels, seen):
    """The attention of one query, key by key."""
    if not seen:
        return torch.zeros_like(v[0])
    scores = torch.stack([q @ k[j] / len(q) ** 0.5 + terms[labels(j)] for j in seen])
    return scores.softmax(dim=0) @ v[seen]


@given(problems(), sides, sides, distances, seeds)
@settings(deadline=None, max_examples=15)
def test_a_window_is_a_loop_over_queries(problem, left, right, distance, seed):
    n, rules = problem
    (q, k, v), terms, mask = tensors(2, 2, n, 4, seed), terms_of(n, distance, seed), holes(2, n, seed)
    everywhere = set(range(n)[rules["global_tokens"]])
    y = labelled_window(q, k, v, terms, left=left, right=right, key_mask=mask, **rules, impl="reference")
    for i in range(n):
        seen = [j for j in range(n) if j in everywhere or i - left <= j <= i + right]
        seen = [j for j in seen if (j <= i or not rules["causal"]) and (mask is None or mask[1, j])]
        of = lambda j, i=i: label(i, j, distance, j in everywhere)  # noqa: E731
        torch.testing.assert_close(y[1, 0, i], of_one_row(q[1, 0, i], k[1, 0], v[1, 0], terms[1, 0, i], of, seen))


@given(problems(), sides, sides, distances, seeds)
@settings(deadline=None, max_examples=40)
def test_copies_of_keys_agree_with_the_reference_in_outputs_and_gradients(problem, left, right, distance, seed):
    n, rules = problem
    leaves, mask = [*tensors(2, 2, n, 4, seed), terms_of(n, distance, seed)], holes(2, n, seed)
    found, expected = (
        labelled_window(*leaves, left=left, right=right, key_mask=mask, **rules, impl=impl)
        for impl in ("gather", "reference")
    )
    assert_same(found, expected, leaves)


@given(problems(), distances, seeds)
@settings(deadline=None, max_examples=15)
def test_global_queries_are_a_loop_over_all_keys(problem, distance, seed):
    n, rules = problem
    places = list(range(n)[rules["global_tokens"]])
    if not places:
        return  # does not occur
    (q, k, v), terms, mask = tensors(2, 2, n, 4, seed), terms_of(len(places), distance, seed), holes(2, n, seed)
    y = labelled_global_queries(q[:, :, rules["global_tokens"]], k, v, terms, key_mask=mask, **rules)
    for r, i in enumerate(places):
        seen = [j for j in range(n) if (j <= i or not rules["causal"]) and (mask is None or mask[1, j])]
        of = lambda j, r=r: label(r, places.index(j) if j in places else 0, distance, j not in places)  # noqa: E731
        # adding a constant to all scores changes nothing: only differences to the label of most pairs matter
        torch.testing.assert_close(y[1, 0, r], of_one_row(q[1, 0, i], k[1, 0], v[1, 0], terms[1, 0, r], of, seen))


def test_labels_are_numbered_ahead_and_then_behind():
    assert label_of(torch.arange(-4, 5), 2).tolist() == [4, 4, 4, 3, 0, 1, 2, 2, 2]


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, dropout, words", [(torch.float64, 0.0, "half"), (torch.float32, 0.1, "no dropout")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, dropout, words):
    x = torch.zeros(1, 1, 8, 16, dtype=dtype)
    rules = {"left": 1, "right": 1, "global_tokens": slice(0, 0, 1), "dropout": dropout}
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        labelled_window(x, x, x, None, **rules, impl="triton")
    if dropout:
        with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
            labelled_global_queries(x, x, x, None, global_tokens=slice(0, 8, 1), dropout=dropout, impl="triton")


@needs_compiler
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["_forward", "_backward_queries", "_backward_keys", "_backward_keys of global ones"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, causal):
    from longspan.kernels.block_sparse import triton as kernels

    name, of_global = name.split()[0], " " in name
    kernel, numbers = getattr(kernels, name), torch.zeros(1, 1, 64, 1, dtype=torch.int32)
    sample, some = torch.empty(1, 1, 1, 64, dtype=torch.bfloat16), plan.Plan(positions=numbers, global_keys=numbers)
    direction = "forward" if name == "_forward" else "backward"
    constants = kernels.launch(sample, sample, some, plan.Rules(1, 84, 84, 1, causal), direction, 12)
    kinds = dict.fromkeys(plan.Plan._fields, "*i32") | {"scale": "fp32"}
    kinds |= dict.fromkeys(("lse", "delta", *(("dk", "dv") if of_global else ())), "*fp32")
    kinds |= dict.fromkeys(("q", "k", "v", "k_global", "v_global", "y", "dy", "dq", "dk", "dv"), "*bf16") | kinds
    kinds |= {"terms": "*bf16", "d_terms": "*bf16"}
    constants |= {"GLOBAL": of_global, "block": 1}  # the compiler specialises on arguments equal to 1
    built = compiled(kernel, constants, kinds, otherwise="i32", multiples=r"(?!terms|d_terms)\w+_[bht]")
    assert built.metadata.shared <= 56 * 1024
