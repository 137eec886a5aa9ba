"""Routing attention of the PyTorch package: its choice depends on later tokens, which is why it is a twin."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise

NS, CS, NC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS


@pytest.mark.parametrize("shared", [True, False])
def test_later_tokens_change_earlier_outputs_though_no_gradient_shows_it(shared):
    layer = headwise(f"pypi_routing_transformer(clusters=4, window=6, shared={shared})", CS)
    x = torch.randn(1, 24, 12).double().requires_grad_()
    changed = torch.cat([x[:, :16], torch.randn(1, 8, 12).double()], dim=1)
    assert (layer(x)[:, :16] - layer(changed)[:, :16]).abs().max() > 0.01
    (gradient,) = torch.autograd.grad(layer(x)[:, :16].sum(), x)
    assert not gradient[:, 16:].any()


def test_padding_may_take_the_place_of_tokens():
    layer = headwise("pypi_routing_transformer(clusters=2, window=3)", NS)
    x, mask = torch.randn(1, 12, 12).double(), torch.arange(12)[None] < 8
    alone = layer(x[:, :8])
    assert (layer(x, mask=mask)[:, :8] - alone).abs().max() > 0.01


def test_shared_maps_are_one_map():
    layer = headwise("pypi_routing_transformer(shared=True)", CS)
    assert layer.key is layer.query
    assert len(list(layer.projections())) == 3


def test_two_sequences_share_nothing():
    with pytest.raises(UsageError, match="cannot be shared"):
        headwise("pypi_routing_transformer(shared=True)", NC)


@pytest.mark.parametrize("options", ["clusters=0", "window=0", "memory=-1"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="at least 1"):
        headwise(f"pypi_routing_transformer({options})", CS)
