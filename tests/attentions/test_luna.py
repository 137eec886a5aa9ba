"""What is peculiar to Luna: the packed sequence, which is passed from layer to layer in noncausal patterns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from tests.attentions.parity import FULL, read

NS, CS, NC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS
SOURCES = {"pq_proj": "pack_query", "pc_proj": "pack_key", "pk_proj": "pack_key", "pv_proj": "pack_value"}


def layer(pattern, options="slots=3", dim=8, heads=2):
    torch.manual_seed(0)
    return attentions.get(f"luna({options})")(dim, heads, pattern).double().eval()


@pytest.mark.parametrize("path", sorted(FULL.glob("luna__n*.npz")), ids=lambda path: path.stem)
def test_what_is_packed_is_what_was_recorded(path):
    vector = read(path)
    sizes, arrays = vector.meta["hyperparameters"], vector.arrays
    options = f"slots={sizes['p_len']}, tied={sizes['tie_kv']}, pack_heads={sizes['pheads']}"
    built = layer(vector.pattern, options, arrays["x"].shape[2], sizes["heads"])
    for recorded, name in SOURCES.items():
        if f"param_{recorded}__weight" in arrays:
            states = {kind: arrays[f"param_{recorded}__{kind}"] for kind in ("weight", "bias")}
            getattr(built, name).load_state_dict(states)
    packed = built.pack(arrays["p"], arrays.get("context", arrays["x"]), vector.key_mask)
    torch.testing.assert_close(packed, arrays["out_p"], atol=1e-9, rtol=1e-9)


@settings(max_examples=10)
@given(st.integers(1, 9), st.booleans())
def test_causally_every_token_reads_what_is_packed_of_its_prefix(n, tied):
    """Against the formula, token by token."""
    built = layer(CS, f"slots=3, tied={tied}")
    x = torch.randn(1, n, 8, dtype=torch.float64)
    of_slots = built._split(built.pack_query(built.learned()))[0] / 2
    w = torch.log2(1 + 2 ** (built._split(built.pack_key(x))[0] @ of_slots.mT))  # [h, n, l]
    q, k = built._split(built.query(x))[0] / 2, built._split(built.key(x))[0]
    v = k if tied else built._split(built.value(x))[0]
    rows = []
    for t in range(n):
        keys = torch.einsum("hic,hil->hcl", k[:, : t + 1], w[:, : t + 1]) / (t + 1)
        values = torch.einsum("hil,hie->hle", w[:, : t + 1], v[:, : t + 1]) / (t + 1)
        rows.append(((q[:, t, None] @ keys).softmax(dim=-1) @ values)[:, 0].flatten())
    torch.testing.assert_close(built(x)[0], built.out(torch.stack(rows)))


def test_a_layer_packs_with_what_the_layer_before_packed():
    first, second = layer(NS), layer(NS)
    x = 3 * torch.randn(2, 11, 8, dtype=torch.float64)
    y, carry = first.carried(x)
    torch.testing.assert_close(y, first(x))
    p = first.learned().expand(2, -1, -1)
    torch.testing.assert_close(carry.p, first.norm(p + first.pack(p, x, None)))
    after, _ = second.carried(x, carry=carry)
    torch.testing.assert_close(after, second._read(x, *second._slots(second.pack(carry.p, x, None))))
    assert (after - second(x)).abs().max() > 1e-3


def test_padding_is_packed_nowhere():
    built, x = layer(NS), torch.randn(1, 7, 8, dtype=torch.float64)
    mask = torch.tensor([[True] * 5 + [False] * 2])
    y, carry = built.carried(x, mask=mask)
    short, shorter = built.carried(x[:, :5])
    torch.testing.assert_close(y[:, :5], short)
    torch.testing.assert_close(carry.p, shorter.p)


@pytest.mark.parametrize("pattern", [CS, NC])
def test_nothing_is_carried_where_it_would_know_later_tokens_or_another_sequence(pattern):
    built, x = layer(pattern), torch.randn(1, 6, 8, dtype=torch.float64)
    context = (torch.randn(1, 4, 8, dtype=torch.float64),) if pattern.cross else ()
    y, carry = built.carried(x, *context)
    assert carry is None
    torch.testing.assert_close(y, built(x, *context))
