"""Long Range Arena's Synthesizer: a random matrix added to the dot product, and dense scores read the wrong way."""

import pytest
import torch

from longspan import attentions, runs
from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.core.errors import UsageError

NS = Pattern.NONCAUSAL_SELF


def build(options="", *, longest=14, **shell):
    torch.manual_seed(0)
    return attentions.get(f"lra_synthesizer({options})")(6, 2, NS, max_length=longest, **shell).double().eval()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def split(u):
    return u.unflatten(-1, (2, 3)).transpose(1, 2)


def test_a_matrix_is_added_to_the_scores_of_attention():
    layer, x = build(), randn(2, 9, 6)
    q, k, v = (split(project(x)) for project in (layer.query, layer.key, layer.value))
    weights = torch.softmax(q @ k.mT / 3**0.5 + layer.random[:, :9, :9], dim=-1)
    torch.testing.assert_close(layer(x), layer.out((weights @ v).transpose(1, 2).flatten(2)))


def test_without_a_matrix_it_is_softmax_attention():
    layer, softmax, x = build(), attentions.get("softmax")(6, 2, NS).double().eval(), randn(2, 9, 6)
    with torch.no_grad():
        layer.random.zero_()
    softmax.load_state_dict({name: p for name, p in layer.state_dict().items() if name != "random"})
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    torch.testing.assert_close(layer(x, mask=mask)[mask], softmax(x, mask=mask)[mask])


def test_dense_scores_are_read_across_heads_and_places():
    layer, x, n = build("kind=dense, dot=False"), randn(2, 5, 6), 5
    scores = layer.scores(x)
    for h in range(2):
        for i in range(n):
            token, head = divmod(h * n + i, 2)
            hidden = torch.relu(layer.hidden(x[:, token]))[:, 3 * head : 3 * head + 3]
            torch.testing.assert_close(scores[:, h, i], layer.to_places(hidden)[:, :n])


def test_a_padded_query_gets_the_mean_of_everything():
    layer, x = build(), randn(2, 9, 6)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    expected = layer.out(layer.value(x[1]).mean(dim=0))
    torch.testing.assert_close(layer(x, mask=mask)[1, 4:], expected.expand(5, 6))


@pytest.mark.parametrize("kind", ["random", "factorised_random", "dense"])
def test_without_the_dot_product_padding_is_seen(kind):
    layer, x = build(f"kind={kind}, dot=False"), randn(2, 9, 6)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    assert torch.equal(layer(x, mask=mask), layer(x))
    assert not any(name.startswith(("query", "key")) for name, _ in layer.named_parameters())


def test_the_matrices_of_listops_are_fourteen_times_the_network():
    counted = runs.count_parameters("listops", "lra_synthesizer", "lra-released", "full")["total"]
    assert counted == 8_948_746 + 4 * 8 * 2_001**2


@pytest.mark.parametrize("options", ["", "kind=factorised_random", "kind=dense", "kind=dense, dot=False"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_it_runs_in_the_encoder_on_padded_and_full_rows(options, pooling):
    attention = attentions.get(f"lra_synthesizer({options})")
    model = EncoderClassifier(attention, Sizes(12, 2, 2, 16, pooling=pooling), vocabulary=17, classes=10, length=24)
    for n, lengths in [(24, None), (1, None), (7, [7, 2, 1])]:
        model(torch.randint(1, 17, (3, n)), lengths).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_length_must_be_known_and_kept():
    with pytest.raises(UsageError, match="max_length="):
        build(longest=None)
    with pytest.raises(UsageError, match="at most 14 tokens, got 15"):
        build()(randn(1, 15, 6))
    with pytest.raises(UsageError, match="at least 1 column"):
        build("rank=0")


def test_scores_of_a_padded_query_are_differentiated_as_in_single_precision():
    torch.manual_seed(0)
    layer = attentions.get("lra_synthesizer")(6, 2, Pattern.NONCAUSAL_SELF, max_length=9, bias=False)
    x, direction = torch.randn(2, 9, 6), torch.randn(2, 9, 6)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    q, k, v = (p(x).unflatten(-1, (2, 3)).transpose(1, 2) for p in (layer.query, layer.key, layer.value))
    hidden = ~(mask[:, None, :, None] & mask[:, None, None, :])
    scores = layer.random + q @ k.mT / 3**0.5 - 1e10 * hidden.float()
    expected = layer.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
    weights = [layer.random, layer.query.weight, layer.key.weight]
    wanted = torch.autograd.grad((expected * direction).sum(), weights)
    found = torch.autograd.grad((layer(x, mask=mask) * direction).sum(), weights)
    torch.testing.assert_close(found, wanted)
