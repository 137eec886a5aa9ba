"""GPT-2 and RoBERTa: exact parameter counts, nothing from the future, one token at a time the same as all at once."""

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.fairseq_sinusoid import fairseq_sinusoid
from longspan.backbones.gpt2 import GPT2, GPT2Sizes
from longspan.backbones.roberta import RoBERTa
from longspan.core.errors import UsageError
from tests.attentions.cases import each_case
from tests.backbones.representatives import one_of_each_kind

CAUSAL = [spec for spec, pattern in each_case() if pattern is Pattern.CAUSAL_SELF]
NONCAUSAL = [spec for spec, pattern in each_case() if pattern is Pattern.NONCAUSAL_SELF]
TINY = GPT2Sizes(dim=8, heads=2, layers=2, mlp=16, attention_dropout=0.0)
BASE = GPT2Sizes(dim=768, heads=12, layers=12, mlp=3_072)
VOCABULARY, LENGTH = 13, 40

S4D = "s4d(channels=8, state={}, init='inv', output='linear', tied=True, bidirectional=False)"
PUBLISHED = [  # spec/cab.md section 5, tables 16 and 17
    (GPT2, 48_528, 8_192, "softmax", 122_325_504),
    (GPT2, 48_528, 8_192, "local(window=16)", 122_325_504),
    (GPT2, 48_528, 8_192, "abc(slots=64)", 122_423_808),
    (GPT2, 48_528, 8_192, "cab_longshort", 136_619_664),
    (GPT2, 48_528, 8_192, S4D.format(64), 155_411_712),
    (RoBERTa, 48_529, 2_048, "softmax", 124_541_329),
    (RoBERTa, 48_529, 2_048, "performer(features=16)", 124_541_329),
    (RoBERTa, 48_529, 2_048, "abc(slots=64)", 124_639_633),
    (RoBERTa, 48_529, 2_048, "longshort(landmarks=16)", 126_349_969),
    (RoBERTa, 48_529, 2_048, S4D.format(16), 154_088_017),
]


@functools.cache
def tiny(network: type[nn.Module], spec: str) -> nn.Module:
    torch.manual_seed(0)
    model = network(attentions.get(spec), TINY, vocabulary=VOCABULARY, length=LENGTH)
    return model.double().eval()


def words(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("network, vocabulary, length, spec, wanted", PUBLISHED)
def test_parameters_are_the_published_ones_to_the_integer(network, vocabulary, length, spec, wanted):
    with torch.device("meta"):
        model = network(attentions.get(spec), BASE, vocabulary=vocabulary, length=length)
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


@pytest.mark.parametrize("spec", one_of_each_kind(CAUSAL))
@given(cut=st.integers(1, 32), seed=st.integers(0, 3))
@settings(max_examples=8)
def test_future_tokens_never_change_past_logits(spec, cut, seed):
    model, tokens = tiny(GPT2, spec), words(2, 33, seed=seed)
    changed = torch.cat([tokens[:, :cut], (tokens[:, cut:] + 1 + seed) % VOCABULARY], dim=1)
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :cut], before[:, :cut])
    assert (after[:, cut:] != before[:, cut:]).any(dim=-1).all()  # a changed token does change its own logits


@pytest.mark.parametrize("spec", one_of_each_kind(CAUSAL))
@pytest.mark.parametrize("prefix", [0, 1, 20])
def test_one_token_at_a_time_gives_the_logits_of_the_whole(spec, prefix):
    model, tokens = tiny(GPT2, spec), words(2, 33)
    with torch.no_grad():
        whole = model(tokens)
        found, state = model.prefill(tokens[:, :prefix])
        rows = list(found.unbind(1))
        for token in tokens[:, prefix:].unbind(1):
            logits, state = model.step(token, state)
            rows.append(logits)
    torch.testing.assert_close(torch.stack(rows, dim=1), whole)


def test_rows_of_a_decoding_go_on_in_any_order():
    model, tokens = tiny(GPT2, "softmax"), words(3, 12)
    order = torch.tensor([2, 0])
    with torch.no_grad():
        _, state = model.prefill(tokens[:, :11])
        assert state.nbytes > 0
        found, _ = model.step(tokens[order, 11], state.select(order))
        torch.testing.assert_close(found, model(tokens)[order, -1])


@pytest.mark.parametrize("network", [GPT2, RoBERTa])
def test_the_loss_of_targets_is_the_cross_entropy_of_the_logits(network):
    model, tokens, target = tiny(network, "softmax"), words(2, 9), words(2, 9, seed=1)
    with torch.no_grad():
        logits = model(tokens)
        found = model(tokens, target) if network is GPT2 else model(tokens, None, None, target)
    wanted = nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    torch.testing.assert_close(found, wanted)


def test_gpt2_reads_on_beyond_the_length_it_was_built_for():
    model = tiny(GPT2, "softmax")
    longer = GPT2(attentions.get("softmax"), TINY, vocabulary=VOCABULARY, length=3 * LENGTH).double().eval()
    longer.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(words(1, 3 * LENGTH)), longer(words(1, 3 * LENGTH)))


def test_fairseq_counts_from_two_and_has_sines_before_cosines():
    """The vector of spec/cab.md 3.5 for a width of 8."""
    first = [0.909297, 0.092699, 0.004309, 0.0002, -0.416147, 0.995694, 0.999991, 1.0]
    torch.testing.assert_close(fairseq_sinusoid(3, 8)[0], torch.tensor(first), atol=1e-6, rtol=0)
    assert fairseq_sinusoid(4, 8)[1:].equal(torch.stack([fairseq_sinusoid(n, 8)[n - 1] for n in (2, 3, 4)]))


def test_gpt2_has_the_sinusoids_it_is_asked_for_also_beyond_its_length_and_when_it_decodes():
    fairseq = replace(TINY, sinusoid="fairseq")
    model = GPT2(attentions.get("softmax"), fairseq, vocabulary=VOCABULARY, length=6).double().eval()
    assert model.positions.equal(fairseq_sinusoid(6, TINY.dim).double())
    tokens = words(1, 13)
    with torch.no_grad():
        logits, state = model.prefill(tokens[:, :5])
        steps = []
        for place in range(5, 13):
            y, state = model.step(tokens[:, place], state)
            steps.append(y)
        torch.testing.assert_close(torch.cat([logits, torch.stack(steps, dim=1)], dim=1), model(tokens))
    assert model.positions[:13].equal(fairseq_sinusoid(13, TINY.dim).double())


@pytest.mark.parametrize("spec", one_of_each_kind(NONCAUSAL))
def test_padding_never_matters_to_roberta(spec):
    model, tokens = tiny(RoBERTa, spec), words(2, 20)
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    changed = torch.where(mask, tokens, (tokens + 1) % VOCABULARY)
    with torch.no_grad():
        torch.testing.assert_close(model(changed, mask)[mask], model(tokens, mask)[mask])


def test_roberta_answers_for_the_places_asked_for():
    model, tokens = tiny(RoBERTa, "softmax"), words(2, 20)
    places = torch.tensor([[3, 19], [0, 7]])
    with torch.no_grad():
        logits = model(tokens)
        torch.testing.assert_close(model(tokens, None, places), logits[torch.arange(2)[:, None], places])


def test_roberta_refuses_more_tokens_than_it_has_positions():
    with pytest.raises(UsageError, match="learned 40 positions, got a row of 41 tokens"):
        tiny(RoBERTa, "softmax")(words(1, LENGTH + 1))


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"layers": -1}, {"dropout": 1.0}, {"attention_dropout": -0.1}])
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        GPT2Sizes(**{"dim": 8, "heads": 2, "layers": 1, "mlp": 8} | wrong)
