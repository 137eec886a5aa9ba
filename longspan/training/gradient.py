"""The gradient of a whole batch, which is processed in parts (gradient accumulation) and divided among processes.

However a batch is divided, its gradient follows one rule (`Recipe.parts`), where g_p is the gradient of the mean loss
of part p over all processes, and n_p the count behind that mean:

    counts             sum_p n_p g_p / sum_p n_p      the parts are one batch; every term of a loss by counts of its own
    mean               sum_p g_p / parts
    sum_over_samples   sum_p g_p / sum_p samples_p    samples are `StepResult.count`; the rule of fairseq

Every process has a share of every part. Gradients are averaged over processes after the last part, hence the factor
`world_size` in the objective.

An auxiliary loss of the mechanisms is added to the mean loss of its part. If a loss has terms, it is one more term,
which counts parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attentions.auxiliary import auxiliary_loss, collecting, layers_with_auxiliary
from longspan.core.errors import PluginError
from longspan.tasks.base import Recipe, StepResult, Task
from longspan.training.sharding import kept_back

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Counts = Mapping[str, int | Tensor]
AUXILIARY = "auxiliary_loss"


@dataclass(frozen=True)
class Gradient:
    """Accumulates the gradient of a batch in the parameters of a model: `part` for each part, then `finish`."""

    task: Task
    model: Any
    recipe: Recipe
    fabric: "Fabric"

    def totals(self, parts: Sequence[Any]) -> Counts:
        """The count of each term of the loss over all parts and processes; empty if not needed beforehand."""
        if self.recipe.parts != "counts" or len(parts) == 1:
            return {}
        each = [self.task.counts(part) for part in parts]
        if each[0] and self._has_auxiliary:
            each = [{**counts, AUXILIARY: 1} for counts in each]
        return self._over_processes({name: sum(one[name] for one in each) for name in each[0]})

    def part(self, part: Any, totals: Counts, *, last: bool, alone: bool) -> StepResult:
        """One forward and backward pass; `alone` says that the part is the whole batch."""
        with kept_back(self.model, self.fabric, not last):
            with collecting(self.model) as layers:
                result = self.task.loss(self.model, part, smoothing=self.recipe.label_smoothing)
                result = _with_auxiliary(result, auxiliary_loss(layers)) if layers else result
            self.fabric.backward(self._objective(result, totals, alone))
        terms = {name: (mean.detach(), count) for name, (mean, count) in result.terms.items()}
        return replace(result, loss=result.loss.detach(), terms=terms, sums=self._sums(result))

    def _sums(self, result: StepResult) -> dict[str, Tensor]:
        """What a part adds to the learning curve: the sum over processes is what one process would have reported.

        A term is a mean over its own count, while sums are over samples. If every term has a sum, the sum of the loss
        is their total.
        """
        if self.fabric.world_size == 1 or not result.terms:
            return result.sums
        own = {name: count for name, (_, count) in result.terms.items() if name in result.sums}
        totals = self._over_processes({**own, "": result.count})
        sums = {name: result.terms[name][0].detach() * self._share(own[name], totals[name]) for name in own}
        sums = {name: value * (totals[""] / self.fabric.world_size) for name, value in sums.items()}
        if own.keys() == result.terms.keys() and "loss" in result.sums:
            sums["loss"] = torch.stack(list(sums.values())).sum()
        return {**result.sums, **sums}

    @cached_property
    def _has_auxiliary(self) -> bool:
        return bool(layers_with_auxiliary(self.model))

    def _objective(self, result: StepResult, totals: Counts, alone: bool) -> Tensor:
        """The loss to backpropagate; its sum over processes and parts is the loss of the batch, up to `finish`."""
        one_process = self.fabric.world_size == 1
        if one_process and (alone or self.recipe.parts != "counts"):
            return result.loss
        if not result.terms:
            if self.recipe.parts == "counts":
                return result.loss * result.count
            return result.loss * self._share(result.count, self._over_processes({"": result.count})[""])
        own = {name: count for name, (_, count) in result.terms.items()}
        if alone or self.recipe.parts != "counts":
            totals = self._over_processes(own)
        if own.keys() != totals.keys():
            raise PluginError(
                f"The loss of {self.task.name} has the terms {', '.join(own)}, but {self.task.name}.counts gives "
                f"{', '.join(totals) or 'nothing'}; let it count the same terms."
            )
        weighted = [mean * self._share(own[name], totals[name]) for name, (mean, _) in result.terms.items()]
        return torch.stack(weighted).sum()

    def finish(self, counts: Sequence[int | Tensor], has_terms: bool) -> None:
        """Divide the accumulated gradients by the divisor that the rule computes from the counts of all parts."""
        rule = self.recipe.parts
        if rule == "mean":
            divisor: float | Tensor = len(counts)
        elif rule == "counts" and (has_terms or len(counts) == self.fabric.world_size == 1):
            divisor = 1
        else:
            divisor = self._over_processes({"": sum(counts)})[""]
            divisor = divisor if rule == "sum_over_samples" else divisor / self.fabric.world_size
        if isinstance(divisor, Tensor) or divisor != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(divisor)

    def _share(self, own: int | Tensor, total: int | Tensor) -> float | Tensor:
        """The weight of a mean over `own` in the mean over `total`, which may be 0."""
        total = total.clamp(min=1) if isinstance(total, Tensor) else max(1, total)
        weight = own * self.fabric.world_size / total
        return weight.float() if isinstance(weight, Tensor) else weight

    def _over_processes(self, counts: Counts) -> Counts:
        """The counts summed over all processes, on the device."""
        if self.fabric.world_size == 1 or not counts:
            return counts
        device = self.fabric.device
        mine = torch.stack([torch.as_tensor(n, dtype=torch.float64, device=device) for n in counts.values()])
        return dict(zip(counts, self.fabric.all_reduce(mine, reduce_op="sum"), strict=True))  # type: ignore[arg-type]


def _with_auxiliary(result: StepResult, term: Tensor | float) -> StepResult:
    """The result with the auxiliary loss of the mechanisms added, which the learning curve shows separately."""
    term = torch.as_tensor(term, device=result.loss.device)
    terms = {**result.terms, AUXILIARY: (term, 1)} if result.terms else result.terms
    sums = {**result.sums, AUXILIARY: term.detach() * result.count}
    return replace(result, loss=result.loss + term, sums=sums, terms=terms)
