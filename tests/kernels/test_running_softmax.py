"""Running softmax: the halved chunks give what slots written out give, whatever the logits; and so do the kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longspan.kernels import running_softmax
from longspan.kernels.choice import HAS_TRITON
from tests.kernels.test_causal_linear import LargestTensor

KERNEL_TESTS = Path(__file__).with_name("running_softmax_kernel.py")
ROOT = Path(__file__).parents[2]


def draw(length, *, spread=1.0, hidden=0, dtype=torch.float64):
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, 2, length, 5, dtype=dtype, requires_grad=True) for _ in range(3))
    a, p = (torch.randn(2, 2, length, 3, dtype=dtype) for _ in range(2))
    a = spread * a
    a[0, :, :hidden] = -torch.inf
    return q, k, v, a.requires_grad_(), p.requires_grad_()


def both(inputs, impl):
    q, k, v, a, p = inputs
    torch.manual_seed(1)
    outputs = running_softmax.scores(q, k, a, impl=impl), running_softmax.read(p, a, v, impl=impl)
    loss = sum((y * torch.randn(y.shape, dtype=torch.float64)).sum() for y in outputs)
    return *outputs, *torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 130])
def test_chunks_agree_with_the_slots_in_outputs_and_gradients(length, spread):
    inputs = draw(length, spread=spread)
    for found, expected in zip(both(inputs, "chunked"), both(inputs, "reference"), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("hidden", [1, 40, 100])
def test_hidden_tokens_are_as_if_they_were_not_there(hidden):
    inputs = draw(100, hidden=hidden)
    found = both(inputs, "chunked")
    for value, expected in zip(found, both(inputs, "reference"), strict=True):
        torch.testing.assert_close(value, expected)
    assert (found[0][0, :, :hidden] == 0).all()
    assert (found[1][0, :, :hidden] == 0).all()
    q, k, _, a, _ = (x[:1, :, hidden:] for x in inputs)
    torch.testing.assert_close(found[0][:1, :, hidden:], running_softmax.scores(q, k, a))


def test_logits_of_any_size_stay_exact_in_single_precision():
    inputs = [x.detach() for x in draw(100, spread=1e4, dtype=torch.float32)]
    exact = [x.double().requires_grad_() for x in inputs]
    found = both([x.requires_grad_() for x in inputs], "chunked")
    for value, expected in zip(found, both(exact, "reference"), strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_huge_logit_at_the_end_does_not_erase_the_past():
    q, k, _, a, _ = (x.detach().float() for x in draw(100))
    huge = a.clone()
    huge[:, :, -1] = 1e6
    before, after = running_softmax.scores(q, k, a), running_softmax.scores(q, k, huge)
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])


def test_no_tensor_holds_the_slots_of_every_moment():
    n, r, e = 2048, 64, 64
    q, k, v, a, p = (torch.randn(1, 1, n, r, requires_grad=True) for _ in range(5))
    with LargestTensor() as largest:
        (running_softmax.scores(q, k, a).sum() + running_softmax.read(p, a, v).sum()).backward()
    assert largest.numel <= n * r * e // 16


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernels_follow_the_law():
    """On a GPU where there is one, else in Triton's interpreter; each of their tests has a name of its own."""
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(KERNEL_TESTS), "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | interpret, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]


@pytest.mark.skipif(not HAS_TRITON or bool(os.environ.get("TRITON_INTERPRET")), reason="needs triton's compiler")
@pytest.mark.parametrize("name", ["_rows", "_pairs", "_keys"])
def test_they_compile_for_a_large_gpu(name):
    """The compiler needs no GPU, and it forgives less than the interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from longspan.kernels.running_softmax import triton as kernels

    kernel = getattr(kernels, name)
    constants = {"C": 64} | {word: True for word in ("WITH_X", "WITH_Z") if word in kernel.arg_names}
    kinds = dict.fromkeys(constants, "constexpr") | {"r": "i32"}
    signature = {argument: kinds.get(argument, "*fp32") for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernels.WARPS})
    assert built.metadata.shared <= 48 * 1024
