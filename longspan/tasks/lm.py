"""Language modelling of CAB: predict the next token of a book, with GPT-2 over 8,192 tokens of PG-19.

Every token of a split is predicted once, from the tokens before it in its own block (a mechanism that carries something
from segment to segment starts every block without a carry, so that contexts are equal; `recipe.order=streams` trains it
on blocks in text order, and is off the boards like every override); the score is the perplexity per token, so it is
comparable only within one vocabulary. `cab-2023` follows the benchmark: GPT-2's BPE (the user provides the files; in
the smoke tier the BPE is learned), fairseq's sinusoids, inverse square root schedule, no clipping. `longspan` learns
its BPE from the training books, so that no token is unknown, has the sinusoids of the Transformer's paper, clips
gradients, and decays the learning rate to 0. Its `lite` is not a tenth of that, which would still be days on one GPU: a
network of 23 million parameters, a vocabulary of 8,192, and 400 updates.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.gpt2 import GPT2, GPT2Sizes
from longspan.backbones.slots import AttentionFactory
from longspan.datasets import pg19
from longspan.datasets.base import Split
from longspan.datasets.bpe import PAD
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.language import LanguageTask, StreamFeed, language_task

DATA = pg19.PRESETS["lm"]
CAB = Protocol(
    data=DATA["cab-2023", "full"],
    model=GPT2Sizes(dim=768, heads=12, layers=12, mlp=3_072, dropout=0.0, attention_dropout=0.1, sinusoid="fairseq"),
    recipe=Recipe(
        steps=125_000,
        batch_size=16,
        accumulate=2,
        learning_rate=5e-4,
        initial_rate=1e-7,
        warmup=10_000,
        schedule="inverse_sqrt",
        weight_decay=0.01,
        betas=(0.9, 0.999),
        eps=1e-8,
        evaluate_every=2_500,
        evaluation_batch=8,
    ),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=replace(CAB.model, sinusoid="alternating"),
    recipe=replace(CAB.recipe, schedule="linear", clip=1.0),
)
LITE = Protocol(
    data=DATA["longspan", "lite"],
    model=GPT2Sizes(dim=512, heads=8, layers=6, mlp=2_048, dropout=0.2, attention_dropout=0.0),
    recipe=replace(
        LONGSPAN.recipe,
        steps=400,
        batch_size=4,
        accumulate=1,
        learning_rate=1e-3,
        initial_rate=0.0,
        warmup=40,
        weight_decay=0.1,
        betas=(0.9, 0.98),
        evaluate_every=40,
    ),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=GPT2Sizes(dim=64, heads=2, layers=2, mlp=128, attention_dropout=0.0),
    recipe=replace(LITE.recipe, steps=120, batch_size=8, learning_rate=3e-3, warmup=20, evaluate_every=60),
)
CAB_SMOKE = Protocol(
    data=DATA["cab-2023", "smoke"],
    model=replace(SMOKE.model, sinusoid="fairseq"),
    recipe=replace(CAB.recipe, steps=120, batch_size=8, learning_rate=3e-3, warmup=20, evaluate_every=60),
)


@dataclass(frozen=True)
class Batch:
    """Tokens and the one after each; a target of -1 is padding. `counts` has the number of targets of each row.

    `carry` is what each layer carries from the rows before these, if a recipe reads the text in order.
    """

    tokens: Int[Tensor, "b n"]
    target: Int[Tensor, "b n"]
    counts: np.ndarray
    carry: Any = None


class BlockFeed(StreamFeed):
    def batch(self, rows: np.ndarray) -> Batch:
        tokens, lengths = self.gather(rows), self.lengths[rows]
        place = torch.arange(tokens.shape[1] - 1)
        past = (place >= torch.from_numpy(lengths)[:, None]).to(self.device, non_blocking=True)
        return Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(past, -1), lengths)


class LanguageModelling(LanguageTask):
    meta = language_task("Language modelling (PG-19)", "gpt2", {"decoder": Pattern.CAUSAL_SELF})
    protocols = {
        ("longspan", "smoke"): SMOKE,
        ("cab-2023", "smoke"): CAB_SMOKE,
        ("longspan", "lite"): LITE,
        ("longspan", "full"): LONGSPAN,
        **CAB.tiers("cab-2023"),
    }
    presets = {"cab-2023": cab_presets("lm")}
    streams = True
    takes_network = True

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.length

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        length = self.longest(protocol)
        return (self.network or GPT2)(attention, protocol.model, vocabulary=protocol.data.vocabulary, length=length)

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> BlockFeed:
        return BlockFeed(split, device, protocol.data.length)

    def tokens_of(self, batch: Batch, rank: int, processes: int) -> Batch:
        width = -(-batch.tokens.shape[1] // processes)
        first, added = rank * width, width * processes - batch.tokens.shape[1]
        padded = F.pad(batch.tokens, (0, added), value=PAD), F.pad(batch.target, (0, added), value=-1)
        tokens, target = (x[:, first : first + width] for x in padded)
        return Batch(tokens, target, np.clip(batch.counts - first, 0, width))

    def pose(self, batch: Batch, *, settled: bool) -> tuple[tuple[Any, ...], np.ndarray]:
        carry = () if batch.carry is None else (batch.carry,)
        return (batch.tokens, batch.target, *carry), batch.counts
