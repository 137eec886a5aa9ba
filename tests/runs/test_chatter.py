"""Lightning does not log what longspan has already decided."""

import logging

from lightning_utilities.core import rank_zero

from longspan.runs.fabric import make_fabric


def test_lightning_warns_but_announces_nothing(caplog):
    make_fabric("cpu", "bf16", 1)
    assert "Using bfloat16" not in caplog.text
    assert not rank_zero.log.isEnabledFor(logging.INFO)  # it would announce a device with Tensor Cores
    assert rank_zero.log.isEnabledFor(logging.WARNING)
