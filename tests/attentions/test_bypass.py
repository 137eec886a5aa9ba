"""A class that overrides its definition but inherits a shortcut that bypasses it is refused; the others are not."""

import pytest

from longspan import attentions
from longspan.attentions import Attention, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.base import MaskedAttention, checked_patterns
from longspan.attentions.bypass import ROWS, STEPS, refuse_bypassed
from longspan.attentions.local import Local
from longspan.attentions.softmax import Softmax
from longspan.core.errors import PluginError, UsageError


def doubled(self, *inputs, **masks):
    """Stands in for any overridden definition; it is never called."""


def a_subclass(base, **members):
    return type("Mine", (base,), members)


@pytest.mark.parametrize("name", attentions.names())
def test_no_built_in_is_refused(name):
    refuse_bypassed(attentions.get(name).cls)


@pytest.mark.parametrize(
    "base, overridden, sentence",
    [
        (
            Softmax,
            "forward",
            r"Mine overrides forward, but inherits packed, first, .*from HeadwiseAttention, which do not",
        ),
        (Softmax, "attend", "Mine overrides attend, but inherits attend_packed, attend_first_packed from Softmax"),
        (
            Local,
            "attend",
            "Mine overrides attend, but inherits attend_packed, begin, advance from Local, which do not call it",
        ),
    ],
)
def test_an_override_that_would_be_passed_by_is_refused(base, overridden, sentence):
    with pytest.raises(PluginError, match=sentence):
        refuse_bypassed(a_subclass(base, **{overridden: doubled}))


def test_decoding_that_was_written_for_another_attend_is_refused():
    ragged = {name: vars(HeadwiseAttention)[name] for name in ("attend_packed", "attend_first_packed")}
    with pytest.raises(PluginError, match="inherits begin, advance from MaskedAttention"):
        refuse_bypassed(a_subclass(Softmax, attend=doubled, **ragged))


@pytest.mark.parametrize(
    "mine",
    [
        a_subclass(Softmax),
        a_subclass(Softmax, __init__=lambda self, *sizes, **shell: None),
        a_subclass(Softmax, forward=doubled, **{name: vars(Attention)[name] for name in (*ROWS, *STEPS)}),
        a_subclass(Softmax, forward=doubled, meta=AttentionMeta("M", "none", "own", "n", (Pattern.NONCAUSAL_CROSS,))),
        a_subclass(MaskedAttention, attend=doubled, visible=doubled, meta=Softmax.meta),
    ],
)
def test_a_class_that_is_consistent_is_not_refused(mine):
    refuse_bypassed(mine)


@pytest.mark.parametrize("patterns", [("causal",), "causal_self", ()])
def test_patterns_that_are_none_are_one_sentence(patterns):
    with pytest.raises(UsageError, match="The patterns of 'Mine' are"):
        checked_patterns("Mine", patterns)


def test_names_of_patterns_are_patterns():
    assert checked_patterns("Mine", ("causal_self", "CC")) == (Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS)
