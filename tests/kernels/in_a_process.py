"""The tests of a Triton kernel, in a process of their own: Triton asks at its import whether to interpret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longspan.kernels.dispatch import HAS_TRITON

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
# What executes the shapes in signatures cannot be compiled, so tests of compiled callers do without.
COMPILED = ["-k", "compiled", "--noconftest"]
ROUNDS = [
    ["-k", "not compiled", "-m", "not full"],
    pytest.param(COMPILED, marks=pytest.mark.full),
    pytest.param(["-k", "not compiled", "-m", "full"], marks=pytest.mark.full),
]


def assert_passes(file: str, *choice: str) -> None:
    """All tests of this file that pytest takes by `choice`: on a GPU where there is one, else in the interpreter."""
    here = Path(__file__)
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", str(here.with_name(file)), *choice, "-q", "-x", "-p", "no:cacheprovider"]
    env = os.environ | interpret
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[2], env=env, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]
