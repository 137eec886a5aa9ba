"""The arithmetic mean of a model's weights at the last evaluations of a run, kept as one running sum.

The recipe says which evaluations are the last ones, so no weights need be kept that later drop out of the mean.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from longspan.tasks.base import Recipe


class MeanOfLast:
    """Sums a state dict in float64 at each of the last evaluations; integers, such as counters, keep the last one."""

    def __init__(self, recipe: Recipe):
        chosen = recipe.selection == "mean_of_last"
        self.steps = recipe.evaluations()[-recipe.averaged :] if chosen else []
        self.sum: dict[str, Tensor] = {}

    def update(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Add the weights after `step` steps, if they are among the last."""
        if step not in self.steps:
            return
        for name, value in state.items():
            if value.is_floating_point() or value.is_complex():
                added = self.sum.get(name, 0) + value.detach().to(_wide(value))
            else:
                added = value.detach().clone()
            self.sum[name] = added

    def load(self, saved: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from a saved sum."""
        self.sum = {name: value.to(device) for name, value in saved.items()}

    def expected(self, step: int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a sum after `step` steps looks like: names, shapes and dtypes."""
        if not self.steps or step < self.steps[0]:
            return {}
        return {name: torch.empty(value.shape, dtype=_wide(value), device="meta") for name, value in state.items()}

    def mean(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean, in the dtypes of the model's own state."""
        assert self.sum.keys() == state.keys(), "the mean of a run that has not ended"
        return {
            name: (total / len(self.steps) if total.is_floating_point() or total.is_complex() else total).to(
                state[name].dtype
            )
            for name, total in self.sum.items()
        }


def _wide(value: Tensor) -> torch.dtype:
    """The dtype of a sum."""
    if value.is_complex():
        return torch.complex128
    return torch.float64 if value.is_floating_point() else value.dtype
