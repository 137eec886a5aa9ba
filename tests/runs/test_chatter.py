"""Lightning does not announce what longspan has decided."""

import subprocess
import sys

PROGRAM = """
from longspan.runs.fabric import make_fabric
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
make_fabric("cpu", "bf16", 1)
rank_zero_info("You are using a CUDA device that has Tensor Cores.")
rank_zero_warn("something is wrong")
"""


def test_lightning_warns_but_announces_nothing():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "something is wrong" in done.stderr
    assert "Using bfloat16" not in done.stderr + done.stdout
    assert "Tensor Cores" not in done.stderr + done.stdout
