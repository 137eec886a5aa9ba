"""Sampled scores: the law against a loop, and the kernel against the law."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.choice import HAS_TRITON
from longspan.kernels.sampled_scores import sampled_scores

KERNEL_TESTS = Path(__file__).with_name("sampled_scores_kernel.py")
ROOT = Path(__file__).parents[2]


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 20), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_law_is_a_loop_over_queries_and_samples(n, m, s, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 2, n, 3).double(), torch.randn(2, 2, m, 3).double()
    sample, size = torch.randint(m, (2, n, s + 1)), torch.randint(s + 2, (2, n))
    largest, apart = sampled_scores(q, k, sample, size)
    for b in range(2):
        for h in range(2):
            for i in range(n):
                scores = [(q[b, h, i] @ k[b, h, j]).item() for j in sample[b, i, : size[b, i]]]
                most = max(scores, default=float("-inf"))
                assert largest[b, h, i].item() == pytest.approx(most)
                assert apart[b, h, i].item() == pytest.approx(sum(most - one for one in scores))


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, c, words", [(torch.float64, 4, "half precision"), (torch.float32, 9_000, "16384")])
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, c, words):
    x, sample = torch.zeros(1, 1, 2, c, dtype=dtype), torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        sampled_scores(x, x, sample, sample[..., 0], impl="triton")


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernel_follows_the_law():
    """On a GPU where there is one, else in Triton's interpreter; each of its tests has a name of its own."""
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(KERNEL_TESTS), "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | interpret, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]


@pytest.mark.skipif(not HAS_TRITON or bool(os.environ.get("TRITON_INTERPRET")), reason="needs triton's compiler")
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_it_compiles_for_a_large_gpu(kind):
    """The compiler needs no GPU, and it forgives less than the interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from longspan.kernels.sampled_scores import triton as kernels

    kernel, constants = kernels._sampled_scores, kernels.launch(50, 64)
    options = {"num_warps": constants.pop("num_warps")}
    kinds = {"q": f"*{kind}", "k": f"*{kind}", "sample": "*i32", "size": "*i32", "largest": "*fp32", "apart": "*fp32"}
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {argument: kinds.get(argument, "i32") for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
