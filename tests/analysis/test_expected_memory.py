"""Memory of cells: what cards measured, what is estimated from them, and how many GPUs a cell is spread over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.analysis.expected_memory import ROOM, Need, Needs
from tests.results.factory import make_card

GIB = 1 << 30


def card(mechanism, peak, *, tier="full", **fields):
    made = make_card(mechanism, tier=tier, **fields)
    made["memory"] = {"peak_bytes": peak}
    made["environment"]["gpu_memory_bytes"] = 80 * GIB
    return made


@pytest.fixture
def needs():
    from longspan.results.device import device_of

    cards = [card("softmax", 30 * GIB), card("softmax", 40 * GIB, seed=1), card("linear", 10 * GIB, tier="lite")]
    return Needs(cards, device_of(cards[0]))


def of(needs, mechanism, tier="full"):
    one = make_card(mechanism, tier=tier)
    return needs.of(one["task"], mechanism, one["pattern"], one["protocol"], tier)


def test_a_measured_cell_needs_what_its_largest_run_took(needs):
    found = of(needs, "softmax")
    assert (found.bytes, found.source, found.guess) == (40 * GIB, "measured", False)
    assert needs.capacity == 80 * GIB


def test_a_tier_of_the_same_network_tells_too(needs):
    found = of(needs, "linear")
    assert (found.bytes, found.source, found.guess) == (10 * GIB, "from lite", True)


def test_a_cell_that_was_never_run_is_taken_to_need_as_much_as_the_largest_of_its_task(needs):
    found = of(needs, "performer")
    assert (found.bytes, found.source, found.guess) == (40 * GIB, "guess: as softmax", True)


def test_nothing_is_said_of_a_task_without_a_card(needs):
    assert needs.of("lm", "softmax", "causal_self", "longspan", "full").bytes is None


@pytest.mark.parametrize(
    "peak, parameters, expected",
    [
        (70 * GIB, 10**9, (1, "ddp")),
        (100 * GIB, 10**8, (2, "ddp")),  # mostly activations; each device holds half of them
        (100 * GIB, 6 * 10**9, (2, "fsdp")),  # mostly weights and moments, which DDP would copy to every device
        (400 * GIB, 10**9, (8, "ddp")),
        (1_000 * GIB, 10**9, None),
        (None, 0, (1, "ddp")),
    ],
)
def test_a_cell_is_spread_over_as_few_gpus_as_it_fits(peak, parameters, expected):
    assert Need(peak, parameters, "measured").spread(80 * GIB, 8) == expected


@given(st.integers(1, 10**12), st.integers(0, 10**11), st.integers(1, 16))
def test_what_is_spread_fits(peak, parameters, gpus):
    found = Need(peak, parameters, "").spread(80 * GIB, gpus)
    if found is not None:
        assert 1 <= found[0] <= gpus
        assert peak / found[0] <= ROOM * 80 * GIB
