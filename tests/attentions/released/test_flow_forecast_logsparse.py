"""LogSparse of Flow Forecast: its pattern depends on the length it is built for."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.attentions.released.flow_forecast_logsparse import seen_from
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_attend_is, assert_steps_continue

SPEC = "flow_forecast_logsparse(sub_length=4)"


def test_it_attends_to_what_its_rule_lists():
    layer = headwise(SPEC, Pattern.CAUSAL_SELF, max_length=30)
    assert_attend_is(layer, lambda row, head, i, j: j in seen_from(i, 30, 4), n=30, seed=1)


def test_decoding_continues_any_prefix():
    assert_steps_continue(headwise(SPEC, Pattern.CAUSAL_SELF, max_length=30), n=17)


def test_an_early_row_sees_more_the_longer_the_layer_was_built_for():
    assert len(seen_from(20, 21, 4)) < len(seen_from(20, 60, 4)) == 21


def test_an_anchor_at_the_beginning_misses_itself():
    assert 1 not in seen_from(33, 34, 16)
    assert 17 in seen_from(33, 34, 16)


def test_more_tokens_than_it_was_built_for_are_refused():
    layer = headwise(SPEC, Pattern.CAUSAL_SELF, max_length=8)
    with pytest.raises(UsageError, match="at most 8 tokens, got 9"):
        layer(torch.zeros(1, 9, 12).double())
