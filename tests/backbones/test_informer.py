"""Informer: exact parameter counts, the same function as a plain reimplementation, and one slot for each pattern."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.informer import Distil, Informer, Sizes, _flatten
from longspan.backbones.slots import Slots, filled
from longspan.core.errors import UsageError
from tests.backbones.representatives import one_of_each_kind

TINY = Sizes(dim=16, heads=2, encoder_layers=2, decoder_layers=1, mlp=24, dropout=0.0, attention_dropout=0.0)
NC, NS, CS = Pattern.NONCAUSAL_CROSS, Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def informer(
    mechanism="softmax", patterns=(NC,), sizes=TINY, *, variables=3, past=12, prefix=5, horizon=7, others=None
):
    slots = Slots(attentions.get(mechanism), frozenset(patterns), others or {})
    lengths = {"past": past, "prefix": prefix, "horizon": horizon}
    return Informer(slots, sizes, variables=variables, time_features=4, **lengths)


def inputs(model, batch=2, variables=3):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(batch, model.past, variables, generator=generator),
        torch.rand(batch, model.past + model.horizon, 4, generator=generator) - 0.5,
    )


# ----------------------------------------------------------------------------------------------------------- parameters

ETT, LARGER = Sizes(), Sizes(encoder_layers=3, decoder_layers=2)
PUBLISHED = [  # the models of CAB's Table 19, to the integer; 7 variables are ETT's, 321 ECL's, 12 Weather's
    (ETT, 7, "softmax", 11_330_055),
    (ETT, 1, "softmax", 11_308_545),
    (LARGER, 321, "softmax", 20_600_129),
    (LARGER, 12, "softmax", 19_492_364),
    (LARGER, 1, "softmax", 19_452_929),
    (ETT, 7, "abc(slots=16)", 11_332_103),
    (LARGER, 321, "abc(slots=16)", 20_604_225),
    (LARGER, 12, "abc(slots=16)", 19_496_460),
    (ETT, 7, "performer(features=16)", 11_330_055),
    (ETT, 7, "cosformer", 11_330_055),
]


@pytest.mark.parametrize("sizes, variables, mechanism, count", PUBLISHED)
def test_parameters_are_the_published_ones_to_the_integer(sizes, variables, mechanism, count):
    with torch.device("meta"):
        model = informer(mechanism, sizes=sizes, variables=variables, past=336, prefix=336, horizon=720)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_probsparse_in_the_self_slots_adds_no_parameter():
    plain, sparse = (informer(others={NS: name, CS: name}) for name in ("softmax", "probsparse"))
    assert len(list(plain.parameters())) == len(list(sparse.parameters()))
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in sparse.parameters())


# --------------------------------------------------------------------------------------------------------------- oracle


def attend(weights, name, x, context, heads, *, causal=False, mix=False):
    """Softmax attention by loops over rows and heads."""

    def linear(part, y):
        return y @ weights[f"{name}.{part}.weight"].T + weights[f"{name}.{part}.bias"]

    q, k, v = linear("query", x), linear("key", context), linear("value", context)
    b, n, d = q.shape
    c = d // heads
    made = torch.empty(b, heads, n, c, dtype=x.dtype)
    for row in range(n):
        for head in range(heads):
            part = slice(head * c, (head + 1) * c)
            seen = slice(0, row + 1) if causal else slice(None)
            logits = (q[:, row, None, part] * k[:, seen, part]).sum(-1) / math.sqrt(c)
            made[:, head, row] = (logits.softmax(-1)[..., None] * v[:, seen, part]).sum(1)
    # The authors' mistake: [heads, rows, channels] is read as [rows, heads * channels].
    merged = made.reshape(b, n, d) if mix else made.transpose(1, 2).reshape(b, n, d)
    return linear("out", merged)


def oracle(weights, values, times, sizes, past, prefix, horizon):
    """The forecast, implemented a second time from the specification, without modules."""

    def norm(name, x):
        x = x - x.mean(-1, keepdim=True)
        return (
            x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        )

    def convolve(name, x):
        kernel = weights[f"{name}.weight"]
        before, after = x.roll(1, dims=1), x.roll(-1, dims=1)
        return before @ kernel[:, :, 0].T + x @ kernel[:, :, 1].T + after @ kernel[:, :, 2].T + weights[f"{name}.bias"]

    def embed(name, x, t):
        places, channels = torch.arange(x.shape[1]).double()[:, None], torch.arange(0, sizes.dim, 2).double()
        angles = places / 10_000 ** (channels / sizes.dim)
        position = torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(x.shape[1], sizes.dim)
        marks = t @ weights[f"{name}.times.weight"].T + weights[f"{name}.times.bias"]
        return convolve(f"{name}.values", x) + position + marks

    def mlp(name, x):
        hidden = x @ weights[f"{name}.0.weight"].T + weights[f"{name}.0.bias"]
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
        return hidden @ weights[f"{name}.3.weight"].T + weights[f"{name}.3.bias"]

    def halve(name, x):
        x = convolve(f"{name}.convolution", x)
        scale = (weights[f"{name}.norm.running_var"] + 1e-5).sqrt()
        x = (x - weights[f"{name}.norm.running_mean"]) / scale
        x = x * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]
        x = torch.where(x > 0, x, x.exp() - 1)
        rows = [x[:, max(0, place - 1) : place + 2].amax(dim=1) for place in range(0, x.shape[1], 2)]
        return torch.stack(rows, dim=1)

    x = embed("past_embedding", values, times[:, :past])
    for layer in range(sizes.encoder_layers):
        name = f"encoder.{layer}"
        x = norm(f"{name}.attention_norm", x + attend(weights, f"{name}.attention", x, x, sizes.heads))
        x = norm(f"{name}.mlp_norm", x + mlp(f"{name}.mlp", x))
        x = halve(f"distil.{layer}", x) if layer < sizes.encoder_layers - 1 else x
    context = norm("encoder_norm", x)
    known = torch.cat([values[:, past - prefix :], torch.zeros_like(values[:, :1]).expand(-1, horizon, -1)], dim=1)
    y = embed("future_embedding", known, times[:, past - prefix :])
    for layer in range(sizes.decoder_layers):
        name = f"decoder.{layer}"
        seen = attend(weights, f"{name}.attention", y, y, sizes.heads, causal=True, mix=True)
        y = norm(f"{name}.attention_norm", y + seen)
        y = norm(f"{name}.cross_norm", y + attend(weights, f"{name}.cross", y, context, sizes.heads))
        y = norm(f"{name}.mlp_norm", y + mlp(f"{name}.mlp", y))
    return (norm("decoder_norm", y) @ weights["head.weight"].T + weights["head.bias"])[:, -horizon:]


@pytest.mark.parametrize(
    "sizes, past, prefix, horizon",
    [(TINY, 12, 5, 7), (dataclasses.replace(TINY, encoder_layers=3, decoder_layers=2, heads=4), 13, 13, 3)],
)
def test_the_network_is_a_plain_rewriting_of_the_specification(sizes, past, prefix, horizon):
    torch.manual_seed(0)
    model = informer(sizes=sizes, past=past, prefix=prefix, horizon=horizon).double()
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)):
        torch.nn.init.uniform_(norm.running_mean, -1, 1)
        torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    values, times = (part.double() for part in inputs(model))
    with torch.no_grad():
        forecast = model.eval()(values, times)
        expected = oracle(model.state_dict(), values, times, sizes, past, prefix, horizon)
    assert forecast.shape == (2, horizon, 3)
    torch.testing.assert_close(forecast, expected, rtol=1e-6, atol=1e-6)  # positions are stored in single precision


def test_the_value_embedding_begins_with_the_variance_of_the_original():
    torch.manual_seed(0)
    model = informer(sizes=dataclasses.replace(TINY, dim=512, heads=8), variables=7)
    deviation = model.past_embedding.values.weight.std().item()
    assert deviation == pytest.approx(math.sqrt(2 / (7 * 3)), rel=0.05)


# ------------------------------------------------------------------------------------------------------------------ mix


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))
@settings(deadline=None)
def test_mixing_moves_every_number_and_loses_none(heads, places, channels):
    y = torch.arange(2 * places * heads * channels).reshape(2, places, heads * channels).float()
    (mixed,) = _flatten(heads, torch.nn.Identity(), (y,))
    assert mixed.shape == y.shape
    assert torch.equal(mixed.flatten(1).sort().values, y.flatten(1).sort().values)
    first = mixed.flatten(1)[:, : places * channels]  # all positions of the first head come first
    assert torch.equal(first, y[:, :, :channels].flatten(1))
    assert heads > 1 or torch.equal(mixed, y)


# ---------------------------------------------------------------------------------------------------------------- slots


def supporting(pattern):
    """Mechanisms for sequences; those for pictures only refuse other rows."""
    metas = {name: attentions.get(name).meta for name in attentions.names()}
    return [name for name, meta in metas.items() if pattern in meta.patterns and not meta.spatial]


@pytest.mark.parametrize(
    "mechanism, pattern", one_of_each_kind((name, p) for p in (NC, NS, CS) for name in supporting(p))
)
def test_every_mechanism_fits_every_slot_of_its_patterns(mechanism, pattern):
    torch.manual_seed(0)
    model = informer(mechanism, (pattern,))
    values, times = inputs(model)
    forecast = model(values, times)
    assert forecast.shape == (2, 7, 3)
    assert forecast.isfinite().all()
    forecast.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.head.weight.grad.abs().sum() > 0
    if attentions.get(mechanism).meta.mixes:  # the encoded past reaches the forecast
        assert model.past_embedding.values.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("chosen", [(NC,), (NS,), (CS,), (NC, CS)])
def test_replacing_a_pattern_leaves_the_other_slots_alone(chosen):
    before, after = filled(informer("softmax")), filled(informer("abc", chosen))
    patterns = {"encoder.0.attention": NS, "encoder.1.attention": NS, "decoder.0.attention": CS, "decoder.0.cross": NC}
    assert before == {name: f"Softmax ({pattern})" for name, pattern in patterns.items()}
    for name, pattern in patterns.items():
        assert after[name] == (f"ABC ({pattern})" if pattern in chosen else before[name])


@given(st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_distilling_keeps_every_second_place(length):
    with torch.no_grad():
        assert Distil(4).eval()(torch.randn(1, length, 4)).shape == (1, -(-length // 2), 4)


@pytest.mark.parametrize("past, prefix, horizon", [(1, 0, 1), (1, 1, 1), (2, 0, 5), (63, 63, 2)])
def test_odd_lengths_are_forecast_too(past, prefix, horizon):
    model = informer(sizes=dataclasses.replace(TINY, encoder_layers=3), past=past, prefix=prefix, horizon=horizon)
    assert model.eval()(*inputs(model)).shape == (2, horizon, 3)


def test_rows_of_a_batch_do_not_meet_when_scored():
    torch.manual_seed(0)
    model = informer(others={NS: "informer_probsparse", CS: "informer_probsparse"}).eval()
    values, times = inputs(model, batch=3)
    with torch.no_grad():
        together = model(values, times)
        alone = torch.cat([model(values[i : i + 1], times[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"encoder_layers": 0}, "encoder_layers of at least 1, got 0"),
        ({"dim": -8}, "dim of at least 1"),
        ({"dropout": 1.0}, "dropout is a rate from 0 to below 1"),
    ],
)
def test_impossible_sizes_are_refused(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        dataclasses.replace(TINY, **wrong)
