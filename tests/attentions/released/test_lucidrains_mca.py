"""The common package's memory-compressed attention: how it differs from `mca`."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(pattern, spec="lucidrains_mca"):
    torch.manual_seed(0)
    return attentions.get(spec)(8, 2, pattern).double().eval()


def test_the_blocks_of_a_prefix_lie_elsewhere():
    layer, x = build(CS), torch.randn(1, 12, 8).double()
    torch.testing.assert_close(layer(x[:, :9]), layer(x)[:, :9])
    assert not torch.allclose(layer(x[:, :11]), layer(x)[:, :11])


def test_with_a_mask_real_queries_see_a_learned_value_alone():
    layer, x = build(NS), torch.randn(1, 9, 8).double()
    y = layer(x, mask=torch.arange(9)[None] < 7)[0]
    torch.testing.assert_close(y[:7], layer.out(layer.null_value[0]).expand(7, -1))
    assert not torch.allclose(y[7], y[0])


def test_a_factor_below_one_is_refused():
    with pytest.raises(UsageError, match="factor=0"):
        build(NS, "lucidrains_mca(factor=0)")
