"""SR3: exact parameter counts, slots in the published order, and every mechanism in heads of 64 to 512 channels."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.backbones.parameters import count_shapes
from longspan.backbones.slots import Slots, filled
from longspan.backbones.sr3 import SR3, PixelAttention, Sizes, waves
from longspan.core.errors import UsageError
from longspan.tasks.cab_table import cab_presets
from tests.backbones.representatives import one_of_each_kind

NS = Pattern.NONCAUSAL_SELF
TINY = Sizes(side=16, dim=8, multipliers=(1, 2), blocks=1, attn_res=(8, 16), groups=4, dropout=0.0)
PRESETS = cab_presets("super_resolution")
MECHANISMS = [name for name in attentions.names() if NS in attentions.get(name).meta.patterns]


def slots(mechanism: str = "softmax") -> Slots:
    return Slots(attentions.get(mechanism), frozenset({NS}))


def sr3(mechanism: str = "softmax", sizes: Sizes = TINY) -> SR3:
    torch.manual_seed(0)
    return SR3(slots(mechanism), sizes)


def inputs(side: int = 16, batch: int = 2):
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randn(2, batch, 3, side, side, generator=generator)
    return pictures[0], pictures[1], torch.rand(batch, generator=generator)


# ----------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    "attn_res, biased, free",
    [
        ((16, 32, 64, 128), 99_550_467, 99_534_531),
        ((16, 32, 64), 99_466_627, 99_451_651),
        ((16,), 97_816_707, 97_807_491),
    ],
)
def test_parameters_are_those_of_the_published_network_to_the_integer(attn_res, biased, free):
    for bias, total in ((True, biased), (False, free)):
        sizes = Sizes(attn_res=attn_res, bias=bias)
        assert count_shapes(lambda sizes=sizes: SR3(slots(), sizes))["total"] == total


@pytest.mark.parametrize(
    "mechanism, added",
    [
        ("abc", 169_984),
        ("longshort", 106_576),
        ("s4d", -5_928_816),
        *((name, 0) for name in ("local", "lara", "probsparse", "performer", "nystromformer")),
    ],
)
def test_mechanisms_add_what_the_published_table_says_they_add(mechanism, added):
    form = PRESETS[mechanism].form(NS)
    assert count_shapes(lambda: SR3(slots(form), Sizes()))["total"] == 99_550_467 + added


# ---------------------------------------------------------------------------------------------------------------- slots


def test_the_21_slots_have_the_published_widths_and_lengths_in_order():
    with torch.device("meta"):
        model = SR3(slots(), Sizes())
    found = [module for module in model.modules() if isinstance(module, Attention)]
    assert [slot.dim for slot in found] == [
        *(64, 64, 128, 128, 256, 256, 512, 512),
        512,
        *(512, 512, 512, 256, 256, 256, 128, 128, 128, 64, 64, 64),
    ]
    assert sum(slot.dim for slot in found) == 5_312
    sides = [128, 128, 64, 64, 32, 32, 16, 16, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64, 128, 128, 128]
    assert [slot.max_length for slot in found] == [side**2 for side in sides]
    assert {slot.heads for slot in found} == {1}
    assert set(filled(model).values()) == {"Softmax (noncausal_self)"}


@pytest.mark.parametrize("attn_res, count", [((16, 32, 64, 128), 21), ((16, 32, 64), 16), ((16,), 6)])
def test_attention_stands_where_attn_res_says_and_in_the_middle(attn_res, count):
    with torch.device("meta"):
        assert len(filled(SR3(slots(), Sizes(attn_res=attn_res)))) == count


@pytest.mark.parametrize("name", one_of_each_kind(MECHANISMS))
@pytest.mark.parametrize("width", [64, 512])
def test_every_mechanism_takes_one_head_as_wide_as_the_channels(name, width):
    torch.manual_seed(0)
    slot = PixelAttention(attentions.get(name), Sizes(), width, 8)
    x = torch.randn(2, width, 8, 8, requires_grad=True)
    y = slot(x)
    y.square().mean().backward()
    assert y.shape == x.shape
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_pixels_go_row_by_row_into_the_slot():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x)
            return torch.zeros_like(x)

    slot = PixelAttention(slots(), replace(TINY, groups=1), 1, 4)
    slot.mix, slot.norm = Spy(), nn.Identity()
    slot(torch.arange(16.0).reshape(1, 1, 4, 4))
    assert seen[0][0, :, 0].tolist() == list(range(16))


def test_without_biases_the_map_after_attention_still_has_one():
    slot = PixelAttention(slots(), replace(TINY, bias=False), 8, 4)
    assert slot.mix.query.bias is None
    x = torch.randn(1, 8, 4, 4)
    before = slot(x)
    nn.init.ones_(slot.bias)
    torch.testing.assert_close(slot(x), before + 1)


def test_replacing_the_mechanism_leaves_every_other_weight_as_it_was():
    softmax, linear = sr3().state_dict(), sr3("linear").state_dict()
    assert softmax.keys() == linear.keys()
    for name, weight in softmax.items():
        torch.testing.assert_close(weight, linear[name])


# -------------------------------------------------------------------------------------------------------------- network


def test_the_network_draws_a_picture_as_large_as_it_was_given():
    assert sr3()(*inputs()).shape == (2, 3, 16, 16)


def test_condition_picture_and_noise_level_all_matter():
    model = sr3().eval()
    given = inputs()
    first = model(*given)
    for i in range(3):
        changed = [value + 0.1 if i == j else value for j, value in enumerate(given)]
        assert not torch.allclose(model(*changed), first)


def test_pictures_of_a_batch_do_not_see_one_another():
    model = sr3().eval()
    upsampled, noisy, level = inputs(batch=3)
    alone = model(upsampled[1:2], noisy[1:2], level[1:2])
    torch.testing.assert_close(model(upsampled, noisy, level)[1:2], alone, atol=1e-5, rtol=1e-4)  # order of summation


def test_dropout_acts_in_training_alone():
    model = sr3(sizes=replace(TINY, dropout=0.5))
    given = inputs()
    assert not torch.equal(model(*given), model(*given))
    model.eval()
    torch.testing.assert_close(model(*given), model(*given))


def test_the_noise_level_is_embedded_as_published():
    wave = waves(torch.tensor([0.5], dtype=torch.float64), 64)[0]
    torch.testing.assert_close(wave[:3], torch.tensor([0.479426, 0.366223, 0.277481]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(wave[32:35], torch.tensor([0.877583, 0.930527, 0.960731]).double(), atol=1e-6, rtol=0)
    tiny = waves(torch.tensor([1.0], dtype=torch.float64), 64)[0, 31]
    assert float(tiny) == pytest.approx(1.333521e-4, rel=1e-6)


def test_maps_start_orthogonal_without_biases_and_mechanisms_draw_the_rest():
    model = sr3("longshort")
    for module in (model.first, model.level.widen, model.down[0].before.conv, model.down[0].attention.mix.query):
        flat = module.weight.flatten(1)
        small = flat if len(flat) <= flat.shape[1] else flat.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)), atol=1e-5, rtol=0)
        assert not module.bias.any()
    torch.manual_seed(0)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert all(bool((norm.weight == 1).all()) and not norm.bias.any() for norm in norms)


def test_pictures_stay_in_half_precision_under_autocast_and_the_noise_hardly_changes():
    model, seen = sr3().eval(), []
    for norm in (module for module in model.modules() if isinstance(module, nn.GroupNorm)):
        norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    whole = model(*inputs())
    assert set(seen) == {torch.float32}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        half = model(*inputs())
    assert set(seen) == {torch.bfloat16}
    assert float((half - whole).detach().abs().mean() / whole.detach().abs().mean()) < 0.03


def test_exact_attention_at_128_pixels_a_side_never_makes_the_matrix():
    q = torch.zeros(1, 1, 128 * 128, 64)
    slot = attentions.get("softmax")(64, 1, NS)
    assert slot.used(q, q, q) in ("flash", "efficient", "cudnn")


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"attn_res": (16, 20)}, r"\[20\]"),
        ({"side": 100}, "halved 4 times"),
        ({"dim": 48}, "groups=32"),
        ({"multipliers": ()}, "multipliers"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_sizes_that_make_no_network_are_refused_with_a_sentence(wrong, words):
    with pytest.raises(UsageError, match=words):
        Sizes(**wrong)
