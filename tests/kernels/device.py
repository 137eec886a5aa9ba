"""Where the tests of Triton kernels run: on a GPU, or in Triton's interpreter, which this import patches."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

if DEVICE == "cpu":
    from tests.kernels.interpreter import mend

    mend()
