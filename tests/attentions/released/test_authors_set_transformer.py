"""The authors' induced set attention: two whole blocks."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError


def build(pattern=Pattern.NONCAUSAL_SELF, **shell):
    torch.manual_seed(0)
    return attentions.get("authors_set_transformer(points=4)")(12, 2, pattern, **shell).double().eval()


def test_padding_is_hidden():
    layer, x = build(), torch.randn(1, 8, 12, dtype=torch.float64)
    mask = torch.arange(8)[None] < 5
    torch.testing.assert_close(layer(x, mask=mask)[:, :5], layer(x[:, :5]))


def test_a_query_that_sees_nothing_new_passes_through_its_own_projection():
    """The residual is the projected query, so it remains even where all values are 0."""
    layer, x = build(), torch.randn(1, 8, 12, dtype=torch.float64)
    torch.nn.init.zeros_(layer.mab1.fc_v.weight)
    torch.nn.init.zeros_(layer.mab1.fc_v.bias)
    o = layer.mab1.fc_q(x)
    torch.testing.assert_close(layer(x), o + layer.mab1.fc_o(o).relu())


def test_another_inner_width_comes_back_to_that_of_the_tokens():
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert build(inner=16)(x).shape == x.shape


def test_no_inducing_point_is_refused():
    with pytest.raises(UsageError, match="points=0"):
        attentions.get("authors_set_transformer(points=0)")(12, 2, Pattern.NONCAUSAL_SELF)
