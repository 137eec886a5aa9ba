"""Run the tests of Triton kernels in their own process, because Triton decides at import whether to interpret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longspan.kernels.dispatch import HAS_TRITON

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


def assert_passes(*words: str) -> None:
    """Run pytest with these files and options: on a GPU if there is one, otherwise interpreted."""
    here = Path(__file__)
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    words = tuple(str(here.with_name(word)) if word.endswith(".py") else word for word in words)
    command = [sys.executable, "-m", "pytest", *words, "-q", "-x", "-p", "no:cacheprovider"]
    env = os.environ | interpret
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[2], env=env, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]
