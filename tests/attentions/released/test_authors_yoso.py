"""The authors' second version of YOSO is the dense formula, with its true derivative."""

import pytest
import torch
import torch.nn.functional as F

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import assert_attend_is, headwise


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_dense_formula(masked):
    def formula(q, k, v, visible):
        cosine = torch.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
        return F.normalize(((1 - (0.98 * cosine).acos() / torch.pi) ** 5 * visible) @ v, dim=-1)

    assert_attend_is(formula, headwise("authors_yoso(bits=5)", Pattern.NONCAUSAL_SELF), masked=masked)


def test_a_hash_has_a_bit():
    with pytest.raises(UsageError, match="at least one bit"):
        headwise("authors_yoso(bits=0)", Pattern.NONCAUSAL_SELF)
