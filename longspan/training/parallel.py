"""How several processes share the training of one cell (`recipe.parallel`), and what cannot be shared that way.

ddp       every process has all weights and its share of the rows of each batch
fsdp      the same, but only a share of the weights, their gradients and the optimiser's moments (`sharding.py`)
context   every process has all weights and all rows, and a part of the tokens of each (`kernels/context_parallel`)
"""

from torch import nn

from longspan.attentions import HeadwiseAttention
from longspan.backbones.slots import slots_of
from longspan.core.errors import UsageError
from longspan.tasks.base import Recipe, Task


def check_parallel(task: Task, model: nn.Module, recipe: Recipe, processes: int) -> None:
    """Refuse what several processes cannot share in the recipe's way; a single process shares nothing."""
    if processes == 1:
        return
    if recipe.parallel == "fsdp" and recipe.pretraining_steps:
        raise UsageError(
            "A network that is pretrained first cannot be sharded; leave recipe.parallel at ddp, or "
            "recipe.pretraining_steps at 0."
        )
    if recipe.parallel == "context":
        _check_context(task, model, recipe)


def _check_context(task: Task, model: nn.Module, recipe: Recipe) -> None:
    if type(task).tokens_of is Task.tokens_of:
        raise UsageError(
            f"recipe.parallel=context shares the tokens of a row among devices, which {task.name} does not allow; "
            "leave it at ddp or fsdp, or take lm."
        )
    if recipe.order == "streams":
        raise UsageError(
            "recipe.parallel=context shares the tokens of a row, which streams read on; leave one of the two."
        )
    for slot in slots_of(model):
        if not (isinstance(slot, HeadwiseAttention) and slot.shares_context):
            raise UsageError(
                f"{type(slot).__name__} needs the whole of each row, which recipe.parallel=context shares among "
                "devices; leave it at ddp or fsdp, or take softmax, linear or dpfp."
            )
