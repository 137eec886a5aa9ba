"""FLASH starts small: its distance bias, squared and summed over a group, does not swamp the tokens."""

import pytest
import torch

from longspan import attentions
from longspan.attentions.base import SELF_PATTERNS


@pytest.mark.parametrize("pattern", SELF_PATTERNS)
def test_what_a_new_layer_adds_to_its_tokens_is_no_larger_than_these(pattern):
    torch.manual_seed(0)
    layer = attentions.get("flash")(64, 2, pattern)
    assert layer(torch.randn(2, 256, 64)).std() < 1  # with biases of about 1 it is 140 to 310, and learns nothing
