"""LogSparse: powers of two pair by pair, convolutions over real tokens, and a pattern independent of the length."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_attend_is, assert_steps_continue

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF
POWERS = {2**t for t in range(12)}


@given(
    n=st.integers(1, 40),
    local=st.integers(0, 6),
    restart=st.none() | st.integers(1, 20),
    pattern=st.sampled_from([NS, CS]),
    seed=st.integers(0, 1_000),
)
@settings(deadline=None, max_examples=25)
def test_outputs_gradients_and_weights_follow_the_pattern(n, local, restart, pattern, seed):
    def sees(row, head, i, j):
        if j > i and pattern.causal:
            return False
        lag = abs(i - j) % (restart or n)
        return lag == 0 or lag in POWERS or lag < local

    layer = headwise(f"logsparse(local={local}, restart={restart})", pattern, channels=4)
    assert_attend_is(layer, sees, n, seed)


@pytest.mark.parametrize("options", ["", "local=4", "local=2, restart=5", "kernel=3", "kernel=6, local=3"])
def test_decoding_continues_any_prefix(options):
    assert_steps_continue(headwise(f"logsparse({options})", CS), n=17)


@pytest.mark.parametrize("pattern, left, right", [(CS, 3, 0), (NS, 2, 1)])
def test_queries_and_keys_are_convolutions_whose_padding_is_zero(pattern, left, right):
    layer = headwise("logsparse(kernel=4)", pattern, heads=1, channels=5)
    x, mask = torch.randn(2, 12, 5).double(), torch.ones(2, 12, dtype=torch.bool)
    mask[1, 5:7] = False
    # our maps store the latest tap first, torch the earliest
    q, k = (
        F.conv1d(
            F.pad((x * mask[..., None]).mT, (left, right)),
            project.weight.unflatten(1, (4, 5)).flip(1).movedim(1, 2),
            project.bias,
        ).mT
        for project in (layer.query, layer.key)
    )
    v = layer.value(x)
    y = layer.attend(q[:, None], k[:, None], v[:, None], key_mask=mask, query_mask=mask)
    torch.testing.assert_close(layer(x, mask=mask), layer.out(y[:, 0]))


@pytest.mark.parametrize("kernel", [1, 3])
def test_packed_rows_and_their_holes_give_what_padded_ones_give(kernel):
    layer = headwise(f"logsparse(kernel={kernel})", CS)
    x, mask = torch.randn(3, 20, 12).double(), torch.ones(3, 20, dtype=torch.bool)
    mask[0, 13:] = False
    for holes in (False, True):
        mask[1, 3:6] = not holes
        layout = Layout.of_mask(mask)
        torch.testing.assert_close(layer.packed(layout.pack(x), layout), layout.pack(layer(x, mask=mask)))


@pytest.mark.parametrize("kernel", [1, 2, 9])
def test_each_tap_adds_two_square_maps_to_softmax(kernel):
    found, softmax = (
        sum(p.numel() for p in attentions.get(spec)(16, 2, CS).parameters())
        for spec in (f"logsparse(kernel={kernel})", "softmax")
    )
    assert found - softmax == 2 * (kernel - 1) * 16**2


@pytest.mark.parametrize("options", ["local=-1", "restart=0", "kernel=0"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="at least, got"):
        headwise(f"logsparse({options})", CS)
