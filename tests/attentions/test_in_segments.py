"""A mechanism that reads all segments of a row at once gives the same results as reading them one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.attentions.auxiliary import collecting

XL = ["transformer_xl(memory={memory}, segment={segment}, same_length={flag})"]
COMPRESSIVE = [
    "compressive_transformer(memory={memory}, segment={segment}, compressed={compressed}, ratio={ratio}, "
    f"compression={kind})"
    for kind in ("channels", "conv", "mean", "max")
]
LENGTHS = st.lists(st.integers(1, 17), min_size=1, max_size=3)


SPECS = st.builds(
    lambda spec, **options: spec.format(**options),
    st.sampled_from([*XL, *COMPRESSIVE]),
    memory=st.integers(1, 11),
    segment=st.integers(0, 6),
    compressed=st.integers(0, 5),
    ratio=st.integers(1, 4),
    flag=st.booleans(),
)


def read(layer, way, rows, masks, select):
    """Outputs at real tokens, the auxiliary loss, gradients, and the carry, for several rows in turn."""
    outputs, carry = [], None
    rows = [row.clone().requires_grad_() for row in rows]
    layer.zero_grad()
    with collecting(layer):
        for row, mask in zip(rows, masks, strict=True):
            y, carry = way(layer, row, mask=mask, carry=carry)
            outputs.append(y if mask is None else y[mask])
            carry = carry if select is None else carry.select(select).forget(torch.tensor([False, True]))
        loss = layer.auxiliary_loss()
    total = sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs)
    (total if loss is None else total + loss).backward()
    kept = {
        name: [x[real] for x, real in zip(getattr(carry, name), getattr(carry, mask), strict=True)]
        for name, mask in (("x", "mask"), ("old", "old_mask"))
        if hasattr(carry, name)
    }
    learned = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": outputs, "loss": loss, "x": [row.grad for row in rows], "learned": learned, "kept": kept}


@settings(deadline=None, max_examples=60)
@given(
    SPECS,
    st.sampled_from([Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_SELF]),
    LENGTHS,
    st.sampled_from(["nowhere", "right", "holes"]),
    st.booleans(),
    st.booleans(),
)
def test_all_segments_at_once_are_the_segments_one_after_the_other(spec, pattern, lengths, padded, training, chosen):
    torch.manual_seed(0)
    layer = attentions.get(spec)(8, 2, pattern).double().train(training)
    rows = [torch.randn(2, n, 8, dtype=torch.float64) for n in lengths]
    masks = [None] * len(rows)
    if padded == "right":
        masks = [torch.arange(n) < torch.tensor([[n], [max(1, n // 2)]]) for n in lengths]
    if padded == "holes":
        masks = [torch.rand(2, n) < 0.6 for n in lengths]
    select = torch.tensor([1, 0]) if chosen else None
    found = read(layer, type(layer).in_segments, rows, masks, select)
    expected = read(layer, Attention.in_segments, rows, masks, select)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["transformer_xl", "compressive_transformer"])
def test_a_later_segment_has_no_gradient_in_an_earlier_one(name):
    layer = attentions.get(f"{name}(memory=9, segment=4)")(8, 2, Pattern.CAUSAL_SELF).double().train()
    x = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    y, carry = layer.in_segments(x)
    (gradient,) = torch.autograd.grad(y[:, 8:].square().sum(), x)
    assert not gradient[:, :8].any()
    assert gradient[:, 8:].any()
    assert not any(tensor.requires_grad for tensor in carry._tensors().values())
