"""What is peculiar to the Compressive Transformer: which tokens are evicted, and what their compression learns from."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import collecting
from longspan.core.errors import UsageError
from tests.attentions.parity import FULL, read

CS = Pattern.CAUSAL_SELF


def layer(memory, compressed, ratio, compression="mean", dim=6, heads=2):
    torch.manual_seed(0)
    options = f"memory={memory}, compressed={compressed}, ratio={ratio}, compression={compression}"
    return attentions.get(f"compressive_transformer({options})")(dim, heads, CS).double().eval()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 6), st.integers(0, 5), st.integers(1, 4), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_every_token_is_in_memory_or_compressed_once_or_too_old(memory, compressed, ratio, segments):
    """With mean compression, tokens numbered 0, 1, 2, ... show where they went."""
    built, carry, count = layer(memory, compressed, ratio), None, sum(segments)
    stream = torch.arange(count, dtype=torch.float64)[None, :, None].expand(1, -1, 6)
    for part in stream.split(segments, dim=1):
        _, carry = built.carried(part, carry=carry)
    kept = carry.x[carry.mask][:, 0].tolist()
    old = carry.old[carry.old_mask][:, 0].tolist()
    evicted = count - len(kept)
    assert evicted % ratio == 0
    assert memory <= len(kept) < memory + ratio or evicted == 0
    assert kept == list(range(evicted, count))
    groups = [first + (ratio - 1) / 2 for first in range(0, evicted, ratio)]
    assert old == pytest.approx(groups[max(0, len(groups) - compressed) :])


@pytest.mark.parametrize("ratio", [2, 3])  # groups that fill the memory, and groups that leave a rest
def test_compressed_tokens_come_right_before_the_memory_whatever_room_it_leaves(ratio):
    """Keys are [compressed, memory, segment] without a gap: distances do not depend on empty places of a memory."""
    built, carry, found = layer(4, 4, ratio, "max"), None, []
    with torch.no_grad():
        for weight in (built.distance.weight, built.u, built.w):
            weight.normal_()
    built.segment, x = 4, torch.randn(1, 24, 6, dtype=torch.float64)
    for part in x.split(4, dim=1):
        if carry is not None:
            carry = replace(carry, x=carry.x[:, carry.mask[0]], mask=carry.mask[:, carry.mask[0]])
            carry = replace(carry, old=carry.old[:, carry.old_mask[0]], old_mask=carry.old_mask[:, carry.old_mask[0]])
            roomy = replace(carry, x=F.pad(carry.x, (0, 0, 3, 0)), mask=F.pad(carry.mask, (3, 0)))
            torch.testing.assert_close(built.carried(part, carry=roomy)[0], built.carried(part, carry=carry)[0])
        y, carry = built.carried(part, carry=carry)
        found.append(y)
    torch.testing.assert_close(built.in_segments(x)[0], torch.cat(found, dim=1))


def test_the_task_teaches_the_compression_nothing_and_the_auxiliary_loss_nothing_else():
    built, carry = layer(4, 4, 2, "conv").train(), None
    x = torch.randn(2, 12, 6, dtype=torch.float64, requires_grad=True)
    with collecting(built):
        for part in x.split(4, dim=1):
            y, carry = built.carried(part, carry=None if carry is None else carry.detached())
        loss = built.auxiliary_loss()
    y.square().sum().backward(retain_graph=True)
    assert built.compress.weight.grad is None or not built.compress.weight.grad.any()
    built.zero_grad()
    x.grad = None
    loss.backward()
    learning = {name for name, p in built.named_parameters() if p.grad is not None and p.grad.any()}
    assert learning == {"compress.weight", "compress.bias"}
    assert x.grad is None or not x.grad.any()


def test_an_auxiliary_loss_below_0_is_refused():
    with pytest.raises(UsageError, match=r"auxiliary=-0\.5"):
        attentions.get("compressive_transformer(auxiliary=-0.5)")(6, 2, CS)


def test_a_compression_that_loses_nothing_has_no_loss():
    built = layer(2, 4, 1, "conv").train()
    with torch.no_grad():
        built.compress.weight.copy_(torch.eye(6)[..., None])
        built.compress.bias.zero_()
    with collecting(built):
        built.carried(torch.randn(2, 9, 6, dtype=torch.float64))
        assert float(built.auxiliary_loss().detach()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.skipif(not FULL.is_dir(), reason="the vectors are not beside this clone")
@pytest.mark.parametrize("path", sorted(FULL.glob("compressive_transformer__*.npz")), ids=lambda path: path.stem)
def test_memories_and_auxiliary_loss_are_those_recorded_where_groups_are_whole(path):
    vector = read(path)
    a, sizes = vector.arrays, vector.meta["hyperparameters"]
    heads, _, channels = a["param_pos_emb"].shape
    built = layer(sizes["mem_len"], sizes["cmem_len"], sizes["ratio"], "conv", heads * channels, heads)
    leaving = a["mem"].shape[1] + a["x"].shape[1] - sizes["mem_len"]
    if leaving <= 0 or leaving % sizes["ratio"]:
        return  # nothing is evicted, or the package drops the newest evicted tokens
    key, value = a["param_to_kv__weight"].chunk(2)
    weights = {"query": a["param_to_q__weight"], "key": key, "value": value}
    with torch.no_grad():
        for name, weight in weights.items():
            built.get_submodule(name).weight.copy_(weight)
            built.get_submodule(name).bias.zero_()
        built.compress.weight.copy_(a["param_compress_mem_fn__conv__weight"])
        built.compress.bias.copy_(a["param_compress_mem_fn__conv__bias"])
    real = [torch.ones(a[name].shape[:2], dtype=torch.bool) for name in ("mem", "cmem")]
    carry = built.carry_type(a["mem"], real[0], a["cmem"], real[1])
    with collecting(built.train(sizes["training"])):
        _, after = built.carried(a["x"], carry=carry)
        loss = built.auxiliary_loss()
    torch.testing.assert_close(after.x[:, -sizes["mem_len"] :], a["new_mem"])
    torch.testing.assert_close(after.old, a["new_cmem"])
    if sizes["training"]:
        assert float(loss.detach()) == pytest.approx(float(a["aux_loss"]), rel=1e-6)
