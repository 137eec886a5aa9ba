"""Retrieval for 30,000 steps, as the PyTorch literature trains it: worth more than twenty points of accuracy.

Warm-up of 800 steps, as there. Otherwise the rules of `retrieval` (Long Range Arena, arXiv:2011.04006).
"""

from longspan.tasks.byte_pairs import BytePairs, protocols
from longspan.tasks.classification import encoder_task


class Retrieval30K(BytePairs):
    meta = encoder_task("Retrieval 30K")
    protocols = protocols(steps=30_000, warmup=800)
