"""Long Range Arena's Sinkhorn attention: strided groups, sorting without effect, a mask on the wrong tokens."""

import dataclasses

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.core.errors import UsageError

NS = Pattern.NONCAUSAL_SELF


def build(options="block=4", heads=2, channels=3):
    torch.manual_seed(0)
    return attentions.get(f"lra_sinkhorn({options})")(heads * channels, heads, NS).double().eval()


def inputs(n, rows=2):
    torch.manual_seed(1)
    return [torch.randn(rows, 2, n, 3, dtype=torch.float64) for _ in range(3)]


def softmax(q, k, v, seen=None):
    scores = q @ k.mT / 3**0.5
    return (scores if seen is None else scores.masked_fill(~seen, -1e10)).softmax(dim=-1) @ v


def test_a_group_attends_to_itself_and_to_the_sum_of_all_groups():
    q, k, v = inputs(20)
    found = build().attend(q, k, v)
    for g in range(5):
        members = torch.arange(g, 20, 5)
        sums = [sum(u[:, :, torch.arange(other, 20, 5)] for other in range(5)) for u in (k, v)]
        expected = softmax(q[:, :, members], k[:, :, members], v[:, :, members]) + softmax(q[:, :, members], *sums)
        torch.testing.assert_close(found[:, :, members], expected)


def test_the_sort_network_has_no_effect():
    layer, tensors = build(), inputs(20)
    before = layer.attend(*tensors)
    (gradient,) = torch.autograd.grad(before.square().sum(), layer.sort_kernel)
    assert gradient.abs().max() < 1e-10
    with torch.no_grad():
        layer.sort_kernel.normal_(std=3)
    torch.testing.assert_close(layer.attend(*tensors), before)


def test_more_groups_than_the_network_knows_are_harmless_unless_it_counts():
    tensors = inputs(40)
    torch.testing.assert_close(build("block=4, max_blocks=3").attend(*tensors), build().attend(*tensors))
    with pytest.raises(UsageError, match="at most 3 groups, got 10"):
        build("block=4, max_blocks=3, activation=sinkhorn").attend(*tensors)


def test_the_mask_hides_other_tokens_than_padding():
    q, k, v = (u.float() for u in inputs(12, rows=1))  # where a query without keys has uniform weights over all of them
    mask = torch.ones(1, 12, dtype=torch.bool)
    mask[0, 9:] = False  # as the mask is reshaped: the last three positions of the third and last group
    found = build().float().attend(q, k, v, key_mask=mask)
    seen = torch.ones(4, 4, dtype=torch.bool)
    sums = [u.unflatten(2, (4, 3)).sum(dim=3) for u in (k, v)]
    for g in range(3):
        members, hidden = torch.arange(g, 12, 3), seen.clone()
        if g == 2:
            hidden[1:], hidden[:, 1:] = False, False
        own = softmax(*(u[:, :, members] for u in (q, k, v)), hidden)
        torch.testing.assert_close(found[:, :, members], own + softmax(q[:, :, members], *sums))


def test_a_query_from_which_all_is_hidden_gets_a_mean():
    q, k, v = (u.float() for u in inputs(8))
    found = build().float().attend(q, k, v, key_mask=torch.zeros(2, 8, dtype=torch.bool))
    groups = v.unflatten(2, (4, 2))
    expected = groups.mean(dim=2) + groups.sum(dim=3).mean(dim=2, keepdim=True)
    torch.testing.assert_close(found, expected[:, :, None].expand(-1, -1, 4, -1, -1).flatten(2, 3))


@pytest.mark.parametrize("n", [1, 3, 5, 13])
def test_zeros_that_fill_a_row_up_are_never_seen(n):
    layer, (q, k, v) = build("block=4"), inputs(n)
    groups = -(-n // 4)
    found = layer.attend(q, k, v)
    columns = [[p for p in range(s * groups, (s + 1) * groups) if p < n] for s in range(4)]
    sums = [torch.stack([u[:, :, c].sum(dim=2) for c in columns if c], dim=2) for u in (k, v)]
    for g in range(groups):
        members = torch.arange(g, n, groups)
        expected = softmax(*(u[:, :, members] for u in (q, k, v))) + softmax(q[:, :, members], *sums)
        torch.testing.assert_close(found[:, :, members], expected)


@pytest.mark.parametrize("activation", ["softmax", "sinkhorn"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_it_runs_in_the_encoder_on_padded_and_full_rows(pooling, activation):
    sizes = dataclasses.replace(Sizes(12, 2, 2, 16), pooling=pooling)
    attention = attentions.get(f"lra_sinkhorn(block=4, activation={activation})")
    model = EncoderClassifier(attention, sizes, vocabulary=17, classes=10, length=24)
    for n, lengths in [(24, None), (1, None), (7, [7, 2, 1])]:
        model(torch.randint(1, 17, (3, n)), lengths).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_gradients_under_a_mask_are_those_of_the_formula_in_single_precision():
    """Where all keys of a query are hidden, fused kernels give gradients too large by a factor of the key count."""
    layer = attentions.get("lra_sinkhorn(block=4)")(8, 2, Pattern.NONCAUSAL_SELF, bias=False)
    torch.manual_seed(0)
    x, mask, n, groups = torch.randn(2, 12, 8), torch.rand(2, 12) < 0.4, 12, 3
    direction = torch.randn(2, 12, 8)
    found = torch.autograd.grad((layer(x, mask=mask) * direction).sum(), [layer.query.weight, layer.key.weight])
    q, k, v = (p(x).unflatten(-1, (2, 4)) for p in (layer.query, layer.key, layer.value))
    hidden = ~mask.reshape(2, groups, 4)
    y = [[[None] * 2 for _ in range(n)] for _ in range(2)]
    for row in range(2):
        for head in range(2):
            for g in range(groups):
                own = [u[row, g::groups, head] for u in (q, k, v)]
                summed = [own[0], *(sum(u[row, other::groups, head] for other in range(groups)) for u in (k, v))]
                pair = hidden[row, :, :, None] | hidden[row, :, None, :]
                for (a, b, c), lowered in ((own, pair[g]), (summed, pair.all(dim=0))):
                    part = (a @ b.T / 2 - 1e10 * lowered.float()).softmax(dim=-1) @ c
                    for s in range(4):
                        before = y[row][s * groups + g][head]
                        y[row][s * groups + g][head] = part[s] if before is None else before + part[s]
    expected = layer.out(torch.stack([torch.stack([torch.cat(token) for token in row]) for row in y]))
    torch.testing.assert_close(layer(x, mask=mask), expected)
    wanted = torch.autograd.grad((expected * direction).sum(), [layer.query.weight, layer.key.weight])
    torch.testing.assert_close(found, wanted)
