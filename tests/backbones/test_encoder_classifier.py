"""The encoder of Long Range Arena: its exact parameter count, and rows independent of the others in their batch."""

import dataclasses
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longspan import attentions, backbones, runs, tasks
from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes, sinusoid
from longspan.backbones.parameters import count, count_shapes
from longspan.core.errors import UnknownName, UsageError
from longspan.kernels.packing import Rows
from tests.backbones.representatives import one_of_each_kind

SMALL = Sizes(dim=12, heads=2, layers=2, mlp=16, dropout=0.0, attention_dropout=0.0)
LENGTH = 24


def build(mechanism="softmax", sizes=SMALL, *, vocabulary=17, classes=10, length=LENGTH, seed=0):
    torch.manual_seed(seed)
    attention = attentions.get(mechanism)
    return EncoderClassifier(attention, sizes, vocabulary=vocabulary, classes=classes, length=length).eval()


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


# --------------------------------------------------------------------------------------------------------------- sizes

ORACLES = {  # what, network, vocabulary, classes, length, parameters: spec/lra.md 3.9
    "listops released": (Sizes(512, 8, 4, 1024), 17, 10, 2_000, 8_948_746),
    "text released": (Sizes(256, 4, 4, 1024), 257, 2, 1_000, 3_486_722),
    "image released": (Sizes(128, 8, 1, 128, inner=64, positions="learned"), 256, 10, 1_024, 248_458),
    "pathfinder released": (Sizes(32, 4, 4, 32, inner=16, pooling="mean"), 256, 2, 1_024, 26_530),
    "path-x": (Sizes(32, 2, 1, 32, inner=16, pooling="mean", positions="learned"), 256, 2, 16_384, 537_954),
    "listops paper": (Sizes(512, 8, 6, 2048), 17, 10, 2_000, 19_983_370),
    "text paper": (Sizes(512, 8, 6, 2048), 257, 2, 4_000, 20_089_858),
    "retrieval released": (
        Sizes(128, 4, 4, 512, pooling="first", features="two", head_layers=3),
        *(257, 2, 4_000, 1_087_618),
    ),
}


@pytest.mark.parametrize("what", ORACLES)
def test_the_transformer_has_the_parameters_of_the_paper_to_the_last_one(what):
    sizes, vocabulary, classes, length, expected = ORACLES[what]
    with torch.device("meta"):
        assert parameters(build("softmax", sizes, vocabulary=vocabulary, classes=classes, length=length)) == expected


@pytest.mark.parametrize(
    "task, protocol, expected",
    [
        ("listops", "lra-released", 8_948_746),
        ("listops", "lra-paper", 19_983_370),
        ("listops", "longspan", 19_983_370),  # the paper's sizes
        ("pathfinder", "lra-released", 26_530),
        ("pathfinder", "lra-paper", 446_338),
        ("pathfinder", "longspan", 26_530 + 32),  # black has its own id
        ("text", "lra-released", 3_486_722),
        ("text", "lra-paper", 20_089_858),
        ("text", "longspan", 3_486_722),
        *((f"text_{k}k", "lra-paper", 20_089_858) for k in (1, 2, 3, 4)),
        ("retrieval", "lra-released", 1_087_618),
        ("retrieval", "lra-paper", 1_087_618 + 128 + (512 - 256) * 512 + 512 * 2 - 512 * 256 - 256 - 256 * 2),
        ("retrieval_30k", "longspan", 1_087_618 + 128 + (512 - 256) * 512 + 512 * 2 - 512 * 256 - 256 - 256 * 2),
        ("image", "lra-released", 248_458),
        ("image", "lra-paper", 191_498),
        ("image", "longspan", 248_458 + 128),  # black has its own id
        ("pathx", "lra-released", 537_954),
        ("pathx", "lra-paper", 446_338),
        ("pathx", "longspan", 537_954 + 32),
    ],
)
def test_the_tasks_build_networks_of_these_sizes(task, protocol, expected):
    assert runs.count_parameters(task, "softmax", protocol, "full")["total"] == expected


MECHANISMS = {  # in the Transformer's sizes for listops and pathfinder, lra-released: a change alters every result
    "abc": (8_948_746 + 4 * 32 * 64, 26_530 + 4 * 32 * 4),  # 32 slots for each channel of a head
    "authors_lara": (8_948_746 + 4 * 2 * (64**2 + 3 * 64), 26_530 + 4 * 2 * (4**2 + 3 * 4)),  # as lara
    "authors_set_transformer": (  # four more maps of the inner width (five where it differs from dim), and 32 points
        8_948_746 + 4 * (4 * 512**2 + 32 * 512),
        26_530 + 4 * (5 * 16**2 + 32 * 16),
    ),
    "authors_skyformer": (8_948_746, 26_530),
    "authors_soft": (  # filters of 8 by 8 pixels, a norm and filters of 3 by 3 for each head, in place of keys
        8_948_746 + 4 * (64**2 * 8**2 + 2 * 64 + 8 * 3**2 - 512**2),
        26_530 + 4 * (4**2 * 8**2 + 2 * 4 + 4 * 3**2 - 32 * 16),
    ),
    "authors_yoso": (8_948_746, 26_530),
    "axial": (8_948_746, 26_530),
    "bigbird": (8_948_746, 26_530),
    "cab_abc": (8_948_746 + 4 * 32 * 64, 26_530 + 4 * 32 * 4),  # as abc
    "cab_lara": (8_948_746, 26_530),
    "cab_local": (8_948_746, 26_530),
    "cab_nystromformer": (8_948_746, 26_530),
    "cab_performer": (8_948_746, 26_530),
    "cluster_former": (8_948_746 + 4 * 64 * 512, 26_530 + 4 * 64 * 32),  # 64 centroids of whole tokens
    "cosformer": (8_948_746, 26_530),
    "dpfp": (8_948_746, 26_530),
    "efficient_attention": (8_948_746, 26_530),
    "etc": (  # vectors and a bias for each head, of 26 labels for ordinary and for global queries
        8_948_746 + 4 * 2 * 26 * (512 + 8),
        26_530 + 4 * 2 * 26 * (16 + 4),
    ),
    "flowformer": (8_948_746, 26_530),
    "fnet": (8_948_746 - 4 * 4 * 512**2, 26_530 - 4 * 4 * 32 * 16),  # no projections at all
    "global_attention": (8_948_746, 26_530),
    "funnel": (8_948_746 + 4 * (512**2 + 2 * 512), 26_530 + 4 * (32 * 16 + 2 * 16)),  # a map of distances, two biases
    "google_performer": (8_948_746, 26_530),
    "hf_reformer": (8_948_746 - 4 * 512**2, 26_530 - 4 * 32 * 16),  # as reformer
    "informer_probsparse": (8_948_746, 26_530),
    "lara": (  # for queries and for keys a map between the channels of a head, and a layer norm
        8_948_746 + 4 * 2 * (64**2 + 3 * 64),
        26_530 + 4 * 2 * (4**2 + 3 * 4),
    ),
    "compressive_transformer": (  # a map of distances, two biases, and a filter of two taps for each channel
        8_948_746 + 4 * (512**2 + 2 * 512 + 3 * 512),
        26_530 + 4 * (32 * 16 + 2 * 16 + 3 * 32),
    ),
    "flash": (  # one unit in the place of four projections, a norm and an MLP
        8_948_746 + 4 * (6 * 512**2 + 128 * 512 + 1_056 - 4 * 512**2 - 2 * 512 * 1_024 - 1_024 - 3 * 512),
        26_530 + 4 * (6 * 32**2 + 128 * 32 + 1_056 - 4 * 32 * 16 - 2 * 32 * 32 - 32 - 3 * 32),
    ),
    "linear": (8_948_746, 26_530),
    "linformer": (8_948_746 + 4 * 256 * 2_001, 26_530 + 4 * 256 * 1_024),  # one map from length to 256
    "local": (8_948_746, 26_530),
    "logsparse": (8_948_746, 26_530),
    "longformer": (8_948_746, 26_530),  # global queries share the projections
    "longshort": (  # 32 summaries for each head, and two layer norms
        8_948_746 + 4 * (512 * 8 * 32 + 4 * 512),
        26_530 + 4 * (32 * 4 * 32 + 4 * 16),
    ),
    "lra_bigbird": (8_948_746, 26_530),
    "lra_flowformer": (8_948_746, 26_530),
    "lra_linear": (8_948_746, 26_530),
    "lra_linformer": (8_948_746 + 4 * 16 * 2_001, 26_530 + 4 * 16 * 1_024),  # one map from length to 16
    "lra_local": (8_948_746, 26_530),
    "lra_longformer": (8_948_746 + 4 * 3 * 512**2, 26_530 + 4 * 3 * 32 * 16),  # unused projections
    "lra_performer": (8_948_746, 26_530),
    "lra_reformer": (8_948_746 - 2 * 4 * 512**2, 26_530 + 4 * (2 * 32**2 - 4 * 32 * 16)),  # as wide as the tokens
    "lra_sinkhorn": (8_948_746 + 4 * 65 * 25, 26_530 + 4 * 5 * 25),  # a map to 25 blocks that has no effect
    "lra_softmax": (8_948_746, 26_530),
    "lra_sparse_transformer": (8_948_746, 26_530),
    "lra_synthesizer": (8_948_746 + 4 * 8 * 2_001**2, 26_530 + 4 * 4 * 1_024**2),  # a full matrix for each head
    "luna": (  # one more map, 16 slots and a norm; where queries are narrower, a map from the packed sequence
        8_948_746 + 4 * (512**2 + 16 * 512 + 2 * 512),
        26_530 + 4 * (16**2 + 32 * 16 + 16 * 32 + 2 * 32),
    ),
    "lucidrains_mca": (  # filters of 3 taps between the channels of a head, a bias, a null key and a null value
        8_948_746 + 4 * (3 * 512 * 64 + 3 * 512),
        26_530 + 4 * (3 * 16 * 4 + 3 * 16),
    ),
    "mca": (8_948_746 + 4 * 3 * 512 * 64, 26_530 + 4 * 3 * 32 * 8),  # the filters, over tokens as wide as the model
    "none": (8_948_746 - 4 * 4 * 512**2, 26_530 - 4 * 4 * 32 * 16),  # no parameters
    "nystromformer": (8_948_746, 26_530),
    "performer": (8_948_746, 26_530),
    "poolingformer": (  # three maps between the channels of a head, and five weights from each channel
        8_948_746 + 4 * (3 * 512 * 64 + 5 * 512),
        26_530 + 4 * (3 * 16 * 4 + 5 * 16),
    ),
    "probsparse": (8_948_746, 26_530),
    "pypi_routing_transformer": (8_948_746, 26_530),
    "reformer": (8_948_746 - 4 * 512**2, 26_530 - 4 * 32 * 16),  # one projection for queries and keys
    "rfa": (8_948_746 + 4 * 512, 26_530 + 4 * 16),  # a factor for each channel
    "routing_transformer": (8_948_746, 26_530),
    "s4": (  # 130 numbers a channel, 192 for all of them, and a map to twice the width, in place of the projections
        8_948_746 + 4 * (512 * 130 + 192 + 512 * 1_024 - 4 * 512**2),
        26_530 + 4 * (32 * 130 + 192 + 32 * 64 - 4 * 32 * 16),
    ),
    "s4d": (  # 194 numbers a channel, and a map to twice the width, in place of the projections
        8_948_746 + 4 * (512 * 194 + 512 * 1_024 - 4 * 512**2),
        26_530 + 4 * (32 * 194 + 32 * 64 - 4 * 32 * 16),
    ),
    "sac": (  # an LSTM of 32 channels, a map of the tokens and 33 distances
        8_948_746 + 4 * 32 * (4 * (512 + 32 + 2) + 512 + 33),
        26_530 + 4 * 32 * (4 * (32 + 32 + 2) + 32 + 33),
    ),
    "scatterbrain": (8_948_746, 26_530),
    "set_transformer": (  # 32 inducing points, and two maps between the channels of a head
        8_948_746 + 4 * (32 * 512 + 2 * 8 * 64**2),
        26_530 + 4 * (32 * 16 + 2 * 4 * 4**2),
    ),
    "sinkhorn": (8_948_746 + 4 * 512 * 32, 26_530 + 4 * 16 * 16),  # from each channel to 32 and 16 blocks
    "skyformer": (8_948_746, 26_530),
    "soft": (  # filters of four tokens, a norm and filters of 3 for each head, in place of keys
        8_948_746 + 4 * (4 * 64**2 + 2 * 64 + 8 * 3 - 512**2),
        26_530 + 4 * (4 * 4**2 + 2 * 4 + 4 * 3 - 32 * 16),
    ),
    "sparse_transformer": (8_948_746, 26_530),
    "synthesizer": (  # two factors of rank 8 for each head, in place of queries and keys
        8_948_746 + 4 * (2 * 8 * 8 * 2_001 - 2 * 512**2),
        26_530 + 4 * (2 * 4 * 8 * 1_024 - 2 * 32 * 16),
    ),
    "xcit": (8_948_746 + 4 * 8, 26_530 + 4 * 4),  # a temperature for each head
    "transformer_xl": (8_948_746 + 4 * (512**2 + 2 * 512), 26_530 + 4 * (32 * 16 + 2 * 16)),
    "yoso": (8_948_746, 26_530),
    "yoso_e": (8_948_746, 26_530),
}


def test_the_table_of_mechanisms_is_complete():
    here = {name for name in attentions.names() if Pattern.NONCAUSAL_SELF in attentions.get(name).meta.patterns}
    assert set(MECHANISMS) == here - {"softmax"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_keeps_its_number_of_parameters(mechanism):
    def total(task):
        return count_shapes(lambda: task.model(attentions.get(mechanism), task.protocol("lra-released", "full")))[
            "total"
        ]

    assert tuple(total(tasks.get(name)) for name in ("listops", "pathfinder")) == MECHANISMS[mechanism]


def test_parts_add_up_and_layers_are_one_part():
    counted = count(build("softmax"))
    assert sum(counted["parts"].values()) == counted["total"] == parameters(build("softmax"))
    assert set(counted["parts"]) == {
        *("cls", "embedding", "head", "norm"),
        *("blocks.attention", "blocks.attention_norm", "blocks.mlp", "blocks.mlp_norm"),
    }


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"layers": 0}, "layers of at least 1, got 0"),
        ({"dim": -8}, "dim of at least 1, got -8"),
        ({"dropout": 1.0}, "dropout is a rate from 0 to below 1, got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout is a rate from 0"),
    ],
)
def test_impossible_sizes_are_refused(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        dataclasses.replace(SMALL, **wrong)


def test_the_shelf_describes_its_backbones():
    assert {"encoder_classifier", "informer"} <= set(backbones.names())
    assert backbones.describe("encoder_classifier").startswith("The encoder of Long Range Arena")
    with pytest.raises(UnknownName, match="Did you mean 'encoder_classifier'"):
        backbones.describe("encoder_clasifier")


# ----------------------------------------------------------------------------------------------------------- positions


@given(st.integers(0, 4_000), st.integers(0, 31))
@settings(deadline=None, max_examples=50)
def test_positions_are_sines_on_even_and_cosines_on_odd_channels(position, channel):
    angle = position * math.exp(-math.log(10_000) * (channel - channel % 2) / 32)
    expected = math.cos(angle) if channel % 2 else math.sin(angle)
    assert TABLE[position, channel].item() == pytest.approx(expected, abs=1e-6)


TABLE = sinusoid(4_001, 32)


def test_an_odd_width_ends_with_a_sine():
    assert sinusoid(3, 5).shape == (3, 5)
    torch.testing.assert_close(sinusoid(3, 5)[:, 4], torch.sin(torch.arange(3) * 10_000 ** (-4 / 5)))


# ---------------------------------------------------------------------------------------------------------------- rows

LAWFUL = [name for name in attentions.names() if not attentions.get(name).meta.fidelity]  # twins may mix padding in
TWINS = sorted(set(MECHANISMS) - set(LAWFUL) - {"authors_soft"})  # it takes only whole pictures


@functools.cache
def lawful(mechanism, pooling="cls"):
    """A network in double precision, built once for all rows it is given."""
    return build(mechanism, dataclasses.replace(SMALL, pooling=pooling)).double()


@pytest.mark.parametrize("mechanism", one_of_each_kind(LAWFUL))
@given(
    pooling=st.sampled_from(["cls", "mean"]),
    lengths=st.lists(st.integers(1, LENGTH), min_size=1, max_size=4),
    seed=st.integers(0, 1_000),
)
@example(pooling="cls", lengths=[1, LENGTH, 2, 13], seed=0)
@example(pooling="mean", lengths=[1, LENGTH, 2, 13], seed=0)
@settings(deadline=None, max_examples=8)
def test_a_row_in_a_padded_batch_gives_what_it_gives_alone(mechanism, pooling, lengths, seed):
    model = lawful(mechanism, pooling)
    torch.manual_seed(seed)
    tokens = torch.randint(1, 17, (len(lengths), max(lengths)))
    together = model(tokens, lengths)
    alone = torch.cat([model(row[None, :n]) for row, n in zip(tokens, lengths, strict=True)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("mechanism", one_of_each_kind(LAWFUL))
def test_the_content_and_the_width_of_padding_never_matter(mechanism):
    model, lengths = lawful(mechanism), [5, 11, 1]
    torch.manual_seed(1)
    tokens = torch.randint(1, 17, (3, 11))
    other = torch.cat([tokens, torch.randint(0, 17, (3, 6))], dim=1)
    for row, n in enumerate(lengths):
        other[row, n:] = torch.randint(0, 17, (17 - n,))
    torch.testing.assert_close(model(tokens, lengths), model(other, lengths))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("mechanism", one_of_each_kind(TWINS))
def test_twins_of_released_code_train_on_full_and_on_padded_batches(mechanism, pooling):
    for lengths in (None, [5, 11, 1]):
        model = build(mechanism, dataclasses.replace(SMALL, pooling=pooling))
        model(torch.randint(1, 17, (3, 11)), lengths).sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        attention = model.blocks[0].attention
        value = attention.value if hasattr(attention, "value") else attention.mab0.fc_v
        blind = mechanism == "lucidrains_mca" and lengths is not None  # its masks are inverted
        assert value.weight.grad.any() != blind


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_full_rows_may_leave_their_lengths_out(pooling):
    model, tokens = build(sizes=dataclasses.replace(SMALL, pooling=pooling)), torch.randint(1, 17, (3, 9))
    assert torch.equal(model(tokens), model(tokens, [9, 9, 9]))


def test_gradients_of_a_padded_batch_are_those_of_its_rows():
    model, lengths = build().double(), [4, 9]
    tokens = torch.randint(1, 17, (2, 9))
    model(tokens, lengths).sum().backward()
    together = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for row, n in zip(tokens, lengths, strict=True):
        model(row[None, :n]).sum().backward()
    for one, other in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_the_order_of_tokens_matters_and_so_does_every_token():
    model, tokens = build().double(), torch.randint(1, 17, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = changed[0, 5] % 16 + 1
    assert not torch.allclose(model(tokens), model(tokens.flip(1)))
    assert not torch.allclose(model(tokens), model(changed))


# ------------------------------------------------------------------------------------------ zeros as in the release


class Watching(HeadwiseAttention):
    """Averages all values, and records the masks it was given."""

    meta = AttentionMeta("Watching", "none", "test", "n", (Pattern.NONCAUSAL_SELF,))
    seen: list = []

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        self.seen.append(key_mask)
        return v.mean(dim=2, keepdim=True).expand_as(v)


@pytest.fixture
def watching():
    Watching.seen = []
    return Watching.seen


def zeros_model(pooling, hide_zeros=True, attention=Watching):
    torch.manual_seed(0)
    sizes = dataclasses.replace(SMALL, pooling=pooling, hide_zeros=hide_zeros)
    return EncoderClassifier(attention, sizes, vocabulary=17, classes=10, length=LENGTH).eval()


TOKENS = torch.tensor([[0, 3, 0, 5], [2, 0, 4, 0]])


WHOLE = F.pad(TOKENS, (0, LENGTH - 4))  # as in the release, for any width of the batch


def test_hidden_zeros_are_masked_in_every_layer(watching):
    zeros_model("mean")(TOKENS, [4, 4])
    assert len(watching) == SMALL.layers
    assert all(torch.equal(mask, WHOLE > 0) for mask in watching)


def test_the_class_token_is_masked_as_the_first_token_is(watching):
    zeros_model("cls")(TOKENS, [4, 4])
    expected = torch.cat([TOKENS[:, :1] > 0, WHOLE > 0], dim=1)
    assert len(watching) == SMALL.layers
    assert all(torch.equal(mask, expected) for mask in watching)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_without_the_rule_zero_is_a_symbol_like_any_other(watching, pooling):
    zeros_model(pooling, hide_zeros=False)(TOKENS, [4, 4])
    assert watching == [None] * SMALL.layers


def test_a_hidden_zero_is_still_part_of_the_mean():
    model = zeros_model("mean", attention=attentions.get("softmax"))
    tokens = torch.tensor([[3, 0, 5]])
    before = model(tokens)
    with torch.no_grad():
        model.embedding.weight[0] += 1 + torch.arange(12) % 3
    assert not torch.allclose(before, model(tokens))


@pytest.mark.parametrize("pooling", ["cls", "mean", "first"])
def test_by_the_rule_of_the_release_a_row_is_the_same_in_a_batch_of_any_width(pooling):
    model = zeros_model(pooling, attention=attentions.get("lra_linear")).double()
    short = torch.tensor([[3, 0, 5, 1], [2, 7, 0, 0]])
    expected = model(F.pad(short, (0, LENGTH - 4)))
    torch.testing.assert_close(model(short, [4, 2]), expected)
    filled = torch.cat([short, torch.zeros(1, 4, dtype=torch.long)])
    rows = Rows(torch.tensor([4, 2, 2]), total=8, max_seqlen=4, count=2)  # the third row is filler
    torch.testing.assert_close(model(filled, rows), expected)


def test_a_released_model_that_ignores_the_mask_sees_the_embedding_of_padding():
    models = [zeros_model("cls", attention=attentions.get(name)).double() for name in ("lra_linear", "lra_softmax")]
    tokens, lengths = torch.tensor([[3, 1, 5]]), [3]
    before = [model(tokens, lengths) for model in models]
    with torch.no_grad():
        for model in models:
            model.embedding.weight[0] += 1 + torch.arange(12) % 3
    after = [model(tokens, lengths) for model in models]
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(before[1], after[1])


# ------------------------------------------------------------------------------------------------------------- weights


def test_initial_weights_have_the_scale_of_the_release():
    sizes = Sizes(dim=128, heads=4, layers=2, mlp=256, inner=64, positions="learned")
    model = build("softmax", sizes, vocabulary=1_000, length=500)
    close = lambda tensor, std: tensor.std().item() == pytest.approx(std, rel=0.05)  # noqa: E731
    assert close(model.embedding.weight, 1.0)
    assert close(model.positions, 0.02)
    assert (model.cls == 0).all()
    for block in model.blocks:
        for linear in [block.attention.query, block.attention.out, block.mlp[0], block.mlp[3]]:  # Xavier uniform
            bound = math.sqrt(6 / (linear.in_features + linear.out_features))
            assert bound * 0.99 < linear.weight.abs().max() <= bound
            assert close(linear.weight, bound / math.sqrt(3))
        assert block.attention.query.bias is None
        for bias in (block.mlp[0].bias, block.mlp[3].bias):
            assert bias.std().item() == pytest.approx(1e-6, rel=0.25)  # few numbers
    for norm in [model.norm, model.blocks[0].attention_norm, model.blocks[0].mlp_norm]:
        assert norm.eps == 1e-6
    for linear in (model.head[0], model.head[2]):  # LeCun normal, cut at two standard deviations
        std = linear.in_features**-0.5
        assert linear.weight.std().item() == pytest.approx(std, rel=0.05)
        assert linear.weight.abs().max() <= 2 * std / 0.8796 + 1e-6
        assert (linear.bias == 0).all()


def test_layers_start_from_different_weights():
    first, second = build().blocks
    assert not torch.equal(first.attention.query.weight, second.attention.query.weight)


def test_what_a_mechanism_adds_it_draws_itself():
    layer = build("s4d").blocks[0].attention
    assert layer.frequency.std() > 1, "the backbone must leave the state space alone"


def test_dropout_acts_in_training_only():
    model = build(sizes=dataclasses.replace(SMALL, dropout=0.5, attention_dropout=0.5))
    tokens = torch.randint(1, 17, (2, 9))
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


def test_weights_are_saved_and_loaded_without_the_fixed_positions():
    one, other, tokens = build(seed=0), build(seed=1), torch.randint(1, 17, (2, 9))
    assert not torch.equal(one(tokens), other(tokens))
    assert "positions" not in one.state_dict()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(tokens), other(tokens))


# --------------------------------------------------------------------------------------------------- pairs and pixels


PAIR = dataclasses.replace(SMALL, features="four")


@pytest.mark.parametrize("features, width", [("two", 2), ("four", 4)])
def test_a_pair_is_judged_by_its_two_vectors_alone(features, width):
    model = build("softmax", dataclasses.replace(SMALL, features=features)).eval()
    tokens = torch.randint(1, 10, (6, 20))
    lengths = [20, 7, 13, 5, 20, 1]
    u, v = model.encode(tokens, lengths).chunk(2)
    joined = torch.cat([u, v, u * v, u - v][:width], dim=-1)
    torch.testing.assert_close(model(tokens, lengths), model.head(joined))


def test_no_text_of_a_pair_sees_the_other():
    model = build("softmax", PAIR).eval()
    tokens = torch.randint(1, 10, (4, 20))
    changed = tokens.clone()
    changed[2:] = torch.randint(1, 10, (2, 20))
    torch.testing.assert_close(model.encode(tokens)[:2], model.encode(changed)[:2])
    assert not torch.allclose(model(tokens), model(changed))


def test_a_head_of_three_layers_halves_its_width():
    layers = [
        layer for layer in build("softmax", dataclasses.replace(SMALL, head_layers=3)).head if hasattr(layer, "weight")
    ]
    assert [layer.out_features for layer in layers][:2] == [SMALL.mlp, SMALL.mlp // 2]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pixels_as_numbers_enter_by_one_linear_map_and_the_class_token_does_not(pooling):
    model = build("softmax", dataclasses.replace(SMALL, input_mode="continuous", pooling=pooling)).eval()
    black, white = model._embed(torch.tensor([0, 255]))
    torch.testing.assert_close(black, model.embedding.bias - model.embedding.weight[:, 0])
    torch.testing.assert_close(white, model.embedding.bias + model.embedding.weight[:, 0])
    if pooling == "cls":
        torch.testing.assert_close(model._embed(torch.tensor([model.class_token]))[0], model.cls)
    assert model(torch.randint(0, 256, (2, 9))).isfinite().all()


def test_numbers_cannot_be_hidden_by_their_id():
    with pytest.raises(UsageError, match="input_mode=continuous has no ids"):
        dataclasses.replace(SMALL, input_mode="continuous", hide_zeros=True)


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "local"])
@pytest.mark.parametrize("lengths", [None, [20, 9, 1]])
def test_computing_only_the_row_that_is_read_changes_nothing(mechanism, lengths):
    model = build(mechanism, dataclasses.replace(SMALL, dropout=0.0, attention_dropout=0.0))
    tokens = torch.randint(1, 10, (3, 20))
    gradients = []
    for model.whole in (False, True):
        model.zero_grad()
        y = model(tokens, lengths)
        y.square().sum().backward()
        gradients.append([y, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*gradients)
