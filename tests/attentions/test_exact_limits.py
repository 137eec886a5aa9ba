"""Exact limits: an approximation whose options leave nothing out is softmax attention, to 1e-5 in single precision."""

import pytest
import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.conformance.difference import difference

N = 33  # the length, and that of the context

# each covers N tokens, most of them exactly
LIMITS = [
    f"local(window={N})",
    "local(window=4096)",
    f"local(window={N}, shape=blocks)",
    f"nystromformer(landmarks={N})",
    "nystromformer(landmarks=4096)",
    f"probsparse(factor={N})",
    f"longformer(window={2 * N})",
    f"longformer(window=2, global_tokens={N})",
    f"cluster_former(clusters=1, window={N}, overlap=0)",
    f"etc(radius={N - 1}, max_distance=0)",
    f"etc(radius=0, global_tokens={N}, stride=1, max_distance=0)",
    f"logsparse(local={N})",
    "logsparse(restart=1)",
    f"sac(edges={N - 1})",
    f"scatterbrain(window={2 * N}, features=4, buckets=1)",
    "bigbird(block=64)",
    "bigbird(block=11)",
    "bigbird(block=4, random=9)",
    "sparse_transformer(stride=64)",
    "sparse_transformer(stride=4, summary=4)",
    "sparse_transformer(stride=1)",
    "sparse_transformer(kind=strided, stride=1)",
    "sinkhorn(block=64, null_block=False)",
    "softmax",
]
CASES = [(spec, pattern) for spec in LIMITS for pattern in attentions.get(spec).meta.patterns] + [
    ("probsparse(factor=9)", Pattern.NONCAUSAL_SELF),  # 9 ceil(ln 33) = 36 queries, if all can be ranked at once
    ("probsparse(factor=9)", Pattern.NONCAUSAL_CROSS),
]


def pair(spec: str, pattern: Pattern) -> tuple[Attention, Attention]:
    """A layer, and softmax attention with the same projections."""
    torch.manual_seed(0)
    layer, softmax = (
        attentions.get(name)(12, 2, pattern, max_length=N, max_context=N).eval()
        for name in (spec, "softmax(kernel=plain)")
    )
    softmax.load_state_dict({name: value for name, value in layer.state_dict().items() if name in softmax.state_dict()})
    return layer, softmax


def inputs(pattern: Pattern, masked: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    sources = [torch.randn(2, N, 12, generator=generator).requires_grad_() for _ in range(1 + pattern.cross)]
    mask = torch.arange(N) < torch.tensor([[N], [20]])
    return sources, {"context_mask" if pattern.cross else "mask": mask} if masked else {}


def assert_equal(layer: Attention, softmax: Attention, masked: bool) -> None:
    """In outputs, and in the gradients of inputs and of shared projections."""
    sources, masks = inputs(layer.pattern, masked)
    real = masks.get("mask", torch.ones(2, N, dtype=torch.bool))
    outputs = [one(*sources, **masks)[real] for one in (layer, softmax)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
    shared = dict(softmax.named_parameters())
    own = dict(layer.named_parameters())
    w = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((outputs[0] * w).sum(), [*sources, *(own[name] for name in shared)])
    expected = torch.autograd.grad((outputs[1] * w).sum(), [*sources, *shared.values()])
    for one, other in zip(found, expected, strict=True):
        assert difference(one, other) < 1e-5 or float((one - other).abs().max()) < 1e-5  # a bias gradient may vanish


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spec, pattern", CASES, ids=[f"{spec}-{p.code}" for spec, p in CASES])
def test_options_that_leave_nothing_out_give_softmax_attention(spec, pattern, masked):
    assert_equal(*pair(spec, pattern), masked)


@pytest.mark.parametrize("pattern", attentions.get("linformer").meta.patterns)
@pytest.mark.parametrize("sharing", ["headwise", "key-value", "none"])
def test_a_linformer_whose_projections_are_identities_is_softmax_attention(sharing, pattern):
    linformer, softmax = pair(f"linformer(rank={N}, sharing={sharing!r})", pattern)
    with torch.no_grad():
        for name, parameter in linformer.named_parameters():
            if "slots" in name:
                parameter.copy_(torch.eye(N))
    assert_equal(linformer, softmax, masked=False)  # a hidden token would leave an empty slot, which still gets weight


@pytest.mark.parametrize("spec", [f"abc(slots={N})", f"lara(landmarks={N})", f"performer(features={N})", "linear"])
def test_other_approximations_have_no_such_limit_and_declare_none(spec):
    layer, softmax = pair(spec, Pattern.NONCAUSAL_SELF)
    (x,), _ = inputs(Pattern.NONCAUSAL_SELF, masked=False)
    assert difference(layer(x), softmax(x)) > 1e-3
    assert not layer.meta.exact
    assert not layer.meta.limit


def test_every_declared_limit_is_in_the_table():
    limited = {name for name in attentions.names() if (meta := attentions.get(name).meta).exact or meta.limit}
    assert limited - {spec.split("(")[0] for spec in LIMITS} == set()
