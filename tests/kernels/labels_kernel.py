"""The Triton kernels of attention with labels against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan.attentions import Pattern, etc
from longspan.attentions.etc import ETC
from longspan.efficiency.operations import count_operations
from longspan.kernels.block_sparse import operator, planned, sliding_window
from longspan.kernels.block_sparse.labels import labelled_global_queries, labelled_window
from tests.kernels.agreement import assert_agrees, by_triton, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import token_by_token

EXACT = torch.float32 if DEVICE == "cpu" else torch.bfloat16  # the kernel takes float32 only in the interpreter
# In float32 only the order of summation differs. In bfloat16 weights and results are rounded by a relative 2^-9, and so
# are the terms of some gradients before they are summed.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF
NONE = slice(0, 0, 1)


def draw(n, distance, *, queries=None, b=1, h=2, c=16, e=16, dtype=EXACT):
    """Queries, keys, values and terms."""
    generator, queries = torch.Generator().manual_seed(n), n if queries is None else queries
    shapes = ((queries, c), (n, c), (n, e), (queries, 2 * distance + 2))
    drawn = (torch.randn(b, h, *shape, generator=generator) for shape in shapes)
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def paddings(n, rows=2):
    """Left padding and holes in the first row, right padding in the last, so that some queries see nothing."""
    mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(4)) < 0.8
    mask[0, : n // 3], mask[-1], mask[-1, n // 2 :] = False, True, False
    return mask.to(DEVICE)


def count(n, global_tokens):
    return len(range(n)[global_tokens])


def follow(compute, leaves, **rules):
    def by(impl):
        return lambda *leaves: compute(*leaves, **rules, impl=impl)

    tolerance = TOLERANCE[leaves[0].dtype]
    assert_agrees(by("triton"), by("reference"), leaves, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.parametrize(
    "n, distance, left, right, global_tokens, causal, masked",
    [
        (1, 12, 5, 5, slice(0, 1, 64), False, False),
        (63, 12, 20, 0, NONE, True, True),
        (130, 1, 30, 30, slice(0, 130, 30), False, True),
        (130, 12, 0, 0, slice(0, 100, 5), True, False),
        (200, 12, 84, 84, slice(0, 200, 7), False, True),
        (200, 1, 84, 0, slice(0, 200, 50), True, True),
        (130, 40, 9, 17, slice(0, 40, 10), False, True),
        (130, 300, 129, 129, NONE, False, False),
        (300, 12, 150, 0, slice(0, 300, 5), True, True),
    ],
)
def test_windows_follow_the_reference_with_gradients_of_terms(n, distance, left, right, global_tokens, causal, masked):
    rules = {"left": left, "right": right, "global_tokens": global_tokens, "causal": causal}
    mask, b, h = (paddings(n), 2, 1) if masked else (None, 1, 2)
    follow(labelled_window, draw(n, distance, b=b, h=h), key_mask=mask, **rules)


@pytest.mark.parametrize("c, e", [(48, 32), pytest.param(128, 16, marks=pytest.mark.full)])
def test_windows_in_half_precision_and_of_widths_that_are_no_power_of_two(c, e):
    leaves = draw(130, 5, c=c, e=e, dtype=torch.bfloat16)
    follow(labelled_window, leaves, left=40, right=40, global_tokens=slice(0, 130, 30))


@pytest.mark.parametrize(
    "n, distance, global_tokens, causal, masked",
    [
        (1, 12, slice(0, 1, 64), True, False),
        (63, 1, slice(0, 63, 20), False, True),
        (130, 12, slice(0, 130, 9), True, True),
        (130, 12, slice(0, 130, 9), False, False),
        (200, 3, slice(0, 60, 10), True, False),
        (63, 12, slice(0, 63, 1), True, True),
        (70, 0, slice(0, 70, 8), True, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_global_queries_follow_the_reference_with_gradients_of_terms(n, distance, global_tokens, causal, masked, dtype):
    rules = {"global_tokens": global_tokens, "causal": causal, "key_mask": paddings(n) if masked else None}
    leaves = draw(n, distance, queries=count(n, global_tokens), b=2 if masked else 1, h=1, dtype=dtype)
    if distance:
        follow(labelled_global_queries, leaves, **rules)
    else:
        follow(lambda q, k, v, **how: labelled_global_queries(q, k, v, None, **how), leaves[:3], **rules)


def test_without_labels_a_window_is_a_window():
    leaves = draw(70, 0)[:3]
    expected = sliding_window(*leaves, left=9, right=3, impl="reference")
    found = labelled_window(*leaves, None, left=9, right=3, global_tokens=NONE, impl="triton")
    torch.testing.assert_close(found, expected, atol=TOLERANCE[EXACT], rtol=TOLERANCE[EXACT])
    plan = planned(leaves[0], (9, 3), block=1)
    y, lse = operator.forward(*leaves, None, *plan)
    *_, of_terms = operator.backward(y, y, lse, *leaves, None, *plan)
    assert not of_terms.numel()


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_a_query_that_sees_nothing_gives_0_and_gets_no_gradient(impl):
    mask = (torch.arange(90, device=DEVICE) >= 40)[None]
    rules = {"global_tokens": slice(0, 90, 30), "causal": True, "key_mask": mask, "impl": impl}
    leaves, few = draw(90, 4), draw(90, 4, queries=3)
    windows = outcome(lambda *x: labelled_window(*x, left=20, right=0, **rules), leaves)
    queries = outcome(lambda *x: labelled_global_queries(*x, **rules), few)
    for (y, dq, _, _, d_terms), blind in ((windows, 40), (queries, 2)):
        for x in (y, dq, d_terms):
            assert not x[:, :, :blind].any()
            assert x.isfinite().all()
        assert y[:, :, blind:].any(dim=-1).all()


def test_no_two_runs_differ_in_a_bit():
    rules = {"global_tokens": slice(0, 150, 20), "impl": "triton"}
    leaves, few = draw(150, 4, h=1), draw(150, 4, queries=8, h=1)

    def run():
        windows = outcome(lambda *x: labelled_window(*x, left=30, right=30, **rules), leaves)
        return *windows, *outcome(lambda *x: labelled_global_queries(*x, **rules), few)

    assert all(map(torch.equal, run(), run()))


def test_axes_may_lie_in_memory_in_any_order():
    leaves = draw(70, 6)

    def run(q, k, v, terms):
        y = labelled_window(q, k, v, terms, left=30, right=30, global_tokens=slice(0, 70, 20), impl="triton")
        return y, *torch.autograd.grad(y.sum(), (q, k, v, terms))  # the gradient of a sum is one number, expanded

    for found, expected in zip(run(*token_by_token(leaves)), run(*leaves), strict=True):
        torch.testing.assert_close(found, expected)


def test_operations_are_those_of_the_tiles_that_are_visited():
    """Queries in tiles of 64, keys in chunks of 64, and terms that need no matrix product."""
    leaves, c = draw(256, 12, h=1), 16
    window = lambda: labelled_window(*leaves, left=20, right=0, causal=True, global_tokens=NONE, impl="triton")  # noqa: E731
    forward, backward = 2 * 64 * 7 * 64 * (c + c), 2 * 64 * 7 * 64 * 7 * c
    assert count_operations(window) == forward
    assert count_operations(lambda: window().sum().backward()) == forward + backward


def test_torch_finds_nothing_wrong_with_the_operator():
    q, k, v, terms = draw(70, 6)
    at = torch.arange(0, 70, 20, device=DEVICE)[None, None]
    check(operator.forward, q, k, v, terms, *planned(q, (9, 9), block=1, global_keys=at))


@pytest.mark.parametrize("causal", [False, True])
def test_they_go_into_one_compiled_graph_for_any_length(causal):
    """The number of global tokens depends on the length."""

    def layer(q, k, v, terms):
        n = q.shape[2]
        rules = {"global_tokens": slice(0, 200 if n > 200 else n, 20), "causal": causal, "impl": "triton"}
        y = labelled_window(q * 1, k, v, terms, left=9, right=9, **rules)
        few, terms = q[:, :, rules["global_tokens"]], terms[:, :, rules["global_tokens"]]
        return y.mean(dim=2) * 2 + labelled_global_queries(few, k, v, terms, **rules).sum(dim=2)

    assert_one_graph(layer, (draw(n, 6, h=1) for n in (100, 130)))


def layer_of(pattern, dim=32, **options):
    torch.manual_seed(0)
    layer = ETC(dim, 2, pattern, **options).to(DEVICE).eval()
    for table in (layer.b, layer.b_global):
        torch.nn.init.normal_(table)
    return layer


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("n, masked", [(45, False), (130, True)])  # room for fewer and for more than 8 global tokens
def test_etc_is_itself_by_the_kernels_with_gradients_of_all_tables(n, masked, pattern, monkeypatch):
    layer = layer_of(pattern, radius=20, global_tokens=8, stride=8, max_distance=5)
    leaves, mask = draw(n, 0, b=2, dtype=torch.float32)[:3], paddings(n) if masked else None
    tables = [layer.a, layer.b, layer.a_global, layer.b_global]

    def forward_and_backward(dtype):
        layer.to(dtype)
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
        y = layer.attend(q, k, v, key_mask=mask)
        return y, *gradients(y, [q, k, v, *tables])

    expected = forward_and_backward(torch.float64)
    calls = by_triton(monkeypatch, etc, "labelled_window", "labelled_global_queries")
    found = forward_and_backward(torch.float32)
    assert calls == ["labelled_window", "labelled_global_queries"]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


@on_a_gpu
@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("masked", [False, True])
def test_etc_takes_them_and_agrees_with_itself_at_real_size(pattern, masked):
    n = 4096 - 3
    layer, mask = layer_of(pattern, dim=128, max_length=4096), paddings(n, rows=4) if masked else None
    leaves = draw(n, 0, b=4, c=64, e=64, dtype=torch.bfloat16)[:3]
    tables = [layer.a, layer.b, layer.a_global, layer.b_global]

    def forward_and_backward(dtype):
        layer.to(torch.promote_types(dtype, torch.float32))
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in leaves)
        y = layer.attend(q, k, v, key_mask=mask)
        return y, *gradients(y, [q, k, v, *tables])

    for found, expected in zip(*map(forward_and_backward, (torch.bfloat16, torch.float64)), strict=True):
        assert (found - expected).norm() <= 2e-2 * expected.norm()


@on_a_gpu
@pytest.mark.parametrize("pattern", [NS, CS])
def test_a_compiled_or_recorded_etc_is_itself(pattern):
    torch.compiler.reset()
    layer = layer_of(pattern, dim=128, max_length=4096)
    compiled = torch.compile(layer.attend, fullgraph=True, dynamic=True)
    for n in (2048, 3000):
        leaves = draw(n, 0, b=2, c=64, e=64, dtype=torch.bfloat16)[:3]
        found, expected = compiled(*leaves), layer.attend(*leaves)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        for a, b in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)

    def train():
        y = layer.attend(*leaves)
        return [y, *gradients(y, leaves)]

    for found, expected in replayed(train, redrawn=leaves):
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
