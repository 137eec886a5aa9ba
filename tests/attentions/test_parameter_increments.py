"""Parameter counts match CAB's formulas exactly, for single layers and for the models of its tables 16 to 19.

Parameters beyond those of softmax attention of width d with H heads, which has 4 (d^2 + d):

    ABC             2 (d/H) r                           r slots
    Long-Short NS   4 d + (d + 1) H r + H conv          r landmarks, a filter of conv taps
    Long-Short CS   2 d^2 + 3 d + (d + 1) H             one summary a chunk, relative places
    S4D             c d (N + 1) + 2 d + N + c d^2       c channels, a state of N, in place of all projections
    Nystromformer   H conv
    Set Transformer r d + 2 d^2 / H                     r inducing points
    RFA             d, with the gate (d + 1) H besides
    XCiT            H
    all others      0
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


@dataclass(frozen=True)
class Sizes:
    """The letters of the formulas."""

    d: int
    H: int
    r: int = 1
    conv: int = 0
    N: int = 2
    c: int = 1

    @property
    def softmax(self) -> int:
        return 4 * (self.d**2 + self.d)


def nothing(s: Sizes) -> int:
    return 0


def two_maps_to_slots(s: Sizes) -> int:
    return 2 * (s.d // s.H) * s.r


def long_short(s: Sizes) -> int:
    return 4 * s.d + (s.d + 1) * s.H * s.r + s.H * s.conv


def causal_long_short(s: Sizes) -> int:
    return 2 * s.d**2 + 3 * s.d + (s.d + 1) * s.H


def state_space(s: Sizes) -> int:
    return s.c * s.d * (s.N + 1) + s.d + s.N + s.c * s.d**2 + s.d - s.softmax


def one_filter_a_head(s: Sizes) -> int:
    return s.H * s.conv


def points_and_two_maps_a_head(s: Sizes) -> int:
    return s.r * s.d + 2 * s.d**2 // s.H


def one_a_channel(s: Sizes) -> int:
    return s.d


def one_a_channel_and_a_gate(s: Sizes) -> int:
    return s.d + (s.d + 1) * s.H


def one_a_head(s: Sizes) -> int:
    return s.H


Formula = Callable[[Sizes], int]

# the spec of a mechanism as in CAB, the patterns it is tested in (all it declares, if empty), the formula
TABLE: list[tuple[str, tuple[Pattern, ...], Formula]] = [
    ("softmax", (), nothing),
    ("softmax(kernel=plain)", (), nothing),
    ("local(window={r})", (), nothing),
    ("performer(features={r})", (), nothing),
    ("lara(landmarks={r}, proposal=means, weighting=query)", (), nothing),
    ("cosformer", (), nothing),
    ("dpfp(nu=1)", (), nothing),
    ("efficient_attention", (), nothing),
    ("flowformer", (), nothing),
    ("probsparse(factor={r})", (), nothing),
    ("abc(slots={r})", (), two_maps_to_slots),
    ("nystromformer(landmarks={r})", (), nothing),
    ("nystromformer(landmarks={r}, conv={conv})", (NS,), one_filter_a_head),
    ("longshort(landmarks={r}, conv={conv})", (NS,), long_short),
    ("cab_longshort", (CS,), causal_long_short),
    ("s4d(init=inv, output=linear, tied=True, bidirectional=False, state={N}, channels={c})", (), state_space),
    ("rfa(features={r})", (), one_a_channel),
    ("rfa(features={r}, gate=True)", (CS,), one_a_channel_and_a_gate),
    ("set_transformer(points={r})", (), points_and_two_maps_a_head),
    ("xcit", (), one_a_head),
    ("cab_local(window={r})", (), nothing),
    ("cab_performer(features={r})", (), nothing),
    ("cab_lara(landmarks={r})", (), nothing),
    ("cab_abc(slots={r})", (), two_maps_to_slots),
    ("cab_nystromformer(landmarks={r}, conv={conv})", (NS,), one_filter_a_head),
]
CASES = [
    (spec, pattern, formula)
    for spec, patterns, formula in TABLE
    for pattern in patterns or attentions.get(spec.split("(")[0]).meta.patterns
]


def increment(spec: str, pattern: Pattern, s: Sizes) -> int:
    """The parameters an actual layer has beyond softmax attention of that width."""
    with torch.device("meta"):  # counted, not allocated
        layer = attentions.get(spec.format(**vars(s)))(s.d, s.H, pattern, max_length=64, max_context=64)
    return sum(parameter.numel() for parameter in layer.parameters()) - s.softmax


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    heads = draw(st.integers(1, 6))
    return Sizes(
        d=heads * draw(st.integers(1, 24)),
        H=heads,
        r=draw(st.integers(1, 64)),
        conv=draw(st.integers(0, 4)) * 2 + 1,
        N=2 * draw(st.integers(1, 32)),
        c=draw(st.integers(1, 8)),
    )


@pytest.mark.parametrize("spec, pattern, formula", CASES, ids=[f"{spec}-{p.code}" for spec, p, _ in CASES])
@settings(max_examples=10, deadline=None)
@given(s=sizes())
def test_a_layer_has_the_parameters_of_the_formula(spec, pattern, formula, s):
    assert increment(spec, pattern, s) == formula(s)


def test_every_mechanism_that_cab_ran_is_in_the_table():
    ran = {*"softmax local lara cosformer performer nystromformer abc probsparse longshort s4d".split()}  # noqa: SIM905
    assert ran <= {spec.split("(")[0] for spec, _, _ in TABLE}


LS = "longshort(landmarks={r}, conv={conv})"
LS_CAUSAL = "cab_longshort"
ABC = "abc(slots={r})"
S4D = "s4d(init=inv, output=linear, tied=True, bidirectional=False, state={N}, channels={c})"
TTS, TRANSFORMER, ROBERTA, GPT = {"d": 512, "H": 4}, {"d": 512, "H": 8}, {"d": 768, "H": 12}, {"d": 768, "H": 12}
FASTSPEECH, POINTR, INFORMER = {"d": 256, "H": 2}, {"d": 384, "H": 6}, {"d": 512, "H": 8}

# model with softmax, layers replaced, their sizes, mechanism, patterns, the model's parameters with it
PUBLISHED = [
    (41_232_469, 8, Sizes(**FASTSPEECH, r=64, conv=5), LS, [NS], 41_503_909),
    (41_232_469, 8, Sizes(**FASTSPEECH, r=64), ABC, [NS], 41_363_541),
    (41_232_469, 8, Sizes(**FASTSPEECH, c=2, N=64), S4D, [NS], 40_446_549),
    (54_408_451, 6, Sizes(**TTS, r=64, conv=5), LS, [NS], 55_208_827),
    (54_408_451, 6, Sizes(**TTS), LS_CAUSAL, [CS], 57_575_707),
    (54_408_451, 6, Sizes(**TTS, r=64), ABC, [NS, CS, CC], 54_506_755),
    (54_408_451, 6, Sizes(**TTS, c=4, N=64), S4D, [NS, CS], 55_201_411),
    (123_706_880, 6, Sizes(**TRANSFORMER, r=16), LS, [NS], 124_113_152),
    (123_706_880, 6, Sizes(**TRANSFORMER), LS_CAUSAL, [CS], 126_886_448),
    (123_706_880, 6, Sizes(**TRANSFORMER, r=64), ABC, [NS, CS, CC], 123_756_032),
    (123_706_880, 6, Sizes(**TRANSFORMER, c=8, N=64), S4D, [NS, CS], 131_590_016),
    (124_541_329, 12, Sizes(**ROBERTA, r=16), LS, [NS], 126_349_969),
    (124_541_329, 12, Sizes(**ROBERTA, r=64), ABC, [NS], 124_639_633),
    (124_541_329, 12, Sizes(**ROBERTA, c=8, N=16), S4D, [NS], 154_088_017),
    (122_325_504, 12, Sizes(**GPT), LS_CAUSAL, [CS], 136_619_664),
    (122_325_504, 12, Sizes(**GPT, r=64), ABC, [CS], 122_423_808),
    (122_325_504, 12, Sizes(**GPT, c=8, N=64), S4D, [CS], 155_411_712),
    (52_839_270, 8, Sizes(**POINTR), "performer", [NC], 52_839_270),
    (52_839_270, 8, Sizes(**POINTR), "cosformer", [NC], 52_839_270),
    (52_839_270, 8, Sizes(**POINTR, r=64), ABC, [NC], 52_904_806),
    (11_330_055, 1, Sizes(**INFORMER, r=16), ABC, [NC], 11_332_103),
    (20_600_129, 2, Sizes(**INFORMER, r=16), ABC, [NC], 20_604_225),
    (19_492_364, 2, Sizes(**INFORMER, r=16), ABC, [NC], 19_496_460),
]


@pytest.mark.parametrize("softmax, layers, s, spec, patterns, published", PUBLISHED)
def test_a_model_of_cab_has_its_published_parameters(softmax, layers, s, spec, patterns, published):
    for pattern in patterns:
        assert softmax + layers * increment(spec, pattern, s) == published


@pytest.mark.parametrize(
    "spec, options, published",
    [(LS, {"r": 16}, 99_657_043), (ABC, {"r": 16}, 99_720_451), (S4D, {"c": 1, "N": 16}, 93_621_651)],
)
def test_the_attentions_of_the_super_resolution_network_add_up_to_its_published_parameters(spec, options, published):
    widths = 5 * [64, 128, 256] + 6 * [512]  # two blocks down and three up at each resolution, one more in the middle
    added = sum(increment(spec, NS, Sizes(d=width, H=1, **options)) for width in widths)
    assert 99_550_467 + added == published
