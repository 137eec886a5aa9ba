"""What a probe takes, a trained model with its task and data, and what it returns: numbers and a method."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from longspan.attentions import Mechanism
from longspan.core.errors import DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import Split, Splits
from longspan.results.card import Card
from longspan.tasks import Protocol, Task
from longspan.tasks.base import Feed


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in evaluation mode, the protocol it was trained under, and the card of its run."""

    task: Task
    mechanism: Mechanism
    protocol: Protocol
    model: nn.Module
    run: Card
    data: Path | None = None  # where the datasets are, if not in the default folder
    code: dict[str, str] = field(default_factory=dict)  # the source hash of a plug-in

    @cached_property
    def splits(self) -> Splits:
        """The data of the run, checked by hash."""
        splits = self.task.splits(self.protocol, self.data)
        if splits.sha256 != self.run["dataset"]["sha256"]:
            raise DataMissing(
                f"The run was made on {self.run['dataset']['variant']} data of {self.task.dataset} with the hash "
                f"{self.run['dataset']['sha256'][:12]}, but here are {splits.variant} data with {splits.sha256[:12]}; "
                "prepare the data of the run, or ask on the machine that has them."
            )
        return splits

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def leading(self) -> int:
        """How many tokens the model puts in front of an example: one where it has a class token."""
        return int(getattr(self.model, "cls", None) is not None)

    def feed(self, split: Split) -> Feed:
        return self.task.feed(split, self.protocol, self.device)

    def must_be_of(self, tasks: tuple[str, ...], why: str) -> None:
        """Refuse a question that makes no sense for this task."""
        if self.task.name not in tasks:
            known = " or ".join(tasks)
            raise UsageError(f"{why}, but the card is of {self.task.name}; name the card of a run on {known}.")


@dataclass(frozen=True)
class Answer:
    """What goes onto a probe card; large arrays go into a file beside it."""

    method: str  # one sentence
    results: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def choose(count: int, samples: int | None, seed: int) -> np.ndarray:
    """Sorted row numbers of a random sample without replacement; all rows where there are no more."""
    if samples is None or samples >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(derive(seed, "probe")).choice(count, size=samples, replace=False))
