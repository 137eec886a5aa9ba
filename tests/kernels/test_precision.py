"""Compiled backward passes keep the precision of uncompiled ones."""

import subprocess
import sys

import pytest

COMPILED = """
import torch
from longspan.kernels.precision import compile_backward_without_autocast, without_autocast

def product(a, b):
    with without_autocast(a):
        return a @ b

def gradient(of):
    torch.manual_seed(0)
    a, b = torch.randn(2, 16, 16).unbind(0)
    a.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = of(a, b)
    return torch.autograd.grad(y.square().sum(), a)[0]

compile_backward_without_autocast()
torch.testing.assert_close(gradient(torch.compile(product, backend="aot_eager")), gradient(product))
"""


@pytest.mark.full
def test_what_is_kept_in_single_precision_is_so_in_a_compiled_backward_pass():
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
