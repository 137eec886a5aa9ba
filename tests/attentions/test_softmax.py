"""Softmax attention: one formula, many kernels."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan import attentions
from longspan.attentions import ALL_PATTERNS, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.sdpa import BACKENDS, available, chosen

CS, CC = Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS


def build(spec="softmax", pattern=CS, **shell):
    torch.manual_seed(0)
    return attentions.get(spec)(8, 2, pattern, **shell).double().eval()


def tensors(n, m, b=2, h=2, c=4, e=3):
    shapes = ((b, h, n, c), (b, h, m, c), (b, h, m, e))
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


def formula(q, k, v, causal, mask):
    """One query at a time, over the keys it may see; 0 where there are none."""
    rows = []
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            keys = [j for j in range(k.shape[2]) if (not causal or j <= i) and (mask is None or mask[b, j])]
            p = torch.softmax(torch.einsum("hc,hjc->hj", q[b, :, i], k[b, :, keys]) / q.shape[3] ** 0.5, dim=-1)
            rows.append(torch.einsum("hj,hje->he", p, v[b, :, keys]))
    return torch.stack(rows).unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


@pytest.mark.parametrize("kernel", ["auto", "math", "plain"])
@pytest.mark.parametrize("pattern", ALL_PATTERNS)
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_and_gradients_follow_the_formula(kernel, pattern, masked):
    q, k, v = tensors(7, 5 if pattern.cross else 7)
    mask = torch.rand(2, k.shape[2]) < 0.5 if masked else None
    if mask is not None:
        mask[1] = False
    found = build(f"softmax(kernel={kernel})", pattern).attend(q, k, v, key_mask=mask)
    expected = formula(q, k, v, pattern is CS, mask)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * w).sum(), (q, k, v)),
        torch.autograd.grad((expected * w).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("pattern", ALL_PATTERNS)
def test_the_weights_are_those_of_the_output(pattern):
    q, k, v = tensors(7, 5 if pattern.cross else 7)
    mask = torch.arange(k.shape[2]) < torch.tensor([[k.shape[2]], [0]])
    layer = build(pattern=pattern)
    weights = layer.weights(q, k, key_mask=mask)
    torch.testing.assert_close(weights @ v, layer.attend(q, k, v, key_mask=mask))
    torch.testing.assert_close(weights.sum(dim=-1)[0], torch.ones(2, 7, dtype=torch.float64))
    assert not weights[1].any()


@pytest.mark.parametrize("start", [0, 1, 5])
def test_decoding_keeps_keys_and_values(start):
    layer = build()
    x = torch.randn(3, 8, 8, dtype=torch.float64)
    full = layer(x)
    y, state = layer.prefill(x[:, :start])
    torch.testing.assert_close(y, full[:, :start])
    rows = torch.tensor([2, 0])
    state = state.select(rows)
    for t in range(start, 8):
        y_t, state = layer.step(x[rows, t], state)
        torch.testing.assert_close(y_t, full[rows, t])
    assert state.nbytes == 2 * (2 * 8 * 8 * 8 + 8)  # rows of keys and values in double precision, and a length


def test_decoding_skips_padding():
    layer = build()
    x, following = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    _, state = layer.prefill(x, mask=mask)
    for t in range(3):
        y_t, state = layer.step(following[:, t], state)
        for row in range(2):
            compact = torch.cat([x[row][mask[row]], following[row, : t + 1]])[None]
            torch.testing.assert_close(y_t[row], layer(compact)[0, -1])


def test_decoding_over_a_context_with_an_empty_row():
    layer = build(pattern=CC, bias=False)
    x, context = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[3], [0]])
    full = layer(x, context, context_mask=mask)
    assert not full[1].any()
    _, state = layer.prefill(x[:, :1], context, context_mask=mask)
    for t in range(1, 4):
        y_t, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y_t, full[:, t])


def test_an_unknown_kernel_is_refused():
    with pytest.raises(UsageError, match=r"takes 'auto' \| 'flash'"):
        build("softmax(kernel=fast)")


def test_dropout_acts_on_the_weights_in_training_only():
    layer = build(dropout=0.5)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_a_kernel_this_machine_cannot_run_is_refused_with_a_sentence():
    layer = attentions.get("softmax(kernel=cudnn)")(16, 2, Pattern.NONCAUSAL_SELF)
    with pytest.raises(
        UsageError, match=r"softmax\(kernel=cudnn\) cannot run on cpu .* choose another kernel, or auto"
    ):
        layer(torch.randn(1, 4, 16))


HERE = available("cpu", torch.float32)


@pytest.mark.parametrize("pattern", ALL_PATTERNS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", HERE)
def test_every_kernel_of_this_machine_agrees_with_the_plain_formula(kernel, pattern, masked):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 8, requires_grad=True) for n in (70, *[33 if pattern.cross else 70] * 2))
    mask = torch.rand(2, k.shape[2]) < 0.5 if masked else None
    if mask is not None:
        mask[1] = False
    layers = [attentions.get(f"softmax(kernel={name})")(16, 2, pattern).eval() for name in (kernel, "plain")]
    assert [layer.used(q, k, v, key_mask=mask) for layer in layers] == [kernel, "plain"]
    found, expected = (layer.attend(q, k, v, key_mask=mask) for layer in layers)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # sums of 70 products in a different order


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", sorted(BACKENDS.keys() - HERE.keys()))
def test_every_kernel_this_machine_lacks_is_refused_with_a_sentence_also_when_only_asked_for(kernel, masked):
    layer = attentions.get(f"softmax(kernel={kernel})")(16, 2, Pattern.NONCAUSAL_SELF)
    q, mask = torch.randn(1, 2, 4, 8), torch.ones(1, 4, dtype=torch.bool) if masked else None
    sentence = rf"softmax\(kernel={kernel}\) cannot run on cpu in torch.float32 .* choose another kernel, or auto"
    for ask in (layer.attend, layer.used):
        with pytest.raises(UsageError, match=sentence):
            ask(q, q, q, key_mask=mask)


@pytest.mark.parametrize("e", [8, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", [CS, CC])
def test_what_auto_says_it_uses_is_what_runs(e, masked, pattern):
    """Verified by the operator that torch dispatches to."""
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, e)
    mask = torch.ones(1, 5, dtype=torch.bool) if masked else None
    layer = attentions.get("softmax")(16, 2, pattern).eval()
    with Operators() as operators:
        layer.attend(q, k, v, key_mask=mask)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu" in operators.names
    assert layer.used(q, k, v, key_mask=mask) == ("flash" if flash else "math")
    assert flash == (e == 8)


class Operators(TorchDispatchMode):
    """Records the names of all operators that run inside it."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.add(operation.name())
        return operation(*args, **(kwargs or {}))


def test_asking_leaves_torch_as_it_was():
    q = torch.zeros(1, 1, 4, 8)
    before = chosen(q, q, q)
    assert chosen(q, q, q, kernel="cudnn") is None
    assert chosen(q, q, q) == before
