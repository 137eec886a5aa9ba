"""Retrieval for 30,000 steps, as the PyTorch literature trains it: worth more than twenty points of accuracy.

Otherwise the rules of `retrieval` (Long Range Arena, arXiv:2011.04006): the rates of its first 5,000 steps are the same
here, and the warm-up of 8,000 steps is completed.
"""

from longspan.tasks.byte_pairs import BytePairs, protocols
from longspan.tasks.classification import encoder_task


class Retrieval30K(BytePairs):
    meta = encoder_task("Retrieval 30K")
    protocols = protocols(steps=30_000)
