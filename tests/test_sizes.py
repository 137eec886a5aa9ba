"""Printed parameter counts: the derived integer reads as it was printed, and every network here has it."""

import pytest

from longspan import api, attentions, tasks
from longspan.published.sizes import sizes

IDS = [f"{size.task}-{size.pattern}-{size.mechanism.partition('(')[0]}" for size in sizes()]


@pytest.mark.parametrize("size", sizes(), ids=IDS)
def test_the_derived_count_reads_as_it_is_printed_and_a_hundredth_more_does_not(size):
    assert size.reads_as_printed(size.derived)
    assert not size.reads_as_printed(size.derived + 10_000)
    assert not size.reads_as_printed(size.derived - 10_000)


@pytest.mark.parametrize("size", sizes(), ids=IDS)
def test_every_entry_can_be_built_in_its_slots(size):
    assert size.pattern in attentions.get(size.mechanism).meta.patterns
    assert (size.protocol, size.tier) == ("cab-2023", "full")


@pytest.mark.parametrize("size", sizes(), ids=IDS)
def test_the_network_here_has_the_printed_count_to_the_integer(size):
    if size.task not in tasks.names():
        pytest.skip(f"{size.task} is not on this shelf")
    (row,) = (r for r in api.params([size.task], [size.mechanism], pattern=size.pattern) if r["published"])
    assert row["total"] == size.derived
    assert row["published"]["agrees"]
    assert row["protocol"] == size.protocol


def test_a_plain_name_is_counted_with_the_options_that_the_protocol_gives_it():
    how = {"pattern": "causal_cross", "protocol": "cab-2023"}
    (plain,) = api.params(["tts_transformer"], ["abc"], **how)
    (named,) = api.params(["tts_transformer"], ["abc(slots=64)"], **how)
    assert plain["mechanism"] == named["mechanism"] == "abc(slots=64)"
    assert plain["total"] == named["total"] == 54_501_635
