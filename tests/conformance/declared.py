"""Mechanisms with their own gradient, loss or block: correct ones, and ones with false declarations."""

import torch
from torch import nn

from longspan.attentions import Pattern
from longspan.attentions.states import Memory
from longspan.attentions.transformer_xl import TransformerXL
from tests.conformance.right import Plain, declare


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] / 2


class Surrogate(Plain):
    """Softmax attention whose gradient is defined as half of the true one."""

    meta = declare(surrogate_gradient=True)

    def attend(self, q, k, v, **masks):
        return _Halved.apply(super().attend(q, k, v, **masks))

    def surrogate(self, q, k, v, **masks):
        return super().attend(q, k, v, **masks) / 2


class AnotherSurrogate(Surrogate):
    """Defines a third, and computes a half."""

    def surrogate(self, q, k, v, **masks):
        return Plain.attend(self, q, k, v, **masks) / 3


class WrongSurrogate(Surrogate):
    """Defines its gradient by the very function whose backward is wrong, so that both agree."""

    def surrogate(self, q, k, v, **masks):
        return Surrogate.attend(self, q, k, v, **masks)


class NoSurrogate(Plain):
    """Declares a surrogate gradient, and has the true one."""

    meta = declare(surrogate_gradient=True)
    surrogate = Plain.attend


class Auxiliary(Plain):
    """Asks its `extra` weights to be near the mean of the real values, which the output knows nothing of."""

    meta = declare(auxiliary_loss=True, exact=False, patterns=(Pattern.NONCAUSAL_SELF,))
    weight = 0.1

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.extra = nn.Parameter(torch.ones(self.head_dim))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        mean = (v.detach() * real[:, None, :, None]).sum(dim=2) / real.sum(dim=1).clamp(min=1)[:, None, None]
        return self.with_auxiliary(y, self.weight * (mean - self.extra).square().mean())


class Choosing(Auxiliary):
    """Its `extra` weights decide by their sign, which has no gradient, but their own loss moves them."""

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, torch.where(self.extra.detach() > 0, v, -v), **masks)


class ChoosingBlindly(Choosing):
    meta = declare(exact=False, patterns=(Pattern.NONCAUSAL_SELF,))


class Scaling(Auxiliary):
    """Its `extra` weights scale the values, but the loss of the task does not move them: their own loss alone does."""

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, self.extra.detach() * v, **masks)


class SilentAuxiliary(Auxiliary):
    def attend(self, q, k, v, **masks):
        return Plain.attend(self, q, k, v, **masks)


class UndeclaredAuxiliary(Auxiliary):
    meta = declare(exact=False, patterns=(Pattern.NONCAUSAL_SELF,))


class KeepsSecret(Plain):
    """Carries a mean without saying so."""

    def carried(self, x, *inputs, carry=None, **masks):
        return self(x, *inputs, **masks), x.mean(dim=1)


class MixesWhatItCarries(TransformerXL):
    """Hands what one row left to another."""

    def carried(self, x, *, mask=None, carry=None):
        y, passed = super().carried(x, mask=mask, carry=carry)
        return y, Memory(passed.x.flip(0), passed.mask.flip(0))


class SkipsWhatItCarries(TransformerXL):
    """Begins with nothing where it reads all segments at once."""

    def in_segments(self, x, *, mask=None, carry=None):
        return super().in_segments(x, mask=mask)


class OwnsBlock(Plain):
    """Attention and a gate as wide as an MLP."""

    meta = declare(owns_block=True, exact=False)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.widen, self.narrow = (
            nn.Linear(self.head_dim, 4 * self.head_dim),
            nn.Linear(4 * self.head_dim, self.head_dim),
        )

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, self.narrow(torch.relu(self.widen(v))), **masks)


class OwnsTooMuch(Plain):
    meta = declare(owns_block=True)

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.more = nn.Parameter(torch.zeros(dim, 10 * dim))
