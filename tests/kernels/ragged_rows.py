"""Ragged rows for the tests of kernels: random tokens one behind another."""

import torch


def offsets_of(lengths, device="cpu"):
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def draw(lengths, heads, r, e, *, queries=None, dtype=torch.float32, positive=False, device="cpu", seed=0):
    """q, k and v; positive ones are features already."""
    generator = torch.Generator().manual_seed(seed)

    def one(tokens, width, positive=False):
        x = torch.randn(tokens, heads, width, generator=generator, dtype=torch.float64)
        return (x.abs() if positive else x).to(device, dtype).requires_grad_()

    keys = sum(lengths)
    return one(keys if queries is None else sum(queries), r, positive), one(keys, r, positive), one(keys, e)
