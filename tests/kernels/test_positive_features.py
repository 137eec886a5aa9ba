"""Positive features: the law against its formula, the kernels against the law, and what the compiler says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longspan.core.errors import UsageError
from longspan.kernels.choice import HAS_TRITON
from longspan.kernels.formulas import FORMULAS
from longspan.kernels.positive_features import common_features, relative_features

KERNEL_TESTS = Path(__file__).with_name("positive_features_kernel.py")
ROOT = Path(__file__).parents[2]


def exponentials(x, projection):
    x = x / x.shape[-1] ** 0.25
    return (x @ projection.mT - (x * x).sum(-1, keepdim=True) / 2).exp()


def test_both_are_the_exponentials_over_what_they_say():
    torch.manual_seed(0)
    x, projection = torch.randn(2, 3, 7, 6).double(), torch.randn(9, 6).double()
    expected = exponentials(x, projection)
    phi, level = relative_features(x, projection)
    torch.testing.assert_close(phi * level.exp()[..., None], expected)
    phi, largest = common_features(x, projection)
    torch.testing.assert_close(phi * largest.exp()[:, :, None], expected)
    shifted, level = relative_features(x, projection, shift=largest)
    torch.testing.assert_close(shifted * level.exp()[..., None], expected * largest.exp()[:, :, None])


def test_hidden_tokens_have_no_features_and_no_say():
    torch.manual_seed(0)
    x, projection = torch.randn(1, 1, 5, 6).double(), torch.randn(9, 6).double()
    mask = torch.tensor([[True, False, True, False, False]])
    phi, largest = common_features(x, projection, mask=mask)
    assert not phi[:, :, ~mask[0]].any()
    torch.testing.assert_close(largest, common_features(x[:, :, mask[0]], projection)[1])


def test_operations_count_one_product_with_the_projection():
    names = ("positive_features", "largest_features")
    assert {FORMULAS[getattr(torch.ops.longspan, name)]((2, 3, 10, 8), (20, 8)) for name in names} == {2 * 60 * 8 * 20}
    back = FORMULAS[torch.ops.longspan.positive_features_backward]
    assert back((2, 3, 10, 32), (2, 3, 10, 32), (2, 3, 10, 8), (20, 8)) == 2 * 60 * 8 * 20


@pytest.mark.parametrize("c, dtype, words", [(200, torch.float32, "at most 128"), (16, torch.float64, "float32 or")])
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(c, dtype, words):
    x, projection = torch.zeros(1, 1, 3, c, dtype=dtype), torch.zeros(4, c)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        relative_features(x, projection, impl="triton")


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernels_follow_the_law():
    """On a GPU where there is one, else in Triton's interpreter; each of their tests has a name of its own."""
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(KERNEL_TESTS), "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | interpret, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]


@pytest.mark.skipif(not HAS_TRITON or bool(os.environ.get("TRITON_INTERPRET")), reason="needs triton's compiler")
@pytest.mark.full
@pytest.mark.parametrize("name", ["_features", "_largest", "_back"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name):
    """The compiler needs no GPU, and it forgives less than the interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from longspan.kernels.positive_features import triton as kernels

    kernel = getattr(kernels, name)
    constants = kernels._launch(torch.empty(4, 8, 1024, 64, dtype=torch.bfloat16))
    options = {"num_warps": constants.pop("num_warps")}
    constants |= {word: True for word in ("SHIFTED", "MASKED", "OWN") if word in kernel.arg_names}
    kinds = dict.fromkeys(("shift", "level", "found"), "*fp32") | dict.fromkeys(constants, "constexpr")
    kinds |= {"mask": "*u8", "scale": "fp32", "least": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "r", "width", "share"), "i32")
    kinds |= {word: "i32" for word in kernel.arg_names if re.fullmatch(r"\w+_[bht]", word)}
    signature = {word: kinds.get(word, "*bf16") for word in kernel.arg_names}
    built = triton.compile(
        ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", 90, 32), options=options
    )
    assert built.metadata.shared <= 112 * 1024
