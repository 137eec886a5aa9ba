"""Mechanisms that are correct unless they are compiled, captured in a CUDA graph or run in half precision."""

import torch

from tests.conformance.right import Plain, declare


class Breaks(Plain):
    """Ends torch's graph midway."""

    def attend(self, q, k, v, **masks):
        torch._dynamo.graph_break()
        return super().attend(q, k, v, **masks)


class OtherwiseCompiled(Plain):
    """Takes another path when compiled, which scales."""

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        return y * 1.1 if torch.compiler.is_compiling() else y


class Synchronises(Plain):
    """Waits for the device, as a print of a loss does; compiled it would not."""

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        if not torch.compiler.is_compiling():
            y.sum().item()
        return y


class RemembersTheMask(Plain):
    """Copies the mask of its last batch by way of the host."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is not None and not torch.compiler.is_compiling():
            key_mask = key_mask.cpu().to(q.device)
        return super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)


class SumsInHalf(Plain):
    """Weighs by exponentials whose sum float16 cannot hold."""

    meta = declare(exact=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        p = super().probabilities(q, k, key_mask).to(v.dtype)
        large = p * 6e4
        if v.dtype is torch.float16:  # float32 would hold it
            large = large * 2
        return large @ v / (large.sum(dim=-1, keepdim=True) + 1e-4)


class MasksWithManyZeros(Plain):
    """Hides pairs with a score that float16 does not have."""

    def attend(self, q, k, v, **masks):
        if q.dtype is torch.float16:
            q = q + torch.tensor(1e5, device=q.device).to(q.dtype) * 0
        return super().attend(q, k, v, **masks)


class SinglePrecisionBuffer(Plain):
    """Multiplies by a matrix that stays in float32 whatever the layer is moved to."""

    def attend(self, q, k, v, **masks):
        eye = torch.eye(v.shape[-1], device=v.device, dtype=torch.promote_types(torch.float32, self.out.weight.dtype))
        halved = self.out.weight.dtype is torch.bfloat16
        return super().attend(q, k, v @ eye if halved else v, **masks)


class AlwaysSingle(Plain):
    """Returns float32 for bfloat16."""

    def forward(self, x, context=None, **masks):
        y = super().forward(x, context, **masks)
        return y.float() if x.dtype is torch.bfloat16 else y


class LosesItsSum(Plain):
    """A mean over keys whose running sum is bfloat16 where weights are."""

    meta = declare(exact=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask, query_mask=query_mask)
        return y if self.out.weight.dtype is not torch.bfloat16 else (y + 64) - 64


class FirstTokenTwice(Plain):
    """Wrong with weights in bfloat16 in one row of many, which the typical row does not show."""

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        first = torch.arange(y.shape[2], device=y.device)[:, None] == 0
        return torch.where(first, 2 * y, y) if self.out.weight.dtype is torch.bfloat16 else y
