"""Selective copying: repeat, in order, the symbols scattered among blanks (our definition, see the dataset)."""

from longspan.datasets import copying
from longspan.tasks.copying_rules import CopyingTask, protocols
from longspan.tasks.placed_answers import diagnostic


class SelectiveCopying(CopyingTask):
    meta = diagnostic("Selective copying", "arXiv:2312.00752")
    protocols = protocols(copying.PRESETS["selective_copying"])
