"""The encoder's options: the defaults give the network as it was before, and every other does what its name says."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from longspan import attentions, tasks
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.core.errors import UsageError
from longspan.kernels.packing import Rows
from longspan.kernels.rotary import rotate
from longspan.tasks.lit_feed import TOTAL_STEP, filled
from longspan.tasks.token_feed import Batch

BEFORE = json.loads((Path(__file__).parent / "encoder_before.json").read_text())
LENGTH = 24
SMALL = Sizes(dim=12, heads=2, layers=2, mlp=16, dropout=0.0, attention_dropout=0.0, pooling="mean")


def build(mechanism="softmax", *, vocabulary=17, **changes):
    torch.manual_seed(0)
    sizes = dataclasses.replace(SMALL, **changes)
    return EncoderClassifier(attentions.get(mechanism), sizes, vocabulary=vocabulary, classes=3, length=LENGTH).eval()


def rows(count=3, length=LENGTH, low=1, high=17, seed=1):
    return torch.randint(low, high, (count, length), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


@pytest.mark.parametrize("case", [case for case in BEFORE if not case.startswith("pathx")])
def test_default_networks_have_the_names_the_sizes_and_the_outputs_of_before_the_options(case):
    name, protocol, mechanism = case.split()
    task = tasks.get(name)
    plain = {"model.layers": 2, "model.dropout": 0.0, "model.attention_dropout": 0.0}
    torch.manual_seed(0)
    model = task.model(attentions.get(mechanism), task.protocol(protocol, "full").override(plain)).eval()
    names = json.dumps([[name, list(value.shape)] for name, value in model.state_dict().items()])
    n, count = 40, 2 * task.texts
    model.longest = n  # hidden zeros are padded to this length
    with torch.no_grad():
        logits = model(rows(count, n, 0, 10), [n] * (count - 1) + [n - 7])
    before = BEFORE[case]
    assert sum(p.numel() for p in model.parameters()) == before["parameters"]
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == before["names"]
    assert logits.flatten()[:6].tolist() == pytest.approx(before["logits"], abs=2e-3)  # the stored logits are rounded


# ----------------------------------------------------------------------------------------------------------------- norm

NORMS = ("layer", "batch", "rms", "scale")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("norm_at", ["pre", "post"])
@pytest.mark.parametrize("block", ["mlp", "glu", "none"])
def test_every_norm_and_block_trains_every_weight(norm, norm_at, block):
    model = build(norm=norm, norm_at=norm_at, block=block).train()
    logits = model(rows(), [LENGTH, 5, 9])
    (logits.square().sum() + logits[0, 0]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert any(name.startswith("norm.") for name in model.state_dict()) == (norm_at == "pre")
    assert any("mlp" in name for name in model.state_dict()) == (block != "none")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("norm_at", ["pre", "post"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "first", "last", "max", "sum_visible"])
def test_an_answer_does_not_depend_on_neighbours_or_padding_in_evaluation(norm, norm_at, pooling):
    model, tokens = build(norm=norm, norm_at=norm_at, pooling=pooling), rows()
    with torch.no_grad():
        together = model(tokens, [LENGTH, 5, 9])
        alone = torch.cat([model(tokens[i : i + 1, :n], [n]) for i, n in enumerate([LENGTH, 5, 9])])
    torch.testing.assert_close(together, alone)


def test_a_norm_behind_the_residual_is_the_formula_written_out():
    model, tokens = build(norm_at="post", positions="none"), rows()
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block.attention_norm(x + block.attention(x))
        x = block.mlp_norm(x + block.mlp(x))
    torch.testing.assert_close(model(tokens), model.head(x.mean(dim=1)))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_batch_norm_is_over_real_tokens_alone_however_rows_are_padded_or_filled(pooling):
    """A filler row, as in batches on a GPU, changes neither outputs nor statistics nor gradients."""
    lengths, found = [LENGTH, 5, 9], []
    for filler in (0, 7):
        model, tokens = build(norm="batch", pooling=pooling).train(), rows()
        given = torch.tensor([*lengths, filler] if filler else lengths)
        wide = nn.functional.pad(tokens, (0, 0, 0, 1)) if filler else tokens
        logits = model(wide, Rows(given, int(given.sum()), LENGTH, 3))
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in model.parameters()), *model.state_dict().values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # summed in a different order


def test_batch_norm_of_full_rows_is_that_of_torch():
    model, tokens = build(norm="batch", positions="none", block="none", layers=1).train(), rows()
    x = model.embedding(tokens)
    seen = nn.functional.batch_norm(x.mT, None, None, training=True).mT
    expected = x + model.blocks[0].attention(seen)
    states, _, _ = model.states(tokens, None)
    torch.testing.assert_close(states, nn.functional.batch_norm(expected.mT, None, None, training=True).mT)
    own = model.blocks[0].attention_norm.running_mean
    torch.testing.assert_close(own, 0.1 * x.mean(dim=(0, 1)))


def test_hidden_zeros_are_no_part_of_the_statistics():
    model, tokens = build(norm="batch", hide_zeros=True, positions="none").train(), rows(low=0, high=3)
    model(tokens)
    visible = model.embedding(tokens)[tokens > 0]
    torch.testing.assert_close(model.blocks[0].attention_norm.running_mean, 0.1 * visible.mean(dim=0))


# ------------------------------------------------------------------------------------------------------------ positions


def test_without_positions_the_order_of_tokens_has_no_effect():
    model, tokens = build(positions="none"), rows()
    torch.testing.assert_close(model(tokens), model(tokens.flip(1)))
    assert build(positions="none").positions is None


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "performer", "local(window=4)"])
def test_rotary_positions_tell_the_order_and_know_distances_alone(mechanism):
    model, tokens = build(mechanism, positions="rope", heads=1), rows()
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-4)
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in build(mechanism, positions="none", heads=1).parameters()
    )


def test_products_of_turned_vectors_depend_on_the_distance_alone():
    q, k = torch.randn(2, 8, dtype=torch.float64)
    products = [rotate(q, torch.tensor(i)) @ rotate(k, torch.tensor(i + 5)) for i in (0, 3, 1_000)]
    torch.testing.assert_close(torch.stack(products), products[0].expand(3), rtol=1e-4, atol=1e-4)  # angles are float32
    assert not torch.isclose(products[0], q @ k)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_rotary_positions_are_the_same_for_packed_rows_and_for_the_first_token(pooling):
    model, tokens = build(positions="rope", pooling=pooling), rows()
    with torch.no_grad():
        packed = model(tokens, [LENGTH, 5, 9])
        model.whole = True
        torch.testing.assert_close(packed, model(tokens, [LENGTH, 5, 9]))
        torch.testing.assert_close(packed[1:2], model(tokens[1:2, :5]))


@pytest.mark.parametrize("mechanism", ["softmax", "linear"])
def test_the_first_lit_pixel_is_turned_by_its_place(mechanism):
    model, tokens = build(mechanism, positions="rope", pooling="first", hide_zeros=True, zero_rule="drop"), rows()
    tokens[:, :3], tokens[1, 3:9] = 0, 0
    with torch.no_grad():
        alone = model(tokens)
        model.whole = True
        torch.testing.assert_close(alone, model(tokens))


@pytest.mark.parametrize("mechanism", ["s4d", "fnet", "none", "synthesizer", "reformer"])
def test_a_mechanism_without_queries_and_keys_of_its_own_refuses_rotary_positions(mechanism):
    with pytest.raises(UsageError, match="choose other positions than rope"):
        build(mechanism, positions="rope")


def test_rotary_positions_need_pairs_of_channels():
    with pytest.raises(UsageError, match="even width"):
        build(positions="rope", heads=4)  # heads of 3 channels


def test_the_scales_of_embeddings_and_positions_are_those_asked_for():
    model = build(vocabulary=4_000, embedding_std=0.02, position_std=0.5, positions="learned", dim=60)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.positions.std().item() == pytest.approx(0.5, rel=0.1)


# -------------------------------------------------------------------------------------------------------------- dropout


def test_tied_dropout_drops_a_channel_of_a_row_at_all_its_tokens():
    model, tokens = build(dropout=0.5, dropout_tied=True, positions="none").train(), rows()
    with torch.no_grad():
        x = model.embedding(tokens)
        whole = model.dropout(x)
    kept = whole != 0
    assert (kept == kept[:, :1]).all()
    assert kept.any()
    assert not kept.all()
    torch.testing.assert_close(whole[kept], 2 * x[kept])
    assert not (kept[0] == kept[1]).all()


def test_packed_rows_have_one_mask_each():
    from longspan.kernels.packing import Layout

    model = build(dropout=0.5, dropout_tied=True).train()
    layout = Layout.of_lengths([3, 1, 6])
    kept = model.dropout(torch.ones(10, 12), layout) != 0
    for part in kept.split([3, 1, 6]):
        assert (part == part[:1]).all()
    assert not (kept[0] == kept[-1]).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mechanism", ["s4d", "s4"])
def test_dropout_inside_a_state_space_acts_in_training_alone(mechanism, tied):
    changes = {"mixer_dropout": 0.5, "dropout_tied": tied, "block": "none"}
    model, plain, tokens = build(mechanism, **changes), build(mechanism, block="none"), rows()
    torch.testing.assert_close(model(tokens), plain(tokens))
    y = torch.ones(2, 5, 12)
    kept = model.train().blocks[0].attention._dropped(y) != 0
    assert kept.any()
    assert not kept.all()
    assert (kept == kept[:, :1]).all() == tied
    assert not torch.allclose(model(tokens), plain(tokens))


@pytest.mark.parametrize("rate, dropped", [(None, True), (0.5, True), (0.0, False)])
def test_embeddings_have_the_dropout_of_the_blocks_unless_they_have_their_own(rate, dropped):
    embeddings = build(dropout=0.5, embedding_dropout=rate).train().dropout(torch.ones(40, 12))
    assert bool((embeddings == 0).any()) == dropped


def test_dropout_inside_has_no_effect_where_it_has_no_place():
    torch.testing.assert_close(build(mixer_dropout=0.5).train()(rows()), build().train()(rows()))


# ------------------------------------------------------------------------------------------------ pooling, black pixels


@pytest.mark.parametrize("lengths", [None, [LENGTH, 5, 9]])
def test_rows_are_pooled_as_their_names_say(lengths):
    tokens = rows()
    states = {}
    for pooling in ("mean", "last", "max", "sum_visible", "first"):
        model = build(pooling=pooling)
        model.head, model.whole = nn.Identity(), True
        with torch.no_grad():
            states[pooling] = model(tokens, lengths)
            outputs, layout, _ = model.states(tokens, None if lengths is None else Rows.of(lengths))
    each = list(outputs if layout is None else outputs.split(lengths))
    expected = {
        "mean": [x.mean(dim=0) for x in each],
        "last": [x[-1] for x in each],
        "max": [x.amax(dim=0) for x in each],
        "sum_visible": [x.sum(dim=0) / LENGTH for x in each],
        "first": [x[0] for x in each],
    }
    for pooling, found in states.items():
        torch.testing.assert_close(found, torch.stack(expected[pooling]))


def test_by_the_rule_of_nystromformer_black_pixels_have_no_influence_at_all():
    """They are hidden as keys, and count as 0 in the mean; by the release's rule they are part of it."""
    tokens = rows(low=0, high=3)
    moved = build(hide_zeros=True, zero_rule="nystrom")
    released = build(hide_zeros=True)
    for model, same in ((moved, True), (released, False)):
        before = model(tokens)
        with torch.no_grad():
            model.embedding.weight[0, 0] += 5.0  # the embedding of black
        assert torch.allclose(before, model(tokens), atol=1e-5) == same
    nystrom, visible = (
        build(hide_zeros=True, pooling=p, zero_rule=r) for p, r in (("mean", "nystrom"), ("sum_visible", "release"))
    )
    torch.testing.assert_close(nystrom(tokens), visible(tokens))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_by_that_rule_the_first_token_is_the_first_visible_one(norm):
    tokens = rows()
    tokens[:2, 0], tokens[1, :7] = 0, 0
    model = build(hide_zeros=True, zero_rule="nystrom", pooling="first", norm=norm)
    pooled, model.whole = model.encode(tokens), True
    outputs, _, _ = model.states(*model.prepared(tokens, None))
    torch.testing.assert_close(pooled, torch.stack([outputs[0, 1], outputs[1, 7], outputs[2, 0]]))


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "local", "nystromformer", "cosformer"])
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_dropped_black_pixels_are_padding_that_is_not_computed(mechanism, positions):
    """The remaining pixels have the same outputs as when black is only hidden from attention, and no others count."""
    if positions == "rope" and mechanism in ("local", "nystromformer", "cosformer"):
        positions = "sinusoid"
    tokens = rows(low=0, high=3)
    kept = build(mechanism, hide_zeros=True, zero_rule="drop", positions=positions)
    hidden = build(mechanism, hide_zeros=True, zero_rule="nystrom", pooling="sum_visible", positions=positions)
    states = []
    for model in (kept, hidden):
        x, layout, _ = model.states(*model.prepared(tokens, None))
        states.append(x if layout is not None else x[tokens > 0])
    torch.testing.assert_close(*states)
    share = (tokens > 0).sum(dim=1, keepdim=True) / LENGTH
    torch.testing.assert_close(kept.encode(tokens) * share, hidden.encode(tokens))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last", "sum_visible"])
def test_rows_that_fill_a_batch_of_lit_pixels_change_nothing(pooling):
    tokens = rows(low=0, high=3)
    lit = (tokens > 0).sum(dim=1).numpy()
    model = build(hide_zeros=True, zero_rule="drop", pooling=pooling)
    batch = filled(Batch(tokens, None, torch.zeros(3)), lit)
    assert batch.lengths.total % TOTAL_STEP == 0
    torch.testing.assert_close(model(batch.tokens, batch.lengths), model(tokens))


@pytest.mark.parametrize("pooling, rule", [("max", "nystrom"), ("last", "nystrom"), ("mean", "drop"), ("cls", "drop")])
def test_a_picture_that_is_all_black_has_a_finite_answer(pooling, rule):
    model = build(hide_zeros=True, zero_rule=rule, pooling=pooling)
    assert model(torch.zeros(2, LENGTH, dtype=torch.int32)).isfinite().all()


@pytest.mark.parametrize("pooling", ["cls", "mean", "first", "last", "max"])
def test_a_picture_that_is_all_black_leaves_its_neighbours_alone(pooling):
    model, tokens = build(hide_zeros=True, zero_rule="drop", pooling=pooling, positions="learned"), rows(low=0, high=3)
    tokens[1] = 0
    each = [model(tokens[row : row + 1]) for row in range(3)]
    torch.testing.assert_close(model(tokens), torch.cat(each))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, [-1.0, 1.0]),
        ({"pixel_scale": "unit"}, [0.0, 1.0]),
        ({"pixel_scale": "standard", "pixel_mean": 0.25, "pixel_std": 0.5}, [-0.5, 1.5]),
    ],
)
def test_intensities_are_scaled_as_asked(changes, expected):
    model = build(input_mode="continuous", **changes)
    assert model._scaled(torch.tensor([0.0, 1.0])).tolist() == expected


def test_the_head_has_the_width_and_the_activation_asked_for():
    model = build(head_width="dim", head_activation="gelu", features="four")
    assert [type(layer) for layer in model.head] == [nn.Linear, nn.GELU, nn.Linear]
    assert (model.head[0].in_features, model.head[0].out_features) == (4 * 12, 12)


def test_projections_have_biases_where_they_are_asked_for():
    assert build().blocks[0].attention.query.bias is None
    assert build(projection_bias=True).blocks[0].attention.query.bias.tolist() == [0.0] * 12


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_rule": "nystrom"},
        {"end_token": True, "input_mode": "continuous"},
        {"mixer_dropout": 1.0},
        {"embedding_dropout": -0.1},
        {"embedding_std": 0.0},
        {"norm_momentum": -1.0},
    ],
)
def test_settings_that_contradict_one_another_are_refused(changes):
    with pytest.raises(UsageError):
        dataclasses.replace(SMALL, **changes)
