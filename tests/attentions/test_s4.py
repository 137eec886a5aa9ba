"""S4 against its recurrence with the whole matrix, token by token in complex numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import SELF_PATTERNS, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.state_space.systems import hippo
from tests.kernels.memory import LargestTensor


def build(spec, pattern, dim=6, seed=0):
    torch.manual_seed(seed)
    layer = attentions.get(spec)(dim, 1, pattern).double()
    for pairs in (layer.p, layer.b):  # they are initialised real, which would hide a missing conjugate
        pairs.data += 0.3 * torch.randn_like(pairs)
    return layer


def system(layer):
    """A~ and B~ of the bilinear rule and C, with all conjugate pairs written out."""

    def pairs(half):
        return torch.cat([half, half.conj()], dim=-1)

    diagonal = pairs(torch.complex(-layer.log_decay.exp(), layer.frequency))
    p, b, c = (pairs(torch.view_as_complex(u)) for u in (layer.p, layer.b, layer.c))
    a = torch.diag_embed(diagonal) - p[..., :, None] * p.conj()[..., None, :]
    step = layer.log_step.exp()[:, None, None]
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    left = one - step / 2 * a
    return torch.linalg.solve(left, one + step / 2 * a), torch.linalg.solve(left, step * b[..., None])[..., 0], c


def recurrence(layer, x):
    """x_t = A~ x_{t-1} + B~ u_t and y_t = C x_t, in one or both directions, with D and the output map."""
    a, b, c = system(layer)
    channels = layer.skip.shape[0]

    def run(tokens, c):
        s, rows = torch.zeros(len(x), *b.shape, dtype=b.dtype), []
        for u in tokens:
            s = torch.einsum("dij,bdj->bdi", a, s) + b * u[..., None]
            rows.append(torch.einsum("cdn,bdn->bcd", c, s).real)
        return rows

    tokens = x.unbind(1)
    y = torch.stack(run(tokens, c[:channels]), dim=1) + layer.skip * x[:, :, None]
    if layer.directions == 2:
        later = run(tokens[::-1], c[channels:])[::-1]  # row t has seen t and all after it
        y = y + torch.stack([*later[1:], torch.zeros_like(later[0])], dim=1)
    return F.glu(layer.out(F.gelu(y.flatten(2))), dim=-1)


SPECS = ["s4(state=8)", "s4(state=6, channels=2, tied=False)", "s4(state=2, bidirectional=False)"]


@pytest.mark.parametrize("length", [1, 2, 63])
@pytest.mark.parametrize("spec, pattern", [*itertools.product(SPECS, SELF_PATTERNS)])
def test_the_convolution_is_the_recurrence_in_outputs_and_gradients(spec, pattern, length):
    layer = build(spec, pattern)
    x = torch.randn(2, length, 6, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x), recurrence(layer, x)
    torch.testing.assert_close(found, expected)
    leaves = [x, *layer.parameters()]
    gradients = (torch.autograd.grad(y.square().sum(), leaves, materialize_grads=True) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@given(st.integers(1, 30), st.sampled_from(SELF_PATTERNS), st.integers(0, 2**31))
@settings(deadline=None, max_examples=10)
def test_padding_is_not_time(length, pattern, seed):
    layer = build("s4(state=8)", pattern)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, length, 6, dtype=torch.float64, generator=generator)
    mask = torch.rand(2, length, generator=generator) < 0.7
    y = layer(x.masked_fill(~mask[..., None], 1e4), mask=mask)
    for row in range(2):
        if mask[row].any():
            torch.testing.assert_close(y[row, mask[row]], layer(x[row, mask[row]][None])[0])


@pytest.mark.parametrize("spec", SPECS)
def test_decoding_continues_any_prefix_with_a_state_that_does_not_grow(spec):
    layer = build(spec, Pattern.CAUSAL_SELF)
    x = torch.randn(3, 40, 6).double()
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1, 1:3], mask[2, :5] = False, False
    whole = layer(x, mask=mask)
    for prefix in (5, 17, 39):
        y, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix])
        size = state.nbytes
        torch.testing.assert_close(y[mask[:, :prefix]], whole[:, :prefix][mask[:, :prefix]])
        for t in range(prefix, 40):
            y, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y, whole[:, t])
        assert state.nbytes == size == 3 * 6 * layer.log_decay.shape[1] * 16
    _, state = layer.prefill(x[:, :0])
    y, state = layer.step(x[:, 0], state)
    torch.testing.assert_close(y, layer(x[:, :1])[:, 0])
    assert state.select(torch.tensor([2])).s.shape == (1, 6, layer.log_decay.shape[1], 2)


@pytest.mark.parametrize("pattern", SELF_PATTERNS)
def test_without_the_part_of_rank_one_it_is_s4d(pattern):
    layer = build("s4(state=8, tied=False)", pattern)
    layer.p.data.zero_()
    diagonal = attentions.get("s4d(state=8, rule=bilinear)")(6, 1, pattern).double()
    weights = dict(layer.state_dict())
    del weights["p"]
    b = torch.view_as_complex(weights.pop("b"))
    weights["c"] = torch.view_as_real(b * torch.view_as_complex(weights["c"]))
    diagonal.load_state_dict(weights)
    x = torch.randn(2, 50, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), diagonal(x))


def test_it_starts_as_hippo():
    """P* A~^n B~ is the same in every basis."""
    n = torch.arange(8, dtype=torch.float64)
    outer = ((2 * n + 1)[:, None] * (2 * n + 1)).sqrt()
    a, b = -outer.tril(-1) - torch.diag(n + 1), (2 * n + 1).sqrt()
    torch.manual_seed(0)
    layer = attentions.get("s4(state=8)")(1, 1, Pattern.CAUSAL_SELF).double()
    step = layer.log_step.exp().item()
    one = torch.eye(8, dtype=torch.float64)
    left = one - step / 2 * a
    expected, found = (torch.linalg.solve(left, one + step / 2 * a), torch.linalg.solve(left, step * b)), system(layer)
    p = (n + 0.5).sqrt()
    own_p = torch.view_as_complex(layer.p[0])
    own_p = torch.cat([own_p, own_p.conj()])
    for power in range(5):
        seen = p @ torch.linalg.matrix_power(expected[0], power) @ expected[1]
        ours = own_p.conj() @ torch.linalg.matrix_power(found[0][0], power) @ found[1][0]
        torch.testing.assert_close(ours.real, seen, rtol=1e-5, atol=1e-6)  # starting values are rounded to float32


def test_its_first_eigenvalues_count_down():
    frequency, p = (torch.cat([u, sign * u]).double() for u, sign in zip(hippo(4), (-1, 1), strict=True))
    dense = torch.diag(torch.complex(torch.full_like(frequency, -0.5), frequency)) - p[:, None] * p
    found = sorted(torch.linalg.eigvals(dense).tolist(), key=lambda z: -z.real)
    assert found == pytest.approx([-1, -2, -3, -4], abs=1e-5)  # starting values are rounded to float32


def test_the_kernel_never_stores_states_by_frequencies():
    dim, state, length = 8, 128, 4096
    layer = attentions.get(f"s4(state={state})")(dim, 1, Pattern.CAUSAL_SELF)
    with LargestTensor() as largest:
        layer.system().kernel(length).sum().backward()
    assert largest.numel <= 4 * dim * 2 * length * 2  # four complex series of twice the length, whatever the state


@torch.no_grad()
def test_a_kernel_of_long_range_keeps_its_digits():
    layer, length = build("s4", Pattern.CAUSAL_SELF, dim=2), 1_000
    a, b, c = system(layer)
    rows = []
    for _ in range(length):
        rows.append(torch.einsum("cdn,dn->cd", c, b).real)
        b = torch.einsum("dij,dj->di", a, b)
    expected = torch.stack(rows, dim=-1)
    scale = expected.abs().max()
    assert (layer.system().kernel(length) - expected).abs().max() < 1e-9 * scale  # ten digits left on the unit circle
    assert (
        layer.float().system().kernel(length) - expected
    ).abs().max() < 1e-4 * scale  # weights rounded to single precision


def test_one_direction_in_the_noncausal_pattern_is_the_causal_layer():
    one_way, causal = (build("s4(state=8, bidirectional=False)", pattern) for pattern in SELF_PATTERNS)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    assert torch.equal(one_way(x), causal(x))


def test_parameters_are_real_and_say_how_they_want_to_be_trained():
    layer = attentions.get("s4")(6, 1, Pattern.NONCAUSAL_SELF)
    assert all(value.dtype == torch.float32 for value in layer.state_dict().values())
    gentle = {name for name, parameter in layer.named_parameters() if hasattr(parameter, "optim")}
    assert gentle == {"log_decay", "frequency", "p", "b", "log_step"}
    assert layer.p.optim == {"weight_decay": 0.0, "max_learning_rate": 1e-3, "kind": "ssm"}


@pytest.mark.parametrize(
    "spec, sentence",
    [
        ("s4(state=7)", "choose an even number"),
        ("s4(step_min=0.5)", "step_min <= step_max"),
        ("s4(channels=0)", "at least one channel"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(spec, sentence):
    with pytest.raises(UsageError, match=sentence):
        build(spec, Pattern.CAUSAL_SELF)
