"""Summarization of CAB: several newspaper articles on one event in, a summary out, decoded greedily (Multi-News).

The score is ROUGE-1 (F, from 0 to 1) of the decoded summary against the whole reference summary; ROUGE-2, summary-level
ROUGE-L and the loss in nats per token are beside it. Validation is by the same score, on 200 evenly spaced clusters,
since decoding is slow; each test cluster is decoded once, with the selected weights.

`cab-2023`: the vocabulary of facebook/bart-base (its own in the smoke tier) in ParaGen's layout, no attention dropout
(the default of the code that was run; the paper's table says 0.1), a second position that is never trained, label
smoothing 0.1, 50,000 updates of 64 clusters, the last checkpoint; 200 to 400 tokens are decoded, in batches of 64 in
the order of the file, and a row that has ended continues until all rows of its batch predict the end in the same step:
what follows its first end token stays in the text, begin, padding and end tokens are deleted wherever they occur, and
scores depend on the batch. `longspan` fixes what can be fixed without changing the model: a vocabulary anyone can make
(BPE of the training articles, of the same size), texts that keep their end tokens, the attention dropout of the paper,
gradients clipped at 1, the checkpoint with the best validation score, and a summary ends where the network ends it.

Departs from the code in: the 8 parts of a batch are weighted by their tokens and not equally; `<unk>` and `<mask>`,
which no target has, decode to nothing.

Version 2: under version 1, `cab-2023` cut a summary at its first end token, trained every position, and sources had one
end token and no begin token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.greedy import Limits
from longspan.backbones.slots import AttentionFactory
from longspan.backbones.transformer import Sizes, Transformer
from longspan.core.errors import UsageError
from longspan.datasets import multi_news
from longspan.datasets.base import Split
from longspan.datasets.bpe import BEGIN, END, PAD, SPECIALS, Vocabulary
from longspan.datasets.multi_news import Clusters
from longspan.kernels.packing import Layout
from longspan.metrics.rouge import rouge, rouge_scorer
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task, TaskMeta
from longspan.tasks.cab_table import cab_presets

WIDTH_STEP = 64  # batches have widths of multiples of this, so that compiled code sees few of them
ROWS_AT_ONCE = 16  # whose logits over the whole vocabulary are in memory together in evaluation

DATA = multi_news.PRESETS["summarization"]
CAB = Protocol(
    data=DATA["cab-2023", "full"],
    model=Sizes(attention_dropout=0.0, stop="batch", untrained_place=1),
    recipe=Recipe(
        steps=50_000,
        batch_size=64,
        accumulate=8,
        learning_rate=5e-4,
        warmup=1_000,
        schedule="inverse_sqrt",
        label_smoothing=0.1,
        weight_decay=0.01,
        betas=(0.9, 0.98),
        eps=1e-8,
        evaluate_every=5_000,
        evaluation_batch=64,
        selection="last",
    ),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=Sizes(shortest=0),
    recipe=replace(CAB.recipe, clip=1.0, evaluation_batch=128, selection="best"),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(
        dim=64,
        heads=4,
        layers=1,
        mlp=128,
        dropout=0.0,
        attention_dropout=0.0,
        source_places=128,
        target_places=32,
        longest=32,
        shortest=0,
    ),
    recipe=replace(
        LONGSPAN.recipe,
        steps=160,
        batch_size=16,
        accumulate=1,
        learning_rate=2e-3,
        warmup=40,
        evaluate_every=80,
        evaluation_batch=100,
    ),
)

CAB_SMOKE = Protocol(
    data=DATA["cab-2023", "smoke"],
    model=replace(SMOKE.model, shortest=16, stop="batch", untrained_place=1),
    recipe=replace(SMOKE.recipe, clip=None, evaluation_batch=64, selection="last"),
)


@dataclass(frozen=True)
class Batch:
    """Articles and summaries, padded at the end; a summary begins with the begin token."""

    source: Int[Tensor, "b m"]
    source_lengths: list[int]
    target: Int[Tensor, "b n"]
    target_lengths: list[int]


class PairFeed(Feed):
    """Tokens of a whole split on the device, 16 bits each; a batch is hardly wider than its longest row."""

    def __init__(self, split: Clusters, sizes: Sizes, device: torch.device | str):
        ids, vocabulary = split.ids, split.vocabulary
        self.split = split
        self.limits = Limits(vocabulary.end, vocabulary.pad, sizes.longest, sizes.shortest, sizes.stop)
        self.tokens = torch.tensor(np.asarray(ids.tokens).view(np.int16), device=device)
        self.starts = torch.tensor(ids.starts, device=device)
        self.lengths = ids.lengths
        self.longest = self.lengths.max(axis=0, initial=0)

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, rows: np.ndarray) -> Batch:
        return Batch(*self._texts(rows, 0), *self._texts(rows, 1))

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(self.lengths[rows, 0], kind="stable")  # similar lengths together: little padding
        for first in range(0, len(order), size):
            places = order[first : first + size]
            yield places, self.batch(rows[places])

    def to_write(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Batches to summarise: in the order of the rows if those of a batch stop together."""
        if self.limits.stop == "row":
            yield from self.in_batches(rows, size)
            return
        for first in range(0, len(rows), size):
            places = np.arange(first, min(first + size, len(rows)))
            yield places, self.batch(rows[places])

    def text(self, tokens: np.ndarray) -> str:
        """The decoded text: all before the first end token; if rows stop together, all but special tokens."""
        vocabulary = self.split.vocabulary
        if self.limits.stop == "row":
            ends = np.flatnonzero(tokens == vocabulary.end)
            return vocabulary.text(tokens[: ends[0]] if len(ends) else tokens)
        special = (vocabulary.begin, vocabulary.pad, vocabulary.end)
        return clean_up(vocabulary.text(tokens[~np.isin(tokens, special)]))

    def _texts(self, rows: np.ndarray, column: int) -> tuple[Int[Tensor, "b n"], list[int]]:
        lengths, device = self.lengths[rows, column], self.tokens.device
        row = torch.from_numpy(np.ascontiguousarray(rows)).to(device, non_blocking=True)
        length = torch.from_numpy(lengths).to(device, non_blocking=True)[:, None]
        width = min(-(-int(lengths.max()) // WIDTH_STEP) * WIDTH_STEP, int(self.longest[column]))
        place = torch.arange(width, device=device)
        index = (self.starts[row, column, None] + place).clamp(max=self.tokens.numel() - 1)
        tokens = self.tokens[index].int() & 0xFFFF  # unsigned 16 bits, which torch cannot gather
        return tokens.masked_fill(place >= length, self.split.vocabulary.pad), lengths.tolist()


class Summarization(Task):
    meta = TaskMeta(
        title="Summarization",
        version=2,
        paper="arXiv:2210.07661",
        score="rouge1",
        higher_is_better=True,
        backbone="transformer",
        slots={"encoder": Pattern.NONCAUSAL_SELF, "decoder": Pattern.CAUSAL_SELF, "cross": Pattern.CAUSAL_CROSS},
    )
    dataset = "multi_news"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        ("cab-2023", "smoke"): CAB_SMOKE,
        **LONGSPAN.tiers("longspan"),
        **CAB.tiers("cab-2023"),
    }
    presets = {"cab-2023": cab_presets("summarization")}

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.source

    def model(self, attention: AttentionFactory, protocol: Protocol) -> Transformer:
        data, sizes = protocol.data, protocol.model
        if data.source > sizes.source_places or data.target > sizes.target_places:
            raise UsageError(
                f"Texts of {data.source} and {data.target} tokens do not fit a network with {sizes.source_places} and "
                f"{sizes.target_places} positions; cut them with data.source and data.target, or raise "
                "model.source_places and model.target_places."
            )
        return Transformer(attention, sizes, vocabulary=data.size)

    def feed(self, split: Clusters, protocol: Protocol, device: torch.device | str) -> PairFeed:
        rouge_scorer()  # if it is missing, fail before training rather than after
        if len(split.vocabulary) > protocol.data.size:
            raise UsageError(
                f"The network has {protocol.data.size:,} entries, but the texts are written in a vocabulary of "
                f"{len(split.vocabulary):,}; set data.size to that, or prepare the texts again."
            )
        return PairFeed(split, protocol.model, device)

    def made_up(self, protocol: Protocol, count: int) -> Clusters:
        data = protocol.data
        lengths = np.tile([data.source, data.target + 1], count)
        edges = np.concatenate([[0], np.cumsum(lengths)])
        starts, stops = edges[:-1].reshape(-1, 2), edges[1:].reshape(-1, 2)
        ids = np.random.default_rng(0).integers(len(SPECIALS), data.size, edges[-1], dtype=np.uint16)
        labels = np.zeros(count, np.uint8)
        silent = Vocabulary((b"",) * data.size, BEGIN, PAD, END)
        none = np.zeros((count, 2), np.int64)
        return Clusters(np.empty(0, np.uint8), none, none, labels, Split(ids, starts, stops, labels), silent)

    def loss(self, model: nn.Module, batch: Batch, *, smoothing: float = 0.0) -> StepResult:
        nll, spread = _losses(model, batch)
        loss = (1 - smoothing) * nll.mean() + smoothing * spread.mean()
        return StepResult(loss, {"loss": nll.detach().sum()}, len(nll))

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        assert isinstance(feed, PairFeed)
        losses = torch.cat([_losses(model, batch)[0] for _, batch in feed.in_batches(rows, ROWS_AT_ONCE)])
        vocabulary = feed.split.vocabulary
        written = np.empty((len(rows), feed.limits.longest), np.uint16)
        for places, batch in feed.to_write(rows, batch_size):
            tokens = model(batch.source, batch.source_lengths, begin=vocabulary.begin, limits=feed.limits)
            written[places] = tokens.cpu().numpy()
        texts = [feed.text(line) for line in written]
        scores = rouge(texts, [feed.split.summary(row) for row in rows])
        metrics = {name: float(values.mean()) for name, values in scores.items()}
        metrics["loss"] = float(losses.double().mean())
        predictions = {"row": rows, "tokens": written, "text": np.array(texts), **scores}
        return Evaluation(metrics, len(rows), predictions, counts={"loss": len(losses)})

    def chance(self, split: Clusters) -> float | None:
        """The score of summaries that ignore the articles: each article gets its neighbour's summary."""
        if len(split) < 2:
            return None
        summaries = [split.summary(row) for row in range(len(split))]
        return float(rouge([*summaries[1:], summaries[0]], summaries, ["rouge1"])["rouge1"].mean())


def _losses(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """For every token that follows another: its negative log-likelihood, and the mean of that over the vocabulary."""
    lengths = [length - 1 for length in batch.target_lengths]
    given, wanted = batch.target[:, :-1], batch.target[:, 1:]
    log_p = model(batch.source, batch.source_lengths, given, lengths).float().log_softmax(dim=-1)
    label = Layout.of_lengths(lengths, wanted.shape[1], wanted.device).pack(wanted).long()
    return -log_p.gather(1, label[:, None])[:, 0], -log_p.mean(dim=-1)


def clean_up(text: str) -> str:
    """Without the spaces that the tokenizer of bart-base removes when it decodes.

    >>> clean_up("They do n't , it 's said .")
    "They don't, it's said."
    """
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(spaced, spaced.strip())
    return text
