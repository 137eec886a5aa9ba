"""How close to the device's limits a call came: operations, the floor under its time, and what was achieved."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from longspan.attentions import Mechanism, Pattern
from longspan.core.errors import UsageError
from longspan.efficiency import floors
from longspan.efficiency.operations import count_operations
from longspan.efficiency.setup import Mode, Setup


def measure_ceilings(device: str, dtype: str) -> dict[str, Any]:
    """Bytes and operations per second that this device reaches, and how they were measured."""
    return asdict(floors.ceilings(device, getattr(torch, dtype)))


def operations_of(call: Callable[[], Any]) -> int | None:
    """Operations of one call; None where they cannot be counted, since zero would be wrong."""
    try:
        return count_operations(call)
    except Exception:  # the call runs, so it is the counter that cannot follow it
        return None


def against_floor(
    seconds: float,
    ceilings: dict[str, Any],
    mechanism: Mechanism,
    pattern: Pattern,
    setup: Setup,
    length: int,
    mode: Mode,
    *,
    operations: int | None,
    parameters: int,
    state_bytes: int | None,
) -> dict[str, Any]:
    """The fields `floor` and `achieved` of a point; `bytes_per_second` is for the bytes that must move."""
    rate = None if operations is None else operations / seconds
    try:
        found = floors.floor(
            mechanism,
            pattern,
            batch=setup.batch,
            heads=setup.heads,
            dim=setup.dim,
            length=length,
            mode=mode,
            dtype=getattr(torch, setup.dtype),
            module="layer" if mode == "decode" else setup.module,  # a step includes the projections
            counted=operations,
            parameters=parameters,
            state_bytes=state_bytes,
        )
    except UsageError:  # no formula for the least work
        return {"floor": None, "achieved": {"operations_per_second": rate, "bytes_per_second": None}}
    limits = floors.Ceilings(**ceilings)
    least = found.seconds(limits)
    return {
        "floor": asdict(found) | {"seconds": least, "bound": found.bound(limits), "ratio": seconds / least},
        "achieved": {"operations_per_second": rate, "bytes_per_second": found.bytes / seconds},
    }
