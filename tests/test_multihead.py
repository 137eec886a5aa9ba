"""The drop-in: torch's module with softmax, number for number, and any other mechanism behind the same interface."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import MultiheadAttention
from longspan.core.errors import UsageError

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def calls(draw):
    """A way to build and call the module, with every query left at least one key."""
    heads, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    b, n, m = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 7))
    return {
        "seed": draw(st.integers(0, 2**31)),
        "heads": heads,
        "dim": heads * channels,
        "sizes": (b, n, m),
        "widths": draw(st.sampled_from([{}, {"kdim": 5}, {"kdim": 3, "vdim": 2}])),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "batched": draw(st.booleans()),
        "padding": draw(st.sampled_from([None, "bool", "hide", "weigh"])),
        "mask": draw(st.sampled_from([None, "bool", "hide", "weigh", "heads", "causal"])),
        "need_weights": draw(st.booleans()),
        "average": draw(st.booleans()),
    }


def random_mask(kind, *shape):
    """Masks of torch's kinds; the first key always stays visible."""
    hidden = torch.rand(*shape) < 0.4
    hidden[..., 0] = False
    if kind == "bool":
        return hidden
    base = torch.randn(*shape, dtype=torch.float64) if kind == "weigh" else torch.zeros(*shape, dtype=torch.float64)
    return base.masked_fill(hidden, -torch.inf)


@SETTINGS
@given(calls())
def test_softmax_equals_torch_in_outputs_weights_and_gradients(call):
    torch.manual_seed(call["seed"])
    (b, n, m), dim, heads = call["sizes"], call["dim"], call["heads"]
    b = b if call["batched"] else 1
    options = {"bias": call["bias"], "batch_first": call["batch_first"], "dtype": torch.float64, **call["widths"]}
    theirs = nn.MultiheadAttention(dim, heads, **options)
    ours = MultiheadAttention(dim, heads, **options)
    ours.load_state_dict(theirs.state_dict())
    kdim, vdim = call["widths"].get("kdim", dim), call["widths"].get("vdim", dim)
    shapes = [(b, n, dim), (b, m, kdim), (b, m, vdim)]
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    if not call["batched"]:
        inputs = [x[0] for x in inputs]
    elif not call["batch_first"]:
        inputs = [x.transpose(0, 1) for x in inputs]
    padding = None if call["padding"] is None else random_mask(call["padding"], *([b] if call["batched"] else []), m)
    if call["mask"] == "heads":
        mask = random_mask("weigh", b * heads, n, m)
    elif call["mask"] == "causal":
        mask = torch.ones(n, m, dtype=torch.bool).triu(1)
    else:
        mask = None if call["mask"] is None else random_mask(call["mask"], n, m)
    arguments = {
        "key_padding_mask": padding,
        "attn_mask": mask,
        "need_weights": call["need_weights"],
        "average_attn_weights": call["average"],
        "is_causal": call["mask"] == "causal",
    }
    results = []
    for module in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y, weights = module(*leaves, **arguments)
        scalar = (y * y.detach().sin()).sum()
        if weights is not None:
            scalar = scalar + (weights * weights.detach().cos()).sum()
        gradients = torch.autograd.grad(scalar, [*leaves, *module.parameters()], allow_unused=True)
        results.append((y, weights, gradients))
    (y, weights, gradients), (y2, weights2, gradients2) = results
    torch.testing.assert_close(y2, y)
    assert (weights is None) == (weights2 is None)
    if weights is not None:
        torch.testing.assert_close(weights2, weights)
    names = [name for name, _ in theirs.named_parameters()]
    assert names == [name for name, _ in ours.named_parameters()]
    for gradient, gradient2 in zip(gradients, gradients2, strict=True):
        torch.testing.assert_close(gradient2, gradient)


@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 3}])
@pytest.mark.parametrize("bias", [True, False])
def test_the_state_dict_goes_both_ways_and_the_seed_gives_the_same_weights(widths, bias):
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(8, 2, bias=bias, **widths)
    torch.manual_seed(3)
    ours = MultiheadAttention(8, 2, bias=bias, **widths)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    theirs.load_state_dict(ours.state_dict())


def test_a_query_that_may_see_nothing_gets_zero():
    module = MultiheadAttention(8, 2, bias=False, batch_first=True)
    x = torch.randn(2, 3, 8, requires_grad=True)
    padded = torch.tensor([[False, False, True], [True, True, True]])
    for need_weights in (True, False):
        for mask in (None, torch.zeros(3, 3, dtype=torch.bool)):
            y, _ = module(x, x, x, key_padding_mask=padded, attn_mask=mask, need_weights=need_weights)
            assert not y[1].any()
            assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_is_causal_alone_hides_the_future():
    module = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, weights = module(x, x, x, attn_mask=hidden)
    for found in (
        module(x, x, x, is_causal=True),
        module(x, x, x, is_causal=True, need_weights=False),
        rebuilt(module, pattern="causal_self")(x, x, x),
        rebuilt(module, pattern="causal_self")(x, x, x, key_padding_mask=torch.zeros(2, 5)),
    ):
        torch.testing.assert_close(found[0], expected)
    assert not weights[:, hidden].any()


def rebuilt(module, **options):
    """The same weights in a module built with other options."""
    twin = MultiheadAttention(module.embed_dim, module.num_heads, batch_first=module.batch_first, **options)
    twin.load_state_dict(module.state_dict())
    return twin


def test_another_mechanism_attends_behind_the_same_door():
    """A window that covers everything is softmax, with torch's parameter names and mask conventions."""
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    ours = MultiheadAttention(8, 2, batch_first=True, attention="local(window=64)")
    ours.load_state_dict(theirs.state_dict())
    x, other = torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    padded = torch.arange(9) >= torch.tensor([[9], [6]])
    for padding in (padded, torch.zeros(2, 9).masked_fill(padded, -torch.inf)):
        expected, _ = theirs(x, x, other, key_padding_mask=padding)
        y, weights = ours(x, x, other, key_padding_mask=padding)
        torch.testing.assert_close(y, expected)
        assert weights is None


def test_a_causal_mechanism_accepts_the_causal_mask_and_no_other():
    module = MultiheadAttention(8, 2, batch_first=True, attention="local(window=4)", pattern="causal_self")
    x = torch.randn(2, 9, 8)
    plain, _ = module(x, x, x)
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    for mask in (causal, causal == -torch.inf):
        for hint in (False, True):
            torch.testing.assert_close(module(x, x, x, attn_mask=mask, is_causal=hint)[0], plain)
    with pytest.raises(UsageError, match="no attn_mask but the causal one"):
        module(x, x, x, attn_mask=torch.ones(9, 9, dtype=torch.bool).triu(2))


X = torch.zeros(2, 9, 8)
REFUSED = {
    "a causal mask in another pattern": ({}, {"attn_mask": torch.ones(9, 9).triu(1).bool()}, "pattern='causal_self'"),
    "a causal hint in another pattern": ({}, {"is_causal": True}, "pattern='causal_self'"),
    "weights on padding": ({}, {"key_padding_mask": torch.full((2, 9), 0.5)}, "0 and -inf only"),
    "a mask of integers": ({}, {"key_padding_mask": torch.zeros(2, 9, dtype=torch.uint8)}, "must be boolean"),
    "a padding mask of another shape": ({}, {"key_padding_mask": torch.zeros(2, 8).bool()}, "a flag per key"),
    "another length in a self pattern": ({}, {"key": X[:, :5], "value": X[:, :5]}, "pattern='noncausal_cross'"),
    "key and value of two lengths": ({"attention": "softmax"}, {"value": X[:, :5]}, "must agree"),
    "a mask of another shape": (
        {"attention": "softmax"},
        {"attn_mask": torch.zeros(3, 3)},
        "attn_mask must have the shape",
    ),
    "two tensors for whole tokens": ({"attention": "fnet"}, {"key": X.clone()}, "one and the same tensor"),
    "a batch and none": ({"attention": "softmax"}, {"key": X[0]}, "3 axes, or 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(case):
    options, arguments, words = REFUSED[case]
    module = MultiheadAttention(8, 2, batch_first=True, **{"attention": "local(window=4)", **options})
    with pytest.raises(UsageError, match=words):
        module(**{"query": X, "key": X, "value": X, **arguments})


@pytest.mark.parametrize(
    "options, words",
    [
        ({"add_bias_kv": True}, "leave them False"),
        ({"add_zero_attn": True}, "leave them False"),
        ({"num_heads": 3}, "multiple of num_heads"),
        ({"attention": "fnet", "kdim": 5}, "must equal embed_dim"),
        ({"attention": "linformer"}, "max_length="),
        ({"attention": "local", "pattern": "NC"}, "cannot run as noncausal_cross"),
        ({"attention": "liner"}, "No attention named 'liner'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_sentence(options, words):
    with pytest.raises(UsageError, match=words):
        MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, **options})


def test_mechanisms_without_projections_mix_whole_tokens():
    module = MultiheadAttention(8, 2, batch_first=False, attention="fnet")
    x = torch.randn(9, 2, 8)
    y, weights = module(x, x, x, key_padding_mask=torch.zeros(2, 9, dtype=torch.bool))
    torch.testing.assert_close(y, torch.fft.fft2(x.transpose(0, 1)).real.transpose(0, 1))
    assert weights is None
    assert not list(module.parameters())


def test_cross_attention_with_a_bound_on_the_context():
    module = MultiheadAttention(
        8, 2, attention="linformer(rank=4)", pattern="noncausal_cross", max_context=12, kdim=5, vdim=3
    )
    y, weights = module(torch.randn(7, 2, 8), torch.randn(12, 2, 5), torch.randn(12, 2, 3))
    assert y.shape == (7, 2, 8)
    assert weights is None


def test_inside_torchs_own_encoder_layer_the_mechanism_is_really_used():
    """In evaluation torch's layer has a fast path of its own, which would quietly compute softmax attention."""
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True, dropout=0.0)
    layer.self_attn = MultiheadAttention(8, 2, batch_first=True, attention="local(window=1)")
    x = torch.randn(2, 9, 8)
    trained = layer(x)
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(x), trained)
        torch.testing.assert_close(nn.TransformerEncoder(layer, 1)(x), trained)


def test_dtype_and_device_reach_every_part():
    module = MultiheadAttention(8, 2, attention="nystromformer(conv=3)", dtype=torch.float64, device="cpu")
    assert {p.dtype for p in module.parameters()} == {torch.float64}


def test_dropout_acts_in_training_only():
    module = MultiheadAttention(8, 2, dropout=0.5)
    x = torch.randn(9, 2, 8)
    for arguments in ({}, {"is_causal": True}, {"is_causal": True, "need_weights": False}):
        module.train()
        assert not torch.equal(module(x, x, x, **arguments)[0], module(x, x, x, **arguments)[0])
        module.eval()
        assert torch.equal(module(x, x, x, **arguments)[0], module(x, x, x, **arguments)[0])
