"""Flowformer as released for Long Range Arena: heads compete with one another, and padding takes part."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise

NS = Pattern.NONCAUSAL_SELF


def test_with_one_head_nothing_competes():
    """The softmax over one head is 1, so no key is reweighted; the published method weighs keys against one another."""
    q, k, v = torch.randn(3, 1, 1, 8, 6, dtype=torch.float64)
    phi_q, phi_k = (x.relu() + 1e-6 for x in (q, k))
    weights = phi_q @ phi_k.mT
    y = headwise("lra_flowformer", NS, heads=1).attend(q, k, v)
    even = 8 * (weights @ v) / weights.sum(dim=-1, keepdim=True)
    ratio = y / even  # the share allocated to each query
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-4, atol=1e-4)  # eps of the flows
    assert ((ratio > 0) & (ratio < 1)).all()


def test_another_head_changes_the_output():
    q, k, v = torch.randn(3, 1, 2, 8, 6, dtype=torch.float64)
    layer, other = headwise("lra_flowformer", NS), k.clone()
    other[:, 1] = torch.randn_like(other[:, 1])
    assert not torch.allclose(layer.attend(q, k, v)[:, 0], layer.attend(q, other, v)[:, 0])


def test_padding_counts_as_tokens():
    x, mask = torch.randn(1, 8, 12, dtype=torch.float64), torch.ones(1, 8, dtype=torch.bool)
    mask[:, 5:] = False
    layer = headwise("lra_flowformer", NS)
    torch.testing.assert_close(layer(x, mask=mask), layer(x))


def test_a_negative_eps_is_refused():
    with pytest.raises(UsageError, match="choose 0 or a positive number"):
        headwise("lra_flowformer(eps=-1.0)", NS)
