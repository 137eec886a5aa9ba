"""The authors' Skyformer: how it differs from `skyformer`."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.released.authors_skyformer import AuthorsSkyformer
from longspan.core.errors import UsageError


def build(options="landmarks=4"):
    torch.manual_seed(0)
    layer = attentions.get(f"authors_skyformer({options})")(8, 2, Pattern.NONCAUSAL_SELF).double().eval()
    assert isinstance(layer, AuthorsSkyformer)
    return layer


def test_evaluation_is_random():
    layer, x = build(), torch.randn(1, 30, 8).double()
    assert not torch.allclose(layer(x), layer(x))


def test_a_row_depends_on_its_neighbours_while_the_iteration_has_not_converged():
    layer, x, found = build("landmarks=16, iterations=2"), torch.randn(2, 30, 8).double(), []
    for batch in (x, x[:1], x[1:]):
        torch.manual_seed(1)
        found.append(layer(batch))
    assert not torch.allclose(found[0], torch.cat(found[1:]))


def test_no_padding_at_the_right_is_drawn():
    layer, lengths = build("landmarks=50"), torch.tensor([20, 7])
    drawn = layer.draw(lengths, 20)
    assert (drawn.flatten(1)[:, :25] < lengths[:, None]).all()
    assert ((drawn.flatten(1)[:, 25:] - 20) < lengths[:, None]).all()


def test_sizes_below_one_are_refused():
    with pytest.raises(UsageError, match="must be at least 1"):
        build("landmarks=0")
