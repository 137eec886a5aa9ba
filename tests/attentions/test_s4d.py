"""S4D against its recurrence, token by token in complex numbers."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from longspan import attentions
from longspan.attentions import SELF_PATTERNS, Pattern
from longspan.attentions.s4d import initial_a
from longspan.core.errors import UsageError
from tests.kernels.memory import LargestTensor


def build(spec, pattern, dim=6, seed=0):
    torch.manual_seed(seed)
    return attentions.get(spec)(dim, 1, pattern).double()


def recurrence(layer, x):
    """s_t = A~ s_{t-1} + B~ u_t and y_t = 2 Re C s_t, in one or both directions, with D and the output map."""
    a = torch.complex(-layer.log_decay.exp(), layer.frequency)
    step = layer.log_step.exp()[:, None]
    if layer.rule == "zoh":
        a_bar, b_bar = (step * a).exp(), ((step * a).exp() - 1) / a
    else:
        a_bar, b_bar = (1 + step * a / 2) / (1 - step * a / 2), step / (1 - step * a / 2)
    c = torch.view_as_complex(layer.c)
    channels = layer.skip.shape[0]

    def run(tokens, c):
        s, rows = 0, []
        for u in tokens:
            s = a_bar * s + b_bar * u[..., None]
            rows.append(2 * torch.einsum("cdn,bdn->bcd", c, s).real)
        return rows

    tokens = x.unbind(1)
    y = torch.stack(run(tokens, c[:channels]), dim=1) + layer.skip * x[:, :, None]
    if layer.pattern is Pattern.NONCAUSAL_SELF:
        later = run(tokens[::-1], c[channels:])[::-1]  # row t has seen t and all after it
        y = y + torch.stack([*later[1:], torch.zeros_like(later[0])], dim=1)
    y = y.flatten(2)
    y = F.gelu(y) if layer.activation == "gelu" else y
    if layer.output == "none":
        return y
    return F.glu(layer.out(y), dim=-1) if layer.output == "glu" else layer.out(y)


SPECS = [
    "s4d(state=8)",
    "s4d(state=8, channels=3, init=inv, output=linear, tied=True)",
    "s4d(state=8, init=legs, rule=bilinear, activation=none, output=none)",
]


@pytest.mark.parametrize("length", [1, 2, 63])
@pytest.mark.parametrize("spec, pattern", [*itertools.product(SPECS, SELF_PATTERNS)])
def test_the_convolution_is_the_recurrence_in_outputs_and_gradients(spec, pattern, length):
    layer = build(spec, pattern)
    x = torch.randn(2, length, 6, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x), recurrence(layer, x)
    torch.testing.assert_close(found, expected)
    leaves = [x, *layer.parameters()]
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), leaves, allow_unused=True),
        torch.autograd.grad(expected.square().sum(), leaves, allow_unused=True),
        strict=True,
    ):
        if one is not None and other is not None:  # a single token gets no gradient from the right-to-left direction
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("pattern", SELF_PATTERNS)
def test_padding_is_not_time(pattern):
    layer = build("s4d(state=8)", pattern)
    x = torch.randn(2, 20, 6).double()
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 15:], mask[1, [0, 1, 7, 8, 19]] = False, False
    y = layer(x.masked_fill(~mask[..., None], 1e4), mask=mask)
    for row in range(2):
        torch.testing.assert_close(y[row, mask[row]], layer(x[row, mask[row]][None])[0])


@pytest.mark.parametrize("spec", SPECS)
def test_decoding_continues_any_prefix(spec):
    layer = build(spec, Pattern.CAUSAL_SELF)
    x = torch.randn(3, 40, 6).double()
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1, 1:3], mask[2, :5] = False, False
    whole = layer(x, mask=mask)
    for prefix in (5, 17, 39):
        y, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix])
        torch.testing.assert_close(y[mask[:, :prefix]], whole[:, :prefix][mask[:, :prefix]])
        for t in range(prefix, 40):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, whole[:, t])
    _, state = layer.prefill(x[:, :0])
    y, state = layer.step(x[:, 0], state)
    torch.testing.assert_close(y, layer(x[:, :1])[:, 0])
    assert state.select(torch.tensor([2])).s.shape == (1, 6, layer.log_decay.shape[1], 2)


def test_the_kernel_never_stores_every_power():
    dim, state, length = 32, 64, 4096
    layer = attentions.get("s4d")(dim, 1, Pattern.CAUSAL_SELF)
    with LargestTensor() as largest:
        layer.system().kernel(length).sum().backward()
    assert largest.numel <= dim * max(length, 2 * state * 64 * 2)


def test_a_kernel_of_long_range_keeps_its_digits_in_single_precision():
    layer = build("s4d", Pattern.CAUSAL_SELF, dim=4)
    exact = layer.system().kernel(4096)
    # Phases reach thousands of radians, where float32 keeps three or four decimal places.
    torch.testing.assert_close(layer.float().system().kernel(4096).double(), exact, atol=2e-3, rtol=0)


def test_parameters_are_real_and_say_how_they_want_to_be_trained():
    layer = attentions.get("s4d")(6, 1, Pattern.NONCAUSAL_SELF)
    assert all(value.dtype == torch.float32 for value in layer.state_dict().values())
    gentle = {name for name, parameter in layer.named_parameters() if hasattr(parameter, "optim")}
    assert gentle == {"log_decay", "frequency", "log_step"}
    assert layer.log_step.optim == {"weight_decay": 0.0, "max_learning_rate": 1e-3, "kind": "dt"}


def test_initial_states_are_those_of_the_paper():
    assert initial_a("lin", 8).tolist() == pytest.approx([complex(-0.5, math.pi * n) for n in range(4)])
    assert initial_a("inv", 8)[1].item() == pytest.approx(complex(-0.5, 8 / math.pi * (8 / 3 - 1)))
    assert initial_a("real", 8).tolist() == [-1, -2, -3, -4]
    n = torch.arange(8.0).double()
    outer = ((2 * n + 1)[:, None] * (2 * n + 1)).sqrt()
    hippo = -outer.tril(-1) - torch.diag(n + 1)
    eigenvalues = torch.linalg.eigvals(hippo + outer / 2)  # without the low-rank part
    expected = sorted(eigenvalues[eigenvalues.imag > 0].tolist(), key=lambda z: z.imag)
    assert initial_a("legs", 8).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "spec, sentence",
    [
        ("s4d(state=7)", "choose an even number"),
        ("s4d(step_min=0.5)", "step_min <= step_max"),
        ("s4d(channels=2, output=none)", "one channel per feature"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(spec, sentence):
    with pytest.raises(UsageError, match=sentence):
        build(spec, Pattern.CAUSAL_SELF)


def test_one_direction_in_the_noncausal_pattern_is_the_causal_layer():
    one_way, causal = (build("s4d(state=8, bidirectional=False)", pattern) for pattern in SELF_PATTERNS)
    x = torch.randn(2, 20, 6).double()
    assert torch.equal(one_way(x), causal(x))
