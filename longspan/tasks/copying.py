"""Copying: repeat, in order, the symbols that a long row began with (our definition, see the dataset)."""

from longspan.datasets import copying
from longspan.tasks.copying_rules import CopyingTask, protocols
from longspan.tasks.placed_answers import diagnostic


class Copying(CopyingTask):
    meta = diagnostic("Copying", "arXiv:2111.00396")
    protocols = protocols(copying.PRESETS["copying"])
