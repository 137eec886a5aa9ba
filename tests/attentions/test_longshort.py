"""Long-short attention against its formula in loops, and decoding."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions import longshort as module
from longspan.attentions.longshort import LongShort
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse.extra_keys import window_with_extra_keys

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(options="", pattern=NS, dim=8, heads=2, **shell) -> LongShort:
    torch.manual_seed(0)
    layer = attentions.get(f"longshort({options})")(dim, heads, pattern, **shell).double().eval()
    assert isinstance(layer, LongShort)
    for parameter in layer.parameters():  # so that no layer norm is the identity and no bias zero
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def rows(n, b=2, dim=8):
    torch.manual_seed(n)
    return torch.randn(b, n, dim, dtype=torch.float64, requires_grad=True)


def heads_of(layer, x):
    """[n d] as a list of [n c], one for each head."""
    return list(x.chunk(layer.heads, dim=-1))


def pooled(layer, k, p):
    """The summaries of k [n d] with weights p [n h r], layer-normed over all heads together: [r d]."""
    parts = [p[:, h].T @ u for h, u in enumerate(heads_of(layer, k))]
    return layer.far_norm(torch.cat(parts, dim=-1))


def noncausal(layer, x):
    """One row [n d] without padding, query by query."""
    n, w, side = len(x), layer.window, max(layer.window // 2, 1)
    k, v = layer.near_norm(layer.key(x)), layer.near_norm(layer.value(x))
    p = layer.summaries(x).reshape(n, layer.heads, -1).softmax(dim=0)
    far_k, far_v = pooled(layer, k, p), pooled(layer, v, p)
    out = []
    for i, q in enumerate(layer.query(x)):
        first, last = max(i // w * w - side, 0), i // w * w + w + side
        keys, values = torch.cat([far_k, k[first:last]]), torch.cat([far_v, v[first:last]])
        out.append(attended(layer, q, keys, values))
    y = torch.stack(out)
    if hasattr(layer, "conv"):
        taps = layer.conv.weight[:, 0, :, 0]  # "h taps"
        half, weight = taps.shape[1] // 2, taps.repeat_interleave(v.shape[1] // layer.heads, dim=0)
        padded = torch.nn.functional.pad(v, (0, 0, half, half))
        y = y + sum(weight[:, s] * padded[s : s + n] for s in range(taps.shape[1]))
    return layer.out(y)


def causal(layer, x):
    n, w, size, rank = len(x), layer.window, layer.chunk, layer.rank
    raw_k, raw_v = layer.key(x), layer.value(x)
    k, v = layer.near_norm(raw_k), layer.near_norm(raw_v)
    logits = layer.summaries(x).reshape(n, layer.heads, rank)
    out = []
    for i, q in enumerate(layer.query(x)):
        far_k, far_v = [k[:0]], [v[:0]]
        for start in range(0, i // size * size, size):
            chunk = slice(start, start + size)
            far_k.append(pooled(layer, raw_k[chunk], logits[chunk].softmax(dim=0)))
            far_v.append(pooled(layer, raw_v[chunk], logits[chunk].softmax(dim=0)))
        near = range(max(0, i - w + 1), i + 1)
        keys, values = torch.cat([*far_k, k[near]]), torch.cat([*far_v, v[near]])
        out.append(attended(layer, q, keys, values))
    return layer.out(torch.stack(out))


def attended(layer, q, keys, values):
    parts = [heads_of(layer, u) for u in (q, keys, values)]
    scores = torch.stack([k @ q / q.shape[-1] ** 0.5 for q, k, _ in zip(*parts, strict=True)])
    return torch.cat([p @ v for p, v in zip(scores.softmax(dim=-1), parts[2], strict=True)], dim=-1)


def assert_follows(formula, layer, x, mask):
    """Outputs and gradients, each row compared with the formula on its real tokens."""
    found = layer(x, mask=mask)
    leaves = [x, *layer.parameters()]
    totals = []
    for b in range(len(x)):
        kept = torch.ones(x.shape[1], dtype=torch.bool) if mask is None else mask[b]
        if not kept.any():
            continue
        expected = formula(layer, x[b, kept])
        torch.testing.assert_close(found[b, kept], expected)
        w = torch.randn_like(expected)
        totals.append(torch.stack([(found[b, kept] * w).sum(), (expected * w).sum()]))
    if not totals:
        return
    gradients = (
        torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        for total in torch.stack(totals).sum(dim=0)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 25), window=st.integers(1, 9), landmarks=st.integers(1, 5), conv=st.sampled_from([0, 1, 5]),
    lengths=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
def test_noncausal_outputs_and_gradients_follow_the_formula(n, window, landmarks, conv, lengths):
    layer = build(f"window={window}, landmarks={landmarks}, conv={conv}")
    mask = None if lengths is None else torch.arange(n) < torch.tensor([[round(share * n)] for share in lengths])
    assert_follows(noncausal, layer, rows(n), mask)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 25), window=st.integers(1, 9), chunk=st.integers(1, 7), rank=st.integers(1, 3),
    share=st.none() | st.floats(0, 1),
)  # fmt: skip
def test_causal_outputs_and_gradients_follow_the_formula(n, window, chunk, rank, share):
    layer = build(f"window={window}, chunk={chunk}, rank={rank}", CS)
    mask = None if share is None else torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < share
    assert_follows(causal, layer, rows(n), mask)


@pytest.mark.parametrize("n", [100, 130, 200])
def test_many_tiles_agree_with_the_formula(n):
    """More queries than one tile holds, in both forms; the loops are slow, so only outputs are compared."""
    with torch.no_grad():
        for layer, formula in ((build("window=5"), noncausal), (build("window=20, chunk=7, rank=2", CS), causal)):
            x = rows(n, b=1)
            torch.testing.assert_close(layer(x)[0], formula(layer, x[0]))


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 25), window=st.integers(1, 9), pattern=st.sampled_from([NS, CS]), hides=st.booleans())
def test_where_there_is_a_kernel_it_is_asked_for_the_same(n, window, pattern, hides):
    """With the kernel's reference implementation, which runs on any device."""
    options = "chunk=3, rank=2" if pattern is CS else "landmarks=4, conv=3"
    layer, formula = build(f"window={window}, {options}", pattern), causal if pattern is CS else noncausal
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < 0.7 if hides and pattern is CS else None
    if hides and pattern is NS:
        mask = torch.arange(n) < torch.tensor([[n], [n // 2]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "window_with_extra_keys", partial(window_with_extra_keys, impl="reference"))
        assert_follows(formula, layer, rows(n), mask)


def test_a_window_of_a_chunk_or_more_leaves_no_token_unseen():
    def unseen(window, chunk):
        layer, x = build(f"window={window}, chunk={chunk}", CS), rows(17, b=1)
        jacobian = torch.autograd.functional.jacobian(lambda x: layer(x).sum(dim=-1)[0], x)
        assert torch.is_tensor(jacobian)
        reach = jacobian[:, 0].abs().amax(dim=-1) > 0
        assert not reach.triu(1).any()
        return int((~reach).tril().sum())

    assert unseen(4, 4) == 0
    assert unseen(2, 4) > 0


@pytest.mark.parametrize("window, chunk, rank", [(8, 4, 1), (3, 5, 2), (1, 1, 1), (40, 6, 1)])
def test_decoding_continues_any_prefix(window, chunk, rank):
    layer = build(f"window={window}, chunk={chunk}, rank={rank}", CS)
    x, n = rows(22, b=3).detach(), 22
    holes = torch.ones(3, n, dtype=torch.bool)
    holes[1, 1:3], holes[2, :9] = False, False
    for prefix, mask in [(0, torch.ones_like(holes)), (9, holes), (n - 1, holes)]:
        y, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix])
        found = [y]
        for t in range(prefix, n):
            y_t, state = layer.step(x[:, t], state)
            found.append(y_t[:, None])
        torch.testing.assert_close(torch.cat(found, dim=1)[mask], layer(x, mask=mask)[mask])


def test_the_state_grows_by_summaries_alone():
    layer = build("window=8, chunk=4, rank=2", CS)
    sizes = [layer.prefill(rows(n, b=1).detach())[1].nbytes for n in (40, 43, 44, 80)]
    summary = 2 * 2 * 8 * 8  # keys and values, two of them, of width 8 in double precision
    assert [size - sizes[0] for size in sizes] == [0, 0, summary, 10 * summary]


def test_the_backbone_initialises_the_four_projections_alone():
    assert len(list(build("", CS).projections())) == 4


def test_the_convolution_starts_at_nothing():
    torch.manual_seed(0)
    with_conv = attentions.get("longshort(conv=5)")(8, 2, NS)
    plain = attentions.get("longshort")(8, 2, NS)
    plain.load_state_dict(with_conv.state_dict(), strict=False)
    x = rows(30).float()
    torch.testing.assert_close(with_conv(x), plain(x))


@pytest.mark.parametrize(
    "options, pattern, words",
    [
        ("window=0", NS, "at least 1"),
        ("rank=0", CS, "at least 1"),
        ("conv=4", NS, "odd number"),
        ("conv=5", CS, "look ahead"),
        ("", Pattern.NONCAUSAL_CROSS, "cannot run as noncausal_cross"),
    ],
)
def test_impossible_options_are_refused(options, pattern, words):
    with pytest.raises(UsageError, match=words):
        build(options, pattern)


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("options", ["window=4, landmarks=3", "window=6, conv=3"])
@pytest.mark.parametrize("hidden", [slice(0, 5), slice(1, None, 3), slice(9, 14)])
def test_a_row_gives_what_its_tokens_give_alone_wherever_they_lie(pattern, options, hidden):
    if pattern is CS and "conv" in options:
        options = "window=6, chunk=3"
    layer, x, mask = build(options, pattern), rows(21), torch.ones(2, 21, dtype=torch.bool)
    mask[1, hidden] = False
    torch.testing.assert_close(layer(x, mask=mask)[1, mask[1]], layer(x[1:, mask[1]])[0])
