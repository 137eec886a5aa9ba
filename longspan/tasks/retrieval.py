"""Retrieval: does one paper cite the other? Two towers of 4,000 bytes each (Long Range Arena, arXiv:2011.04006).

5,000 steps with 8,000 steps of warm-up: by the paper's own rules the learning rate never leaves its warm-up.
"""

from longspan.datasets import aan
from longspan.tasks import strong
from longspan.tasks.byte_pairs import BytePairs, protocols
from longspan.tasks.classification import encoder_task


class Retrieval(BytePairs):
    meta = encoder_task("Retrieval")
    protocols = protocols(steps=5_000) | strong.tiers(strong.RETRIEVAL, aan.PRESETS["retrieval"])
    presets = {**BytePairs.presets, "strong": strong.RETRIEVAL_MODELS}
