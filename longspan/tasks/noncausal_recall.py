"""Multi-query associative recall for an encoder: rows of `recall`, which every token sees in full (arXiv:2312.04927).

The value of a query does not follow the query and is found only in the context, so that nothing has to be masked. It
separates mechanisms less than `recall`: a key may also attend forward, and its position helps to find it. Two RoBERTa
blocks, steps as in `recall`.
"""

from dataclasses import replace

from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.gpt2 import Sizes
from longspan.backbones.roberta import RoBERTa
from longspan.backbones.slots import AttentionFactory
from longspan.datasets import recall
from longspan.datasets.base import Split
from longspan.tasks import recall_rules
from longspan.tasks.base import Protocol
from longspan.tasks.placed_answers import Batch, PlacedAnswersTask, diagnostic


class NoncausalRecall(PlacedAnswersTask):
    meta = replace(
        diagnostic("Associative recall, noncausal", "arXiv:2312.04927"),
        backbone="roberta",
        slots={"encoder": Pattern.NONCAUSAL_SELF},
    )
    dataset = "recall"
    protocols = recall_rules.protocols(recall.PRESETS["noncausal_recall"], Sizes)
    takes_network = False

    def vocabulary(self, protocol: Protocol) -> int:
        return protocol.data.vocabulary

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        vocabulary, length = self.vocabulary(protocol), self.longest(protocol)
        return RoBERTa(attention, protocol.model, vocabulary=vocabulary, length=length)

    def answers(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.tokens, batch.real, batch.places)

    def chance(self, split: Split) -> float:
        return recall_rules.chance(split)
