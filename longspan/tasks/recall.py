"""Multi-query associative recall: which value followed this key? (arXiv:2312.04927, settings of arXiv:2402.18668)

`longspan` has the rows of the Based paper in a network of this package: two GPT-2 blocks with MLP, positions and one
head, and no convolution before the slot, so that the mechanism alone has to find the key and the token after it. The
steps are those of 32 epochs. Chance is to answer with any value of the row.
"""

from longspan.backbones.gpt2 import GPT2Sizes
from longspan.datasets import recall
from longspan.datasets.base import Split
from longspan.tasks import recall_rules
from longspan.tasks.base import Protocol
from longspan.tasks.placed_answers import PlacedAnswersTask, diagnostic


class Recall(PlacedAnswersTask):
    meta = diagnostic("Multi-query associative recall", "arXiv:2312.04927")
    dataset = "recall"
    protocols = recall_rules.protocols(recall.PRESETS["recall"], GPT2Sizes)

    def vocabulary(self, protocol: Protocol) -> int:
        return protocol.data.vocabulary

    def chance(self, split: Split) -> float:
        return recall_rules.chance(split)
