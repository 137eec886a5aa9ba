"""The authors' Performer and its port: eps added to every feature, which leaks the future."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, headwise

RELEASES = ["authors", "port"]


def build(pattern, release="authors", **options):
    options = {"features": 16, "release": release} | options
    return headwise(f"google_performer({', '.join(f'{name}={value}' for name, value in options.items())})", pattern)


def dense(layer):
    def formula(q, k, v, visible):
        def phi(x, over):
            x = x / x.shape[-1] ** 0.25
            projected = x @ layer.projection.mT
            return (projected - projected.amax(over, True) - (x * x).sum(-1, True) / 2).exp() + layer.eps

        weights = (phi(q, -1) @ phi(k, (-1, -2)).mT) * visible / len(layer.projection)
        total = weights.sum(dim=-1, keepdim=True)
        return weights @ v / (total + 2e-6 * (total <= 1e-6))

    return formula


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern):
    assert_attend_is(dense(build(pattern)), build(pattern), masked=False)


@pytest.mark.parametrize("release, eps", [("authors", 1e-6), ("port", 1e-4)])
def test_each_release_has_its_own_eps(release, eps):
    assert build(Pattern.NONCAUSAL_SELF, release).eps == eps
    assert build(Pattern.NONCAUSAL_SELF, release, eps=0.5).eps == 0.5


@pytest.mark.parametrize("release", RELEASES)
def test_the_future_leaks_through_the_maximum(release):
    layer = build(Pattern.CAUSAL_SELF, release, features=32)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 80, 6).double()
    huge = k.clone()
    huge[:, :, -1] *= 6
    assert (layer.attend(q, k, v) - layer.attend(q, huge, v))[:, :, :-1].abs().max() > 1e-3


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_content_of_padding_never_matters(pattern, release):
    layer = build(pattern, release)
    q, k, v = torch.randn(3, 2, 2, 20, 6).double()
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    y = layer.attend(q, k, v, key_mask=mask)
    for content in (1e4, -1e4):
        hidden = ~mask[:, None, :, None]
        changed = layer.attend(q, k.masked_fill(hidden, content), v.masked_fill(hidden, content), key_mask=mask)
        torch.testing.assert_close(changed, y)


@pytest.mark.parametrize("options", [{"features": 0}, {"eps": 0.0}], ids=str)
def test_no_features_and_no_eps_are_refused(options):
    with pytest.raises(UsageError, match="needs a feature and a positive eps"):
        build(Pattern.NONCAUSAL_SELF, **options)
