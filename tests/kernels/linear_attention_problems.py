"""Problems for the tests of linear attention: random tensors, padded or ragged, and the other arguments."""

import torch


def draw(
    n, m=None, *, feature="elu", causal=False, masked=False, rows=2, heads=2, c=16, e=16,
    dtype=torch.float32, device="cpu", seed=0,
):  # fmt: skip
    """q, k and v with requires_grad, and the other arguments."""
    generator = torch.Generator().manual_seed(seed)
    m = n if m is None else m

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(rows, heads, n, c), normal(rows, heads, m, c), normal(rows, heads, m, e)
    if feature == "none":
        q, k = q.abs(), k.abs()
    options = {"feature": feature, "causal": causal, "eps": 1e-6}
    if masked:
        options["key_mask"] = (torch.rand(rows, m, generator=generator) < 0.7).to(device)
    if feature == "cosine":
        options |= {"eps": 0.0, "floor": 1e-6, "angles": tuple(_angles(rows, t, device) for t in (n, m))}
    return [x.to(device, dtype).requires_grad_() for x in (q, k, v)], options


def _angles(rows, tokens, device):
    return (torch.arange(tokens, device=device) * (torch.pi / 2) / (tokens + 1)).expand(rows, -1)


def doubled(options):
    """The other arguments in double precision."""
    return {
        name: tuple(x.double() for x in value) if isinstance(value, tuple) else value for name, value in options.items()
    }


def offsets_of(lengths, device="cpu"):
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def draw_ragged(lengths, heads, r, e, *, queries=None, dtype=torch.float32, positive=False, device="cpu", seed=0):
    """q, k and v; if `positive`, q and k are already features."""
    generator = torch.Generator().manual_seed(seed)

    def one(tokens, width, positive=False):
        x = torch.randn(tokens, heads, width, generator=generator, dtype=torch.float64)
        return (x.abs() if positive else x).to(device, dtype).requires_grad_()

    keys = sum(lengths)
    return one(keys if queries is None else sum(queries), r, positive), one(keys, r, positive), one(keys, e)
