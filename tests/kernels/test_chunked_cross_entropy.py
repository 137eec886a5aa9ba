"""The loss computed in chunks of tokens equals the loss of all at once, in value and gradient."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from longspan.kernels.chunked_cross_entropy import chunked_cross_entropy


@given(rows=st.integers(1, 3), n=st.integers(0, 9), entries=st.integers(1, 200), biased=st.booleans())
def test_parts_of_any_size_give_the_whole(rows, n, entries, biased):
    generator = torch.Generator().manual_seed(n)
    h, e, b = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((rows, n, 4), (11, 4), (11,))
    )
    y = torch.randint(-1, 11, (rows, n), generator=generator)
    bias = b if biased else None
    found = chunked_cross_entropy(h, e, y, bias, entries=entries)
    logits = F.linear(h, e, bias)
    wanted = F.cross_entropy(logits.reshape(-1, 11), y.reshape(-1), reduction="none", ignore_index=-1).reshape(rows, n)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    leaves = (h, e, b) if biased else (h, e)
    ours, theirs = (torch.autograd.grad((loss * weight).sum(), leaves) for loss in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_half_precision_is_left_before_the_logarithm():
    h, e = torch.randn(3, 8), torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert chunked_cross_entropy(h, e, torch.tensor([0, 1, 2])).dtype == torch.float32
