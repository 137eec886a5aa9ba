"""New vectors with other shapes, masks, options and names, computed by formulas that share no code with ours."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.attentions import parity
from tests.attentions.golden_reasons import NOT_MATCHED
from tests.attentions.unseen import Arrays, Unseen, check, hidden, places, qkv, seen
from tests.parity import main


def linear(a: Arrays, eps: float, causal: bool = False) -> Tensor:
    weights = (F.elu(a["q"]) + 1) @ (F.elu(a["k"]) + 1).mT
    if "key_padding_mask" in a:
        weights = weights * ~a["key_padding_mask"][:, None, None]
    weights = weights.tril() if causal else weights
    return weights @ a["v"] / (weights.sum(dim=-1, keepdim=True) + eps)


def abc(a: Arrays) -> Tensor:
    far = hidden(a)
    far = far.mT if isinstance(far, Tensor) else far
    keys, values = ((a[x] @ a[f"param_compress_{x}"] + far).softmax(dim=2).mT @ a[x] for x in "kv")
    return (a["q"] @ keys.mT / a["q"].shape[-1] ** 0.5).softmax(dim=-1) @ values


def abc_of_the_paper(a: Arrays) -> Tensor:
    logits, rows = a["k"] @ a["param_slot_weight"], []
    for t in range(logits.shape[2]):
        p = logits[:, :, : t + 1].softmax(dim=2).mT
        scores = a["q"][:, :, t : t + 1] @ (p @ a["k"][:, :, : t + 1]).mT / a["q"].shape[-1] ** 0.5
        rows.append(scores.softmax(dim=-1) @ (p @ a["v"][:, :, : t + 1]))
    return torch.cat(rows, dim=2)


def cosformer(a: Arrays, eps: float) -> Tensor:
    i, j = places(a["q"].shape[2], a["k"].shape[2])
    longest = max(a["q"].shape[2], a["k"].shape[2])
    weights = (a["q"].relu() @ a["k"].relu().mT) * torch.cos(math.pi / 2 * (i - j).double() / longest)
    return weights @ a["v"] / weights.sum(dim=-1, keepdim=True).clamp(min=eps)


def window(a: Arrays, left: int, right: int) -> Tensor:
    i, j = places(a["q"].shape[2])
    return seen(a, (j >= i - left) & (j <= i + right))


def near_exact_far_random(a: Arrays, width: int, temperature: float) -> Tensor:
    """Exact weights on a band, hyperbolic features elsewhere."""
    (i, j), w = places(a["q"].shape[2]), a["param_projection_matrix"]
    q, k = (a[x] * temperature**0.5 for x in "qk")
    logs = [torch.cat([x @ w.T, -x @ w.T], dim=-1) - x.square().sum(dim=-1, keepdim=True) / 2 for x in (q, k)]
    features = logs[0].exp() @ logs[1].exp().mT / (2 * len(w))
    near = (j >= i - width // 2) & (j < i - width // 2 + width)
    weights = torch.where(near, (q @ k.mT).exp(), features)
    if "key_padding_mask" in a:
        weights = weights * ~a["key_padding_mask"][:, None, None]
    return weights @ a["v"] / weights.sum(dim=-1, keepdim=True)


def blocks(a: Arrays, block: int, more: int) -> Tensor:
    i, j = places(a["q"].shape[2])
    start = i // block * block
    return seen(a, (j >= start - more) & (j < start + block + more))


def linformer(a: Arrays, shared: bool) -> Tensor:
    m = a["k"].shape[2]
    keys = a["param_proj_k"][:m].T @ a["k"]
    values = keys if shared else a["param_proj_v"][:m].T @ a["v"]
    return (a["q"] @ keys.mT / a["q"].shape[-1] ** 0.5).softmax(dim=-1) @ values


def favor(a: Arrays, eps: float) -> Tensor:
    q, k = (a[x] / a[x].shape[-1] ** 0.25 for x in "qk")
    logits = [x @ a["param_projection"].T - x.square().sum(dim=-1, keepdim=True) / 2 for x in (q, k)]
    plain = [x @ a["param_projection"].T for x in (q, k)]
    most = (plain[0].amax(dim=-1, keepdim=True), plain[1].amax(dim=(-2, -1), keepdim=True))
    features = [(x - top).exp() + eps for x, top in zip(logits, most, strict=True)]
    weights = features[0] @ features[1].mT
    return weights @ a["v"] / weights.sum(dim=-1, keepdim=True)


def nystrom(a: Arrays, landmarks: int, iterations: int) -> Tensor:
    q, k = (a[x] / a[x].shape[-1] ** 0.25 for x in "qk")
    mean_q, mean_k = (x.unflatten(2, (landmarks, -1)).mean(dim=3) for x in (q, k))
    f, core, g = ((x @ y.mT).softmax(dim=-1) for x, y in ((q, mean_k), (mean_q, mean_k), (mean_q, k)))
    inverse, one = core.mT / core.sum(dim=-2).max(), torch.eye(landmarks, dtype=torch.float64)
    for _ in range(iterations):
        p = core @ inverse
        inverse = inverse @ (13 * one - p @ (15 * one - p @ (7 * one - p))) / 4
    near = F.conv2d(a["v"], a["param_conv_weight"], padding=(1, 0), groups=a["v"].shape[1])
    return f @ inverse @ g @ a["v"] + near


def probsparse(a: Arrays, top: int) -> Tensor:
    scores = a["q"] @ a["k"].mT
    sample = a["param_sampled_keys"].expand(*scores.shape[:2], -1, -1)
    drawn = scores.gather(3, sample)
    measure = drawn.amax(dim=-1) - drawn.sum(dim=-1) / scores.shape[-1]
    chosen = measure >= measure.topk(top, dim=-1).values[..., -1:]
    full = (scores / a["q"].shape[-1] ** 0.5).softmax(dim=-1) @ a["v"]
    return torch.where(chosen[..., None], full, a["v"].mean(dim=2, keepdim=True))


def fixed(a: Arrays, block: int, summary: int) -> Tensor:
    i, j = places(a["q"].shape[2])
    return seen(a, (j <= i) & ((i // block == j // block) | (j % block == 0) | (j % block >= block - summary)))


def strided(a: Arrays, stride: int, near: bool = True) -> Tensor:
    i, j = places(a["q"].shape[2])
    return seen(a, (j <= i) & ((i - j < stride) & near | ((i - j) % stride == 0)))


def port_of_logsparse(a: Arrays, longest: int, sub: int) -> Tensor:
    """Row by row, as in the port, whose scale is that of the values' width."""
    n, width = a["q"].shape[2], math.ceil(math.log2(sub))
    allowed = torch.zeros(longest, longest, dtype=torch.bool)
    for i in range(longest):
        if longest // sub * 2 * width > i:
            allowed[i, : i + 1] = True
            continue
        anchor = i
        while anchor >= 0:
            if anchor - width + 1 < 0:
                allowed[i, :anchor] = True
                break
            allowed[i, anchor - width + 1 : anchor + 1] = True
            for r in range(width):
                place = anchor - width + 1 - 2**r
                if anchor - place <= sub and place >= 0:
                    allowed[i, place] = True
            anchor -= sub
    scores = a["q"] @ a["k"].mT / a["v"].shape[-1] ** 0.5
    return scores.masked_fill(~allowed[:n, :n], -1e32).softmax(dim=-1) @ a["v"]


def routed(a: Arrays, window: int) -> Tensor:
    """One cluster after the other, each with its own queries, keys and `memory`."""
    near = {x: torch.einsum("bhnc,hgc->bhgn", F.normalize(a[x], dim=-1), a["param_means"]) for x in "qk"}
    total, count = torch.zeros_like(a["q"]), torch.zeros_like(a["q"][..., :1])
    for b, h, g in itertools.product(*(range(size) for size in (*a["q"].shape[:2], a["param_means"].shape[1]))):
        i, j = (near[x][b, h, g].topk(min(window, near[x].shape[3])).indices for x in "qk")
        keys, values = (torch.cat([a[f"param_mem_{m}"][h, g], a[m[0]][b, h, j]]) for m in ("key", "value"))
        y = (a["q"][b, h, i] @ keys.T / keys.shape[-1] ** 0.5).softmax(dim=-1) @ values
        place = torch.full_like(i, b), torch.full_like(i, h), i
        total = total.index_put(place, y, accumulate=True)
        count = count.index_put(place, torch.ones_like(y[:, :1]), accumulate=True)
    return total / (count + 1e-5)


def along_axes(a: Arrays, heads: int, axes: int) -> Tensor:
    """The sum over axes of ordinary attention along each, with heads of any width."""
    total = torch.zeros_like(a["x"])
    for axis in range(axes):
        weights = {name: a[f"param_axial_attentions__{axis}__fn__to_{name}"] for name in AXIAL}
        x = a["x"].movedim(axis + 1, -2)
        maps = weights["q__weight"], *weights["kv__weight"].chunk(2)
        q, k, v = ((x @ w.T).unflatten(-1, (heads, -1)).transpose(-2, -3) for w in maps)
        y = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v).transpose(-2, -3).flatten(-2)
        total = total + (y @ weights["out__weight"].T + weights["out__bias"]).movedim(-2, axis + 1)
    return total


AXIAL = {"q__weight": (10, 6), "kv__weight": (20, 6), "out__weight": (6, 10), "out__bias": (6,)}


def etc(a: Arrays, globals_: int, radius: int, m: int) -> Tensor:
    """The labels of global and ordinary tokens are in one table."""
    i, j = places(a["q"].shape[2])
    one, other = i < globals_, j < globals_
    label = torch.where(j >= i, (j - i).clamp(max=m), m + (i - j).clamp(max=m))
    label = torch.where(one == other, label, torch.where(one, 2 * m + 2, 2 * m + 1))
    table, bias = a["param_relative_emb_table"], a["param_relative_bias_table"]
    scores = a["q"] @ a["k"].mT + torch.einsum("bhnc,nmhc->bhnm", a["q"], table[label])
    scores = (scores + bias[label].movedim(-1, 0)) / a["q"].shape[-1] ** 0.5 + hidden(a)
    return scores.masked_fill(~(one | other | ((i - j).abs() <= radius)), -1e32).softmax(dim=-1) @ a["v"]


def synthetic(a: Arrays, scores: Tensor, causal: bool = False) -> Tensor:
    n = a["q"].shape[2]
    scores = scores[:, :n, :n].expand(len(a["q"]), -1, -1, -1)
    scores = scores.masked_fill(~torch.ones(n, n).tril().bool(), -math.inf) if causal else scores
    return scores.softmax(dim=-1) @ a["v"]


def synthetic_with_dots(a: Arrays) -> Tensor:
    n = a["q"].shape[2]
    scores = a["param_random"][:, :n, :n] + a["q"] @ a["k"].mT / a["q"].shape[-1] ** 0.5
    return (scores + hidden(a)).softmax(dim=-1) @ a["v"]


def sorted_keys(a: Arrays, block: int, top: int) -> Tensor:
    """The package's mistake: sorted blocks use their keys as values."""
    q, k, v = (a[x].unflatten(2, (-1, block)) for x in "qkv")
    left, keys = q.mean(dim=3) @ k.mean(dim=3).mT / q.shape[-1] ** 0.5, []
    for _ in range(top):
        share, place = left.softmax(dim=-1).max(dim=-1)
        best = torch.stack([torch.stack([k[b, h, place[b, h]] for h in range(k.shape[1])]) for b in range(len(k))])
        keys.append(best * share[..., None, None])
        left = left.scatter(3, place[..., None], -math.inf)
    all_keys, all_values = torch.cat([*keys, k], dim=3), torch.cat([*keys, v], dim=3)
    return ((q @ all_keys.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ all_values).flatten(2, 3)


def sorted_causally(a: Arrays, block: int, top: int, temperature: float) -> Tensor:
    """Half of the heads start block - 1 tokens later; the tokens before that attend to one another."""
    cut, half = block - 1, a["q"].shape[1] // 2
    late = [a[x][:, half:] for x in "qkv"]
    nulls = [a["param_null_keys"], a["param_null_values"]]
    early = _sorted_blocks(*(a[x][:, :half] for x in "qkv"), *(u[:half] for u in nulls), block, top, temperature)
    rest = _sorted_blocks(*(x[:, :, cut:] for x in late), *(u[half:] for u in nulls), block, top, temperature)
    q, k, v = (x[:, :, :cut] for x in late)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(cut, cut).triu(1).bool(), -math.inf)
    return torch.cat([early, torch.cat([scores.softmax(dim=-1) @ v, rest], dim=2)], dim=1)


def _sorted_blocks(q, k, v, null_k, null_v, block, top, temperature):
    (b, h, n, c), rows = q.shape, []
    mean_q, mean_k = (x.cumsum(dim=2) / torch.arange(1, n + 1)[:, None] for x in (q, k))
    for first in range(0, n, block):
        earlier = [slice(start, start + block) for start in range(0, first, block)]
        nulls = [u.expand(b, h, block, c) for u in (null_k, null_v)]
        keys, values = ([null] * top + [x[:, :, s] for s in earlier] for null, x in zip(nulls, (k, v), strict=True))
        left = [q.new_zeros(b, h)] * top + [(mean_q[:, :, first] * mean_k[:, :, s].sum(dim=2)).sum(-1) for s in earlier]
        left, shown_k, shown_v = torch.stack(left, dim=-1) / c**0.5 / temperature, [], []
        for _ in range(top):
            share, place = left.softmax(dim=-1).max(dim=-1)
            for shown, blocks in ((shown_k, keys), (shown_v, values)):
                index = place[:, :, None, None, None].expand(-1, -1, 1, block, c)
                shown.append(torch.stack(blocks, dim=2).gather(2, index)[:, :, 0] * share[..., None, None])
            left = left.scatter(2, place[..., None], -math.inf)
        own = slice(first, first + block)
        size = k[:, :, own].shape[2]
        later = F.pad(torch.ones(size, size).triu(1).bool(), (top * block, 0))
        scores = q[:, :, own] @ torch.cat([*shown_k, k[:, :, own]], dim=2).mT / c**0.5
        rows.append(scores.masked_fill(later, -math.inf).softmax(dim=-1) @ torch.cat([*shown_v, v[:, :, own]], dim=2))
    return torch.cat(rows, dim=2)


def cell_means(x: Tensor, rows: int, columns: int, side: int) -> Tensor:
    """Means of side x side cells of a picture, which share the tokens on their borders."""
    x = x.unflatten(2, (rows, columns))
    edges = [[(i * n // side, -(-(i + 1) * n // side)) for i in range(side)] for n in (rows, columns)]
    cells = [x[:, :, y0:y1, x0:x1].mean(dim=(2, 3)) for y0, y1 in edges[0] for x0, x1 in edges[1]]
    return torch.stack(cells, dim=2)


def lara_of_pictures(a: Arrays, rows: int, columns: int, side: int, beta: float) -> Tensor:
    """Two samples of each proposal, weighted by the authors' rule."""
    q, k, s = a["q"], a["k"], a["q"].shape[-1] ** -0.5
    center, key_center = (cell_means(x, rows, columns, side) for x in (q, k))
    t = (s * center @ q.mT).softmax(dim=-1).repeat(1, 1, 2, 1)
    mu = (center + key_center).repeat(1, 1, 2, 1)
    omega = mu + a["param_noise"]
    xi = [s * (omega @ x.mT - x.square().sum(dim=-1)[:, :, None] / 2) for x in (q, k, mu)]
    own = xi[2].diagonal(dim1=-2, dim2=-1)[..., None]
    alpha = (own - xi[2].logsumexp(dim=-1, keepdim=True)).exp() + beta * (t - t.mean(dim=2, keepdim=True))
    logits = alpha.clamp(min=1e-8).log() + xi[0] + xi[1].logsumexp(dim=-1, keepdim=True) - own
    return logits.softmax(dim=2).mT @ (xi[1].softmax(dim=-1) @ a["v"])


def biased_blocks(a: Arrays, block: int, more: int) -> Tensor:
    i, j = places(a["q"].shape[2])
    place = j - i // block * block + more
    bias = a["param_bias_table"][:, i % block, place.clamp(0, block + 2 * more - 1)]
    scores = a["q"] @ a["k"].mT / a["q"].shape[-1] ** 0.5 + bias + hidden(a)
    return scores.masked_fill((place < 0) | (place >= block + 2 * more), -1e32).softmax(dim=-1) @ a["v"]


def s4d_both_ways(a: Arrays, channels: int) -> Tensor:
    """Token by token; the second half of the kernels looks ahead, starting at the next token."""
    u, n = a["u"], a["u"].shape[-1]
    b, c = (torch.view_as_complex(a[name]) for name in ("param_B", "param_C"))
    decay = torch.complex(-a["param_A_real"].exp(), -a["param_A_imag"])
    step = decay * a["param_inv_dt"].exp()
    powers = (step[..., None] * torch.arange(n)).exp()
    kernel = 2 * torch.einsum("cdn,dnl->cdl", b * c * (step.exp() - 1) / decay, powers).real
    y = []
    for t in range(n):
        past = torch.einsum("cdl,bdl->bcd", kernel[:channels, :, : t + 1].flip(-1), u[..., : t + 1])
        y.append(past + torch.einsum("cdl,bdl->bcd", kernel[channels:, :, : n - t - 1], u[..., t + 1 :]))
    return (torch.stack(y, dim=-1) + a["param_D"][..., None] * u[:, None]).flatten(1, 2)


def s4d(a: Arrays) -> Tensor:
    u, n = a["u"], a["u"].shape[-1]
    c, decay = torch.view_as_complex(a["param_C"]), torch.complex(-a["param_log_A_real"].exp(), a["param_A_imag"])
    step = decay * a["param_log_dt"].exp()[:, None]
    kernel = 2 * torch.einsum("hn,hnl->hl", c * (step.exp() - 1) / decay, (step[..., None] * torch.arange(n)).exp())
    rows = [(kernel.real[:, : t + 1].flip(-1) * u[..., : t + 1]).sum(dim=-1) for t in range(n)]
    y = F.gelu(torch.stack(rows, dim=-1) + a["param_D"][:, None] * u)
    y = F.conv1d(y, a["param_output_linear_0_weight"], a["param_output_linear_0_bias"])
    return F.glu(y, dim=-2)


def double_softmax(a: Arrays) -> Tensor:
    hidden = a["key_padding_mask"][:, None, :, None]
    return a["q"].softmax(dim=-1) @ (a["k"].masked_fill(hidden, -torch.inf).softmax(dim=-2).mT @ a["v"])


def dpfp(a: Arrays, nu: int, eps: float) -> Tensor:
    u, v = (torch.cat([a[name], -a[name]], dim=-1).relu() for name in "qk")
    w = sum((u * u.roll(r, -1)) @ (v * v.roll(r, -1)).mT for r in range(1, nu + 1)) / a["q"].shape[-1] ** 0.5
    w = w.masked_fill(a["key_padding_mask"][:, None, None], 0)
    return w @ a["v"] / (w.sum(dim=-1, keepdim=True) + eps)


def flows(q: Tensor, k: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What each query takes, what each key gives."""
    take = ((q + eps) * (k.sum(dim=2, keepdim=True) + eps)).sum(dim=-1)
    return take, ((k + eps) * (q.sum(dim=2, keepdim=True) + eps)).sum(dim=-1)


def flow(a: Arrays, eps: float, clamp: float) -> Tensor:
    q, k = a["q"].sigmoid(), a["k"].sigmoid()
    n, m = q.shape[2], k.shape[2]
    take, give = flows(q, k, eps)
    kept, _ = flows(q, k / give[..., None], eps)
    _, left = flows(q / take[..., None], k, eps)
    share = m * left.clamp(-clamp, clamp).softmax(dim=-1)
    return (kept * n / m).sigmoid()[..., None] * ((q / take[..., None]) @ k.mT * share[:, :, None]) @ a["v"]


def causal_flow(a: Arrays, eps: float) -> Tensor:
    """Token by token."""
    q, k, y, given, taken, levels, shares = a["q"].sigmoid(), a["k"].sigmoid(), [], [], [], [], []
    for t in range(q.shape[2]):
        q_t, k_t, past = q[:, :, t : t + 1], k[:, :, t : t + 1], slice(t + 1)
        taken.append((t + 1) / flows(q_t, k[:, :, past], eps)[0])
        given.append((t + 1) / flows(q[:, :, past], k_t, eps)[1])
        kept = flows(q_t, k[:, :, past] * torch.cat(given, dim=-1)[..., None], eps)[0] / (t + 1)
        left = flows(q[:, :, past] * torch.cat(taken, dim=-1)[..., None], k_t, eps)[1] / (t + 1)
        levels.append(left.clamp(-1, 1).exp())
        shares.append((t + 1) * levels[-1] / sum(levels))
        w = (q_t @ k[:, :, past].mT) * torch.cat(shares, dim=-1)[:, :, None] * taken[-1][..., None] / (t + 1)
        y.append(kept.sigmoid()[..., None] * (w @ a["v"][:, :, past]))
    return torch.cat(y, dim=2)


def flow_between_heads(a: Arrays) -> Tensor:
    q, k, eps = a["q"].relu() + 1e-6, a["k"].relu() + 1e-6, 1e-5
    take, give = flows(q, k, eps)
    kept, left = flows(q, k / give[..., None], eps)[0], flows(q / take[..., None], k, eps)[1]
    share = k.shape[2] * left.softmax(dim=1)
    return kept.sigmoid()[..., None] * ((q / take[..., None]) @ k.mT * share[:, :, None]) @ a["v"]


def channels(a: Arrays) -> Tensor:
    hidden = a["key_padding_mask"][:, None, :, None]
    q, k = (F.normalize(a[name].masked_fill(hidden, 0), dim=2) for name in "qk")
    return a["v"] @ (q.mT @ k * a["param_temperature"]).softmax(dim=-1).mT


def causal_channels(a: Arrays) -> Tensor:
    none = torch.zeros(1, a["q"].shape[2], dtype=torch.bool)
    rows = []
    for end in range(1, none.shape[1] + 1):
        prefix = {name: a[name][:, :, :end] for name in "qkv"} | {"key_padding_mask": none[:, :end]}
        rows.append(channels(a | prefix)[:, :, -1:])
    return torch.cat(rows, dim=2)


def waves(a: Arrays, *, causal: bool = False) -> Tensor:
    """The product of two wave features is the cosine of the difference of their angles."""
    w = a["param_sigma"] * a["param_random_matrices"] / WAVES["tau"]
    q, k = (a[name] / (a[name].norm(dim=-1, keepdim=True) + 1e-3) @ w.mT for name in "qk")
    weights = WAVES["SCALE"] ** 2 * (q[:, :, :, None] - k[:, :, None]).cos().sum(dim=-1)
    if causal:
        weights = weights.tril()
    else:
        weights = weights.masked_fill(a["key_padding_mask"][:, None, None], 0)
    total = weights.sum(dim=-1, keepdim=True)
    return weights @ a["v"] / (total if causal else total.abs()).clamp(min=WAVES["clamp"])


def causal_waves(a: Arrays) -> Tensor:
    return waves(a, causal=True)


def waving(*sizes: int) -> dict[str, tuple[int, ...]]:
    return qkv(*sizes) | {"param_sigma": (sizes[1], 1, sizes[4])}


def packed_without_biases(a: Arrays, heads: int, pack_heads: int) -> Tensor:
    """The packed sequence attends to the context, and the tokens to what it packed."""

    def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        q, k, v = (u.unflatten(2, (heads, -1)).transpose(1, 2) for u in (q, k, v))
        return ((q @ k.mT / q.shape[3] ** 0.5).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)

    def project(name: str, u: Tensor) -> Tensor:
        return u @ a[f"param_{name}_proj__weight"].T

    context = a["context"]
    packed = attend(project("pq", a["p"]), project("pk", context), project("pv", context), pack_heads)
    return project("out", attend(project("q", a["x"]), project("k", packed), project("v", packed), heads))


WAVES = {"features": 5, "tau": 0.9, "SCALE": 0.2, "clamp": 0.3}
RANDOM = {"param_random_matrices": torch.linspace(-2, 2, 60, dtype=torch.float64).reshape(3, 5, 4)}


def funnel(a: Arrays, places: Tensor, keys: Tensor) -> Tensor:
    """The angle of each pair separately; the first token, where it is kept separate, has no position and no type."""
    width, per_head = a["param_r_kernel"].shape[0], a["q"].shape[-1] ** 0.5
    angle = (places[:, None] - keys)[..., None] * 10_000 ** (-torch.arange(0, width, 2).double() / width)
    r = torch.einsum("ijd,dhc->hijc", torch.cat([angle.sin(), angle.cos()], dim=-1), a["param_r_kernel"])
    q, u, w, z = a["q"], *(a[f"param_r_{x}_bias"][:, None] for x in "wrs")
    other, same = torch.einsum("bhic,thc->tbhi", q + z, a["param_seg_embed"])[..., None]
    beside = torch.einsum("bhic,hijc->bhij", q + w, r) + torch.where(a["token_type_mat"][:, None], same, other)
    scores = ((q + u) @ a["k"].mT + beside * a.get("cls_mask", 1.0)) / per_head + hidden(a)
    return scores.softmax(dim=-1) @ a["v"]


def funnelled(pattern: str, form: str, places: Tensor, keys: Tensor, **settings: Any) -> Unseen:
    """Width 12, 3 heads of 5 channels; `places` are the positions of queries in the text, `keys` those of keys."""
    n, m, drawn = len(places), len(keys), torch.Generator().manual_seed(1)
    given = {"token_type_mat": torch.rand(2, n, m, generator=drawn) < 0.5}
    frequency = 10_000 ** (-torch.arange(6).double() / 6)
    if form == "factorized":
        sines, cosines = ([f(x[:, None] * frequency) for x in (places, keys)] for f in (torch.sin, torch.cos))
        given |= {"param_phi": sines[0].repeat(1, 2), "param_pi": cosines[0].repeat(1, 2)}
        given |= {"param_psi": torch.cat([cosines[1], sines[1]], dim=1)}
        given |= {"param_omega": torch.cat([-sines[1], cosines[1]], dim=1)}
    else:
        distance, given["rel_index"] = (places[:, None] - keys).unique(return_inverse=True)
        angle = distance[:, None] * frequency
        given["param_R"] = torch.cat([angle.sin(), angle.cos()], dim=1)
    if settings["separate_cls"]:
        given["cls_mask"] = F.pad(torch.ones(n - 1, m - 1).double(), (1, 0, 1, 0))
    learned = {"param_r_kernel": (12, 3, 5), "param_seg_embed": (2, 3, 5)}
    learned |= {f"param_r_{x}_bias": (3, 5) for x in "wrs"}
    options = settings | {"heads": 3, "attention_type": form, "truncate_seq": True}
    law = lambda a: funnel(a, places, keys)  # noqa: E731
    return Unseen("funnel", pattern, law, qkv(2, 3, n, m, 5) | learned, options, given, mask=(m, m - 4))


def every(step: int, count: int, first: int = 0) -> Tensor:
    return first + step * torch.arange(count).double()


def openai_mask(stride: int, bands: int) -> Callable[[Arrays], Tensor]:
    i, j = places(20)
    last = torch.stack([j % stride == stride - 1 - head % bands for head in range(4)])[:, None]
    return lambda a: ((j <= i) & ((i // stride == j // stride) | last)).double()


SAMPLED = torch.randint(19, (23, 3), generator=torch.Generator().manual_seed(0))
UNSEEN = [
    Unseen("linear", "NC", lambda a: linear(a, 1e-3), qkv(2, 3, 7, 11, 5, 4), {"eps": 1e-3}, mask=(11, 6)),
    Unseen("linear", "CC", lambda a: linear(a, 1e-6), qkv(1, 1, 9, 4, 3), {"eps": 1e-6, "feature_map": "elu+1"}),
    Unseen("linear", "CS", lambda a: linear(a, 1e-6, causal=True), qkv(1, 4, 70, 70, 2), {"eps": 1e-6}),
    Unseen(
        "abc", "CC", abc, qkv(3, 1, 5, 16, 6) | {"param_compress_k": (6, 3), "param_compress_v": (6, 3)}, {"slots": 3}
    ),
    Unseen(
        "abc",
        "NS",
        abc,
        qkv(2, 3, 14, 14, 4) | {"param_compress_k": (4, 9), "param_compress_v": (4, 9)},
        {"slots": 9},
        mask=(14, 5),
    ),
    Unseen("abc", "CS", abc_of_the_paper, qkv(1, 3, 11, 11, 5) | {"param_slot_weight": (5, 2)}, {"slots": 2}),
    Unseen("cosformer", "CC", lambda a: cosformer(a, 1e-4), qkv(2, 1, 14, 9, 6), {"eps": 1e-4, "activation": "relu"}),
    Unseen("dpfp", "CC", lambda a: dpfp(a, 4, 1e-3), qkv(2, 3, 5, 9, 4, 6), {"nu": 4, "eps": 1e-3}, mask=(9, 4)),
    Unseen("efficient_attention", "NC", double_softmax, qkv(2, 3, 7, 12, 5, 4), {"image": [3, 4]}, mask=(12, 5)),
    Unseen("flowformer", "NC", lambda a: flow(a, 1e-4, 0.5), qkv(2, 3, 7, 12, 5, 4), {"eps": 1e-4, "clamp": 0.5}),
    Unseen("flowformer", "CS", lambda a: causal_flow(a, 1e-3), qkv(1, 3, 9, 9, 4), {"eps": 1e-3, "causal": True}),
    Unseen("flowformer_lra", "NS", flow_between_heads, qkv(2, 3, 11, 11, 4), {"eps": 1e-5, "feature_map": "relu+1e-6"}),
    funnelled(
        "NC", "relative_shift", every(4, 6, -3), every(2, 11, -1), block_index=2, separate_cls=True, pool_q_only=True
    ),
    funnelled("NC", "factorized", every(2, 6), every(1, 11), block_index=1, separate_cls=False, pool_q_only=True),
    funnelled("NS", "factorized", every(4, 9), every(4, 9), block_index=2, separate_cls=False, pool_q_only=True),
    funnelled("NS", "relative_shift", every(2, 9), every(2, 9), block_index=1, separate_cls=True, pool_q_only=False),
    Unseen(
        "luna",
        "CC",
        lambda a: packed_without_biases(a, 3, 2),
        {"x": (2, 5, 6), "p": (2, 4, 6), "context": (2, 9, 6)}
        | {f"param_{name}_proj__weight": (6, 6) for name in ("pq", "pk", "pv", "q", "k", "v", "out")},
        {"heads": 3, "pheads": 2, "p_len": 4, "tie_kv": False},
    ),
    Unseen("rfa", "CC", waves, waving(2, 3, 6, 11, 4), WAVES, given=RANDOM, mask=(11, 5)),
    Unseen("rfa", "CS", causal_waves, waving(1, 3, 9, 9, 4), WAVES | {"implementation": "prefix"}, given=RANDOM),
    Unseen(
        "set_transformer",
        "NC",
        lambda a: a["q"] + torch.softmax(a["q"] @ a["k"].mT / 12**0.5, dim=-1) @ a["v"],
        qkv(2, 3, 7, 9, 4),
        {"kind": "mab_core", "heads": 3},
    ),
    Unseen("xcit", "NS", channels, qkv(3, 2, 9, 9, 5) | {"param_temperature": (2, 1, 1)}, {"heads": 2}, mask=(9, 4, 7)),
    Unseen("xcit", "CS", causal_channels, qkv(1, 3, 7, 7, 4) | {"param_temperature": (3, 1, 1)}),
    Unseen("local", "CS", lambda a: window(a, 6, 0), qkv(1, 3, 40, 40, 5), {"window": 7}),
    Unseen("local", "NS", lambda a: window(a, 1, 1), qkv(2, 1, 9, 9, 3), {"window": 1}),
    Unseen(
        "local_window",
        "NS",
        lambda a: blocks(a, 5, 2),
        qkv(2, 3, 22, 22, 4),
        {"window": 5, "extra_each_side": 2, "relative_bias": False},
        mask=(22, 13),
    ),
    Unseen(
        "scatterbrain",
        "NS",
        lambda a: near_exact_far_random(a, 7, 0.3),
        qkv(2, 3, 150, 150, 5, 4),
        {"heads": 3, "local_context": 7, "nb_features": 11, "softmax_temp": 0.3},  # an odd number, rounded down
        given={"param_projection_matrix": torch.randn(5, 5, generator=torch.Generator().manual_seed(2)).double()},
        mask=(150, 90),
    ),
    Unseen("longformer", "NS", lambda a: window(a, 5, 5), qkv(1, 3, 30, 30, 4), {"attention_window": 10}, mask=(24,)),
    Unseen(
        "linformer",
        "NC",
        lambda a: linformer(a, True),
        qkv(1, 3, 6, 17, 4) | {"param_proj_k": (20, 3)},
        {"projected_length": 3, "max_length": 20, "share_kv": True},
    ),
    Unseen(
        "linformer",
        "CC",
        lambda a: linformer(a, False),
        qkv(2, 1, 8, 5, 6) | {"param_proj_k": (9, 1), "param_proj_v": (9, 1)},
        {"projected_length": 1, "max_length": 9, "share_kv": False},
    ),
    Unseen(
        "performer",
        "NC",
        lambda a: favor(a, 1e-5),
        qkv(1, 3, 9, 13, 6),
        {"features": 5, "eps": 1e-5},
        given={"param_projection": torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, 6)},
        source="github google-research/google-research, performer",
    ),
    Unseen(
        "nystromformer",
        "NS",
        lambda a: nystrom(a, 3, 4),
        qkv(3, 2, 15, 15, 4) | {"param_conv_weight": (2, 1, 3, 1)},
        {"landmarks": 3, "iterations": 4, "conv_kernel": 3},
    ),
    Unseen(
        "probsparse",
        "NC",
        lambda a: probsparse(a, 4),
        qkv(2, 3, 23, 19, 5),
        {"factor": 1},
        given={"param_sampled_keys": SAMPLED},
    ),
    Unseen(
        "sparse_transformer",
        "CS",
        lambda a: fixed(a, 5, 1),
        qkv(1, 3, 17, 17, 4),
        {"pattern": "fixed1(5) or fixed2(5, c=1)"},
    ),
    Unseen(
        "sparse_transformer", "CS", lambda a: strided(a, 3), qkv(2, 1, 19, 19, 4), {"pattern": "local(3) or strided(3)"}
    ),
    Unseen(
        "sparse_transformer",
        "CS",
        lambda a: strided(a, 4, near=False),
        qkv(2, 1, 13, 13, 4),
        {"mode": "strided", "local_attn_ctx": 4},
    ),
    Unseen(
        "synthesizer",
        "CS",
        lambda a: synthetic(a, a["param_random1"] @ a["param_random2"], causal=True),
        qkv(2, 3, 11, 11, 4) | {"param_random1": (3, 16, 2), "param_random2": (3, 2, 16)},
        {"mode": "factorized_random", "k": 2, "ignore_dot_product": True, "max_length": 16},
    ),
    Unseen(
        "synthesizer",
        "NS",
        synthetic_with_dots,
        qkv(2, 3, 11, 11, 4) | {"param_random": (3, 12, 12)},
        {"mode": "random", "k": 0, "ignore_dot_product": False, "max_length": 12},
        mask=(11, 7),
    ),
    Unseen(
        "sinkhorn",
        "NS",
        lambda a: sorted_keys(a, 5, 2),
        qkv(2, 3, 20, 20, 4),
        {"key_block": 5, "top_blocks": 2, "permutative": False, "sortcut": 0},
        status="as released",
    ),
    Unseen(
        "s4d",
        "CS",
        s4d,
        {
            "u": (1, 5, 17),
            "param_D": (5,),
            "param_C": (5, 3, 2),
            "param_log_dt": (5,),
            "param_log_A_real": (5, 3),
            "param_A_imag": (5, 3),
            "param_output_linear_0_weight": (10, 5, 1),
            "param_output_linear_0_bias": (10,),
        },
        {"d_model": 5, "d_state": 6},
    ),
    Unseen(
        "s4d",
        "NS",
        lambda a: s4d_both_ways(a, 2),
        {
            "u": (2, 4, 11),
            "param_D": (2, 4),
            "param_C": (4, 4, 3, 2),
            "param_B": (1, 4, 3, 2),
            "param_inv_dt": (4, 1),
            "param_A_real": (4, 3),
            "param_A_imag": (4, 3),
        },
        {"d_model": 4, "d_state": 6, "channels": 2, "bidirectional": True, "disc": "zoh", "length": 11, "mode": "diag"},
    ),
    Unseen(
        "sinkhorn",
        "CS",
        lambda a: sorted_causally(a, 4, 2, 0.4),
        qkv(2, 3, 20, 20, 5) | {"param_null_keys": (3, 1, 5), "param_null_values": (3, 1, 5)},
        {"block": 4, "top_blocks": 2, "temperature": 0.4},
    ),
    Unseen(
        "lara",
        "NS",
        lambda a: lara_of_pictures(a, 5, 7, 3, 0.5),
        qkv(2, 2, 35, 35, 4),
        {"grid": [5, 7], "landmarks": 9, "proposal": "no-param-pool", "mis_type": "mis-opt", "alpha_coeff": 0.5}
        | {"antithetics": False, "multisample": True, "train": True},
        given={"param_noise": torch.randn(2, 2, 18, 4, generator=torch.Generator().manual_seed(5)).double()},
    ),
    Unseen(
        "local_window",
        "NS",
        lambda a: biased_blocks(a, 5, 2),
        qkv(2, 3, 18, 18, 4) | {"param_bias_table": (3, 5, 9)},
        {"window": 5, "extra_each_side": 2, "overlap": True, "relative_bias": True},
        mask=(18, 11),
    ),
    Unseen(
        "logsparse", "CS", lambda a: port_of_logsparse(a, 44, 11), qkv(2, 3, 41, 41, 5), {"sub_len": 11, "win_len": 44}
    ),
    Unseen(
        "etc",
        "NS",
        lambda a: etc(a, 4, 2, 3),
        qkv(2, 3, 17, 17, 5) | {"param_relative_emb_table": (9, 3, 5), "param_relative_bias_table": (9, 3)},
        {"global_len": 4, "long_len": 13, "local_radius": 2, "max_distance": 3},
        mask=(17, 9),
    ),
    Unseen(
        "logsparse", "CS", lambda a: port_of_logsparse(a, 20, 5), qkv(1, 2, 20, 20, 3, 7), {"sub_len": 5, "win_len": 20}
    ),
    Unseen(
        "etc",
        "NS",
        lambda a: etc(a, 2, 1, 0),
        qkv(1, 2, 9, 9, 3) | {"param_relative_emb_table": (3, 2, 3), "param_relative_bias_table": (3, 2)},
        {"global_len": 2, "long_len": 7, "local_radius": 1, "max_distance": 0},
    ),
    Unseen(
        "axial",
        "NS",
        lambda a: along_axes(a, 2, 2),
        {"x": (2, 3, 4, 6)}
        | {f"param_axial_attentions__{axis}__fn__to_{n}": size for axis in range(2) for n, size in AXIAL.items()},
        {"heads": 2, "shape": [3, 4], "sum_axial_out": True, "dim_heads": 5},
    ),
    Unseen(
        "routing_transformer",
        "NC",
        lambda a: routed(a, 4),
        qkv(2, 3, 9, 30, 4) | {"param_mem_key": (3, 2, 1, 4), "param_mem_value": (3, 2, 1, 4)},
        {"heads": 3, "num_clusters": 2, "window_size": 4, "context_window_size": None, "num_mem_kv": 1}
        | {"causal": False, "shared_qk": False},
        given={"param_means": torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(4)).double()},
    ),
    Unseen("fnet", "NS", lambda a: torch.fft.fft2(a["x"]).real, {"x": (1, 13, 7)}),
]


@pytest.mark.parametrize("unseen", UNSEEN, ids=[f"{one.mechanism}-{one.pattern}" for one in UNSEEN])
def test_a_vector_of_another_shape_and_other_options_is_matched(unseen, tmp_path):
    check(unseen, tmp_path)


def test_a_bare_mask_of_other_options_is_matched(tmp_path):
    options = {"mode": "fixed", "block": 1, "local_attn_ctx": 5, "vertsize": 1, "num_verts": 2}
    meta = {"mechanism": "sparse_transformer", "pattern": "CS", "hyperparameters": options}
    mask = openai_mask(5, 2)({}).bool().numpy()
    for status, out in (("ok", mask), ("mismatch", ~mask)):
        np.savez(tmp_path / "m.npz", meta=json.dumps({**meta, "tolerance": {"atol": 0, "rtol": 0}}), out=out)
        assert parity.examine(tmp_path / "m.npz").status == status


ROWS = {"q", "k", "v", "x", "u", "p", "context", "mem", "cmem", "out", "w"}  # arrays whose first axis is the batch
ROWS |= {"key_padding_mask", "rows_valid", "param_noise", "param_landmark_logits", "param_uniform", "param_global_mask"}
ROWS |= {"param_sketching_matrix", "param_random_sign"}
ROWS |= {f"param_{x}_global" for x in "qkv"}
ROWS |= {"x_pooled", "token_type_mat", "cmem"}


@pytest.mark.parametrize("path", parity.vectors(), ids=lambda path: path.stem)
def test_neither_the_name_nor_the_order_of_rows_decides_about_a_recorded_vector(path):
    vector = parity.read(path)
    turned = {
        name: array.flip(0) if name in ROWS or name.removeprefix("d") in ROWS else array
        for name, array in vector.arrays.items()
        if "w" in vector.arrays  # otherwise a bare mask
    }
    settings = dict(vector.meta["hyperparameters"])
    if "global_tokens" in settings:  # one entry per row
        settings["global_tokens"] = settings["global_tokens"][::-1]
    meta = {**vector.meta, "case": "y", "hyperparameters": settings}
    verdict = parity.compare(replace(vector, name="x__y", meta=meta, arrays={**vector.arrays, **turned}))
    assert verdict.status == ("skip" if path.stem in NOT_MATCHED else "ok"), verdict.detail


def spoiled(tmp_path, **changes):
    """The path of a valid vector saved with some of its meta changed."""
    source = next(parity.SHIPPED.glob("linear__ns*.npz"))
    with np.load(source, allow_pickle=False) as file:
        arrays, meta = {name: file[name] for name in file.files if name != "meta"}, json.loads(str(file["meta"]))
    for name in changes.pop("without", ()):
        del arrays[name]
    np.savez(tmp_path / "spoiled.npz", meta=json.dumps(meta | changes), **arrays)
    return tmp_path / "spoiled.npz"


@pytest.mark.parametrize(
    "changes, status, words",
    [
        ({"mechanism": "nobody_knows"}, "skip", "no mechanism 'nobody_knows' here"),
        ({"without": ["w"]}, "mismatch", "nothing is called 'w' in it"),
        ({"without": ["out"]}, "mismatch", "nothing is called 'out' in it"),
        ({"without": ["q"]}, "mismatch", "nothing is called 'q' in it"),
        ({"hyperparameters": {}}, "mismatch", "nothing is called 'eps' in it"),
        ({"hyperparameters": {"eps": "tiny"}}, "mismatch", "cannot be replayed"),
        ({"hyperparameters": {"eps": 1e-6, "feature_map": "dpfp"}}, "skip", "not dpfp"),
        ({"hyperparameters": {"eps": 0.5}}, "mismatch", "out: off by"),
        ({"pattern": "sideways"}, "mismatch", "cannot be replayed"),
        ({"tolerance": {}}, "mismatch", "nothing is called 'atol' in it"),
    ],
)
def test_what_is_wrong_with_a_vector_is_a_line_and_no_traceback(changes, status, words, tmp_path, capsys):
    path = spoiled(tmp_path, **changes)
    assert main([str(path)]) == int(status == "mismatch")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"spoiled.npz: {status} (")
    assert words in line


def test_a_file_that_is_no_vector_is_a_line_and_the_others_follow(tmp_path, capsys):
    sound = next(parity.SHIPPED.glob("linear__ns*.npz"))
    (tmp_path / "cut.npz").write_bytes(sound.read_bytes()[: sound.stat().st_size // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("not a vector")
    np.savez(tmp_path / "bare.npz", q=np.zeros(3))
    np.savez(tmp_path / "meta.npz", meta="[]")
    names = ["cut.npz", "empty.npz", "text.npz", "bare.npz", "meta.npz", "absent.npz"]
    assert main([*(str(tmp_path / name) for name in names), str(sound)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [*(f"{name}: mismatch" for name in names), f"{sound.name}: ok"]


def test_without_a_path_the_usage_is_said(capsys):
    assert main([]) == 2
    assert "Which vectors?" in capsys.readouterr().err
