"""Masked language modelling of CAB: predict masked tokens of a book, with RoBERTa-base over 2,048 tokens of PG-19.

A row is `<s>` and up to 2,047 tokens. Of these 15 % are to be predicted: 80 % of them are replaced by `<mask>`, 10 % by
a random token, and 10 % are left as they are. In training they are drawn at every step, for validation and test once,
from the data seed. The score is the perplexity of the masked tokens. `cab-2023` follows the benchmark: GPT-2's BPE (a
learned one in the smoke tier), rows of whole lines, and the score is that of the validation books, on which the
checkpoint was selected as well. `longspan` has full rows, a BPE learned from the training books, clipped gradients, and
is scored on the test books. Its `lite` is not a tenth of that but a small network that trains in minutes on a GPU.
Departs from fairseq in: `<s>` is never masked, and a row masks 15 % of its tokens rounded, not randomly rounded up or
down.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions import Pattern
from longspan.backbones.gpt2 import Sizes
from longspan.backbones.roberta import RoBERTa
from longspan.backbones.slots import AttentionFactory
from longspan.core.seeding import derive
from longspan.datasets import pg19
from longspan.datasets.base import Split
from longspan.datasets.bpe import BEGIN, SPECIALS
from longspan.kernels.row_noise import row_noise
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.cab_table import cab_presets
from longspan.tasks.language import LanguageTask, StreamFeed, language_task

SHARE, SHOW_MASK, SHOW_OTHER = 0.15, 0.8, 0.1  # to be predicted; of these, shown as <mask> or another token

DATA = pg19.PRESETS["mlm"]
CAB = Protocol(
    data=DATA["cab-2023", "full"],
    model=Sizes(dim=768, heads=12, layers=12, mlp=3_072, dropout=0.1, attention_dropout=0.1),
    recipe=Recipe(
        steps=125_000,
        batch_size=256,
        accumulate=4,
        learning_rate=3e-4,
        warmup=5_000,
        schedule="polynomial",
        weight_decay=0.01,
        betas=(0.9, 0.98),
        eps=1e-6,
        evaluate_every=2_500,
        evaluation_batch=32,
    ),
)
LONGSPAN = replace(CAB, data=DATA["longspan", "full"], recipe=replace(CAB.recipe, clip=1.0))
LITE = Protocol(
    data=DATA["longspan", "lite"],
    model=Sizes(dim=512, heads=8, layers=6, mlp=2_048, dropout=0.1, attention_dropout=0.0),
    recipe=replace(
        LONGSPAN.recipe,
        steps=600,
        batch_size=16,
        accumulate=1,
        learning_rate=5e-4,
        warmup=100,
        weight_decay=0.1,
        evaluate_every=60,
    ),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(dim=64, heads=2, layers=2, mlp=128, dropout=0.0, attention_dropout=0.0),
    recipe=replace(LITE.recipe, steps=240, batch_size=32, learning_rate=3e-3, warmup=20, evaluate_every=120),
)
CAB_SMOKE = Protocol(
    data=DATA["cab-2023", "smoke"],
    model=SMOKE.model,
    recipe=replace(CAB.recipe, steps=240, batch_size=32, learning_rate=3e-3, warmup=20, evaluate_every=120),
)


@dataclass(frozen=True)
class Batch:
    """Rows that begin with `<s>`, padded at the right; `lengths` and the numbers of the rows are known on the host.

    `seed` is drawn for each batch, and decides what is masked in training.
    """

    tokens: Int[Tensor, "b n"]
    lengths: np.ndarray
    rows: np.ndarray
    data: pg19.Data
    seed: int


@dataclass(frozen=True)
class Chance:
    """Random numbers for every token of a batch: the smallest `order` are masked, `fate` says how, `other` by what."""

    order: Float[Tensor, "b n"]
    fate: Float[Tensor, "b n"]
    other: Float[Tensor, "b n"]

    @classmethod
    def drawn(cls, batch: Batch) -> "Chance":
        """New numbers for each batch; those of a row do not depend on the rows beside it."""
        rows = torch.from_numpy(np.ascontiguousarray(batch.rows)).to(batch.tokens.device, non_blocking=True)
        return cls(*row_noise(batch.seed, rows, 3 * batch.tokens.shape[1]).unflatten(1, (-1, 3)).unbind(dim=-1))

    @classmethod
    def settled(cls, batch: Batch) -> "Chance":
        """Fixed numbers for each row, independent of the batch."""
        width = batch.tokens.shape[1]
        rows = [np.random.default_rng(derive(batch.data.seed, "mask", int(row))) for row in batch.rows]
        numbers = torch.from_numpy(np.stack([rng.random((width, 3)) for rng in rows])).to(batch.tokens.device)
        return cls(*numbers.unbind(dim=-1))


@dataclass(frozen=True)
class Hidden:
    """What the network sees, which positions it predicts, and the original tokens there (-1: not predicted)."""

    tokens: Int[Tensor, "b n"]
    mask: Bool[Tensor, "b n"] | None
    places: Int[Tensor, "b k"]
    target: Int[Tensor, "b k"]
    counts: np.ndarray


class RowFeed(StreamFeed):
    def __init__(self, split: Split, device: torch.device | str, data: pg19.Data):
        super().__init__(split, device, data.length)
        self.data = data

    def batch(self, rows: np.ndarray) -> Batch:
        tokens = self.gather(rows)
        tokens[:, 0] = BEGIN
        return Batch(tokens, self.lengths[rows] + 1, rows, self.data, seed=int(torch.randint(2**62, ())))


def hide(batch: Batch, chance: Chance) -> Hidden:
    """Mask a share of the real tokens of every row, never `<s>`, and at least one."""
    tokens, mask_token = batch.tokens, batch.data.vocabulary
    counts = np.maximum(1, np.floor(SHARE * (batch.lengths - 1) + 0.5)).astype(np.int64)
    place = torch.arange(tokens.shape[1])
    length = torch.from_numpy(batch.lengths)[:, None]
    real = (place < length).to(tokens.device, non_blocking=True)
    asked = (torch.arange(int(counts.max())) < torch.from_numpy(counts)[:, None]).to(tokens.device, non_blocking=True)
    barred = ((place < 1) | (place >= length)).to(tokens.device, non_blocking=True)
    places = chance.order.masked_fill(barred, 2.0).argsort(dim=1)[:, : asked.shape[1]]
    there, fate = tokens.gather(1, places), chance.fate.gather(1, places)
    others = mask_token - len(SPECIALS)
    other = len(SPECIALS) + (chance.other.gather(1, places) * others).long().clamp(max=others - 1)
    shown = torch.where(fate < SHOW_MASK, mask_token, other)
    shown = torch.where((fate < SHOW_MASK + SHOW_OTHER) & asked, shown, there)
    full = int(batch.lengths.min()) == tokens.shape[1]
    target = there.masked_fill(~asked, -1)
    return Hidden(tokens.scatter(1, places, shown), None if full else real, places, target, counts)


class MaskedLanguageModelling(LanguageTask):
    meta = language_task("Masked language modelling (PG-19)", "roberta", {"encoder": Pattern.NONCAUSAL_SELF})
    protocols = {
        ("longspan", "smoke"): SMOKE,
        ("cab-2023", "smoke"): CAB_SMOKE,
        ("longspan", "lite"): LITE,
        ("longspan", "full"): LONGSPAN,
        **CAB.tiers("cab-2023"),
    }
    presets = {"cab-2023": cab_presets("mlm")}

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.length + 1  # with <s>

    def model(self, attention: AttentionFactory, protocol: Protocol) -> RoBERTa:
        length = self.longest(protocol)
        return RoBERTa(attention, protocol.model, vocabulary=protocol.data.vocabulary + 1, length=length)

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> RowFeed:
        return RowFeed(split, device, protocol.data)

    def pose(self, batch: Batch, *, settled: bool) -> tuple[tuple[Tensor | None, ...], np.ndarray]:
        hidden = hide(batch, Chance.settled(batch) if settled else Chance.drawn(batch))
        return (hidden.tokens, hidden.mask, hidden.places, hidden.target), hidden.counts
