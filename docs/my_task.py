"""A task of one's own, whole: ListOps with short, shallow expressions, which a small encoder learns in seconds.

Data are generated with other settings of the dataset `listops`; network, loss and score are those of every task with
tokens in and one label out. The numbers are our own.
"""

from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import listops
from longspan.tasks.base import Protocol, Recipe, TaskMeta
from longspan.tasks.classification import Classification

SMOKE = Protocol(
    data=listops.Data(train=2_000, valid=200, test=500, longer_than=12, shorter_than=64, max_depth=4, max_args=6),
    model=Sizes(dim=32, heads=2, layers=1, mlp=64, dropout=0.0, attention_dropout=0.0),
    recipe=Recipe(steps=100, batch_size=32, learning_rate=4e-3, warmup=10, schedule="linear", evaluate_every=50),
)


class ShallowListOps(Classification):
    meta = TaskMeta(
        title="Shallow ListOps",
        version=1,
        paper="none",
        score="accuracy",
        higher_is_better=True,
        backbone="encoder_classifier",
        slots={"encoder": Pattern.NONCAUSAL_SELF},
    )
    dataset = "listops"
    protocols = {("longspan", "smoke"): SMOKE}
    symbols, classes = listops.VOCAB, listops.CLASSES

    def longest(self, protocol):
        return protocol.data.shorter_than

    def shift(self, protocol):
        return 0  # the ids of ListOps leave 0 to padding already
