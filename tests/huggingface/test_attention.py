"""Mechanisms inside tiny random models of transformers: the same numbers, masks and caches, or a clear error."""

import pytest
import torch

from longspan import huggingface
from longspan.core.errors import UnsupportedPattern, UsageError

transformers = pytest.importorskip("transformers", reason="transformers is an extra: longspan[huggingface]")

CAUSAL = ["softmax", "linear", "performer(features=16)", "local(window=8)", "cosformer", "abc(slots=8)"]
BOTH = ["softmax", "linear", "performer(features=16)", "local(window=8)", "cosformer", "nystromformer(landmarks=4)"]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64, pad_token_id=0, **more
    )
    return transformers.LlamaForCausalLM(config).eval()


def bert(**more):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, vocab_size=50, max_position_embeddings=64, **more)
    return transformers.BertModel(config).eval()


@pytest.fixture
def tokens():
    torch.manual_seed(1)
    return torch.randint(1, 50, (2, 20))


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("make", [llama, bert])
def test_softmax_gives_what_the_model_gives(make, padding, tokens):
    mask = torch.ones_like(tokens)
    if padding != "none":
        mask[1, slice(0, 6) if padding == "left" else slice(14, 20)] = 0
    model = make()
    with torch.no_grad():
        before = model(tokens, attention_mask=mask)[0]
        after = huggingface.use(model, "softmax")(tokens, attention_mask=mask)[0]
    torch.testing.assert_close(after[mask.bool()], before[mask.bool()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make, names", [(llama, CAUSAL), (bert, BOTH)])
def test_padding_never_matters(make, names, tokens):
    mask = torch.ones_like(tokens)
    mask[1, 13:] = 0
    for name in names:
        model = huggingface.use(make(), name)
        other = tokens.masked_fill(mask == 0, 7)
        with torch.no_grad():
            one, two = (model(ids, attention_mask=mask)[0][mask.bool()] for ids in (tokens, other))
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_does_not_leak(name, tokens):
    model = huggingface.use(llama(), name)
    other = tokens.clone()
    other[:, 12:] = 3
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0][:, :12], model(other)[0][:, :12], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CAUSAL if name != "cosformer"])
def test_steps_with_a_cache_are_those_of_the_whole_row(name, tokens):
    model = huggingface.use(llama(), name)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0  # left padding, as in generation
    places = mask.cumsum(dim=1).sub(1).clamp(min=0)

    def part(first, last, cache=None):
        told = {"attention_mask": mask[:, :last], "position_ids": places[:, first:last], "past_key_values": cache}
        return model(tokens[:, first:last], use_cache=True, **told)

    with torch.no_grad():
        whole = model(tokens, attention_mask=mask, position_ids=places).logits
        step = part(0, 15)
        for first, last in ((15, 16), (16, 19), (19, 20)):
            step = part(first, last, step.past_key_values)
            torch.testing.assert_close(step.logits, whole[:, first:last], rtol=1e-3, atol=1e-4)


def test_a_mechanism_that_needs_more_than_keys_and_values_refuses_a_cache(tokens):
    model = huggingface.use(llama(), "cosformer")
    first = model(tokens, use_cache=True)
    with pytest.raises(UsageError, match="use_cache=False"):
        model(tokens[:, :1], past_key_values=first.past_key_values)


def test_generation_works(tokens):
    model = huggingface.use(llama(), "linear")
    made = model.generate(tokens, max_new_tokens=4, do_sample=False)
    assert made.shape == (2, 24)
    assert torch.equal(made, model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=False))


def test_what_a_mechanism_owns_is_trained_and_saved_with_the_model(tokens):
    model = huggingface.use(bert(), "linformer(rank=4)").train()
    own = {name: weight for name, weight in model.named_parameters() if "longspan_core" in name}
    assert own
    model(tokens)[0].sum().backward()
    assert all(weight.grad is not None for weight in own.values())
    assert set(own) <= set(model.state_dict())


def test_a_name_is_enough_where_nothing_is_to_be_trained(tokens):
    name = huggingface.register("linear")
    model = transformers.AutoModel.from_config(bert().config, attn_implementation=name).eval()
    with torch.no_grad():
        assert torch.isfinite(model(tokens)[0]).all()
    name = huggingface.register("linformer(rank=4)")
    late = transformers.AutoModel.from_config(bert().config, attn_implementation=name)
    with pytest.raises(UsageError, match=r"huggingface\.use"):
        late(tokens)


@pytest.mark.parametrize(
    "ask, error, sentence",
    [
        (lambda: huggingface.register("fnet"), UsageError, "before they are projected"),
        (lambda: huggingface.use(llama(), "nystromformer"), UnsupportedPattern, "causal_self"),
        (lambda: huggingface.use(torch.nn.Linear(2, 2), "linear"), UsageError, "no layer"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(ask, error, sentence):
    with pytest.raises(error, match=sentence):
        ask()


def test_masks_and_caches_that_cannot_be_honoured_are_refused(tokens):
    model = huggingface.use(llama(), "linear")
    whole = torch.ones(2, 1, 20, 20, dtype=torch.bool).tril()
    with pytest.raises(UsageError, match="4 axes"):
        model(tokens, attention_mask=whole)
    with pytest.raises(UsageError, match="static"):
        model.generate(tokens, max_new_tokens=2, cache_implementation="static", do_sample=False)
    packed = torch.tensor([[*range(10), *range(10)]] * 2)
    with pytest.raises(UsageError, match="packed rows"):
        model(tokens, position_ids=packed, use_cache=False)
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SIZES, num_key_value_heads=2, vocab_size=50, sliding_window=4)
    with pytest.raises(UsageError, match="window"):
        huggingface.use(transformers.MistralForCausalLM(config), "linear")(tokens)
