"""What the sizes of every network must satisfy."""

from typing import Any

from longspan.core.errors import UsageError


def check_sizes(sizes: Any, *counts: str) -> None:
    """Refuse counts below 1 and invalid dropout rates."""
    for name in counts:
        if (number := getattr(sizes, name)) < 1:
            raise UsageError(f"The network needs {name} of at least 1, got {number}; give a positive number.")
    for name in ("dropout", "attention_dropout"):
        if not 0 <= (rate := getattr(sizes, name, 0.0)) < 1:  # not every network has dropout
            raise UsageError(f"{name} is a rate from 0 to below 1, got {rate}.")
