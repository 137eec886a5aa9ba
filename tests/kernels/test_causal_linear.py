"""Causal linear attention: the chunked form gives what the recurrence gives, and never stores a state per token."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.kernels.causal_linear import causal_linear


def draw(length, *, decay=None, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    q, k = (torch.randn(2, 3, length, 5, dtype=dtype, requires_grad=True) for _ in range(2))
    v = torch.randn(2, 3, length, 4, dtype=dtype, requires_grad=True)
    if decay is None:
        return q, k, v, None
    return q, k, v, (-decay * torch.rand(2, 3, length, dtype=dtype)).requires_grad_()


def gradients(y, inputs):
    torch.manual_seed(1)
    return torch.autograd.grad((y * torch.randn_like(y)).sum(), [x for x in inputs if x is not None])


@pytest.mark.parametrize("decay", [None, 0.1, 5.0])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_chunks_agree_with_the_recurrence_in_outputs_and_gradients(length, decay):
    *inputs, g = draw(length, decay=decay)
    fast, law = causal_linear(*inputs, decay=g), causal_linear(*inputs, decay=g, impl="reference")
    torch.testing.assert_close(fast, law)
    used = [*inputs, g] if length > 1 else inputs  # a lone token has nothing that could fade
    for found, expected in zip(gradients(fast, used), gradients(law, used), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_thousand_tokens_agree_in_single_precision():
    q, k, v, _ = (x if x is None else x.detach() for x in draw(1000))
    fast = causal_linear(q.float(), k.float(), v.float())
    # Sums of a thousand products lose about three of the seven digits of float32 at their size of a hundred.
    torch.testing.assert_close(fast.double(), causal_linear(q, k, v, impl="reference"), atol=1e-3, rtol=1e-4)


def test_a_sudden_loss_of_memory_leaves_later_decays_exact():
    q, k, v, g = (x.detach() for x in draw(80, decay=0.5, dtype=torch.float32))
    g[:, :, 20] = -1e7
    exact = causal_linear(*(x.double() for x in (q, k, v)), decay=g.double(), impl="reference")
    torch.testing.assert_close(causal_linear(q, k, v, decay=g).double(), exact, atol=1e-5, rtol=1e-5)


def test_everything_may_be_forgotten():
    q, k, v, g = draw(130, decay=1.0)
    g = g.detach().clone()
    g[:, :, 100] = -torch.inf
    fresh = causal_linear(q[:, :, 100:], k[:, :, 100:], v[:, :, 100:], decay=g[:, :, 100:])
    whole = causal_linear(q, k, v, decay=g)
    torch.testing.assert_close(whole[:, :, 100:], fresh)
    assert all(x.isfinite().all() for x in gradients(whole, [q, k, v]))


def test_half_precision_inputs_are_summed_in_single_precision():
    q, k, v, _ = (x if x is None else x.detach().bfloat16() for x in draw(70))
    with torch.autocast("cpu", torch.bfloat16):
        y = causal_linear(q, k, v)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, causal_linear(q.float(), k.float(), v.float()))


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_no_tensor_holds_a_state_per_token():
    n, r, e = 2048, 64, 64
    q, k, v = (torch.randn(1, 1, n, r, requires_grad=True) for _ in range(3))
    with LargestTensor() as largest:
        causal_linear(q, k, v, decay=-torch.rand(1, 1, n)).sum().backward()
    assert largest.numel <= n * r * e // 16
