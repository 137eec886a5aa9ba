"""Which token attends to which inside a model: the attention matrix of every slot, or gradients where there is none.

with listening(model) as heard:
    model(tokens)
matrix(heard[0])                          # [b h n n], or None
attribution(heard[0], queries, seed=0)    # [q n], whatever the mechanism
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import Attention, HeadwiseAttention

SHORTCUTS = ("packed", "first", "first_packed")  # the base class's versions call `forward`, and so its hook


@dataclass(frozen=True)
class Heard:
    """The input of one slot: the tokens, and which of them are real (None: all)."""

    slot: Attention
    x: Float[Tensor, "b n d"]
    mask: Bool[Tensor, "b n"] | None

    def row(self, index: int) -> "Heard":
        """One example of the batch, still as a batch."""
        mask = None if self.mask is None else self.mask[index : index + 1]
        return Heard(self.slot, self.x[index : index + 1], mask)

    @property
    def real(self) -> Bool[Tensor, "b n"]:
        every = torch.ones(self.x.shape[:2], dtype=torch.bool, device=self.x.device)
        return every if self.mask is None else self.mask


@contextmanager
def listening(model: nn.Module) -> Iterator[list[Heard]]:
    """Record the inputs of a model's slots inside the block, in the order in which they are called."""
    heard: list[Heard] = []

    def note(slot: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(slot, Attention)
        heard.append(Heard(slot, args[0].detach(), named.get("mask")))

    slots = list(slots_of(model))
    hooks = [slot.register_forward_pre_hook(note, with_kwargs=True) for slot in slots]
    for slot in slots:
        vars(slot).update({name: functools.partial(getattr(Attention, name), slot) for name in SHORTCUTS})
    try:
        yield heard
    finally:
        for hook, slot in zip(hooks, slots, strict=True):
            hook.remove()
            for name in SHORTCUTS:
                del vars(slot)[name]


def slots_of(module: nn.Module) -> Iterator[Attention]:
    """The attention modules of a network from its input to its output, without those nested inside another."""
    for child in module.children():
        if isinstance(child, Attention):
            yield child
        else:
            yield from slots_of(child)


def matrix(heard: Heard) -> Float[Tensor, "b h n n"] | None:
    """The attention weights of the slot on these tokens, None where it has none."""
    slot = heard.slot
    if not isinstance(slot, HeadwiseAttention):
        return None
    q, k = (rearrange(project(heard.x), "b n (h c) -> b h n c", h=slot.heads) for project in (slot.query, slot.key))
    return slot.weights(q, k, key_mask=heard.mask, query_mask=heard.mask)


def attribution(heard: Heard, queries: Int[Tensor, " q"], *, seed: int) -> Float[Tensor, "q n"]:
    """How much each token moves the output at each query: |d (u . y_i) / d x_j|, scaled so that a row sums to 1.

    u is a random vector of signs, so that the squared norm is on average that of the whole derivative. The one row of
    the batch is repeated for every query, so that a single backward pass covers all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (len(queries), heard.x.shape[-1]), generator=generator).to(heard.x) * 2 - 1
    x = repeat(heard.x, "1 n d -> q n d", q=len(queries)).clone().requires_grad_()
    mask = None if heard.mask is None else repeat(heard.mask, "1 n -> q n", q=len(queries))
    with torch.enable_grad():
        y = heard.slot(x, mask=mask)
        own = y[torch.arange(len(queries), device=y.device), queries]
        (gradient,) = torch.autograd.grad((own * signs).sum(), x)
    strength = gradient.norm(dim=-1) * heard.real
    return strength / strength.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(strength.dtype).tiny)
