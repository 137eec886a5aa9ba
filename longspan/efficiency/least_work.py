"""The least work of a mechanism: the operations its formula needs at a given size, in any implementation.

A formula says how many operations one head of one row needs, in four parts that differ in the cost of their backward:

    pairs        a query and a key under a softmax: 4 c operations each; backward 10 c, scores recomputed
    products     every other matrix product; backward twice as much
    fixed        Fourier transforms and products with a matrix that is not learned; backward as much again
    choices      hashing, sampling, sorting: no gradient, so no backward

Only products count; elementwise work is left out. For a mechanism without a formula here, the counted operations of its
own call are used. Options that were not given have the values of a layer built for this length.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from longspan.attentions import Mechanism, Pattern
from longspan.kernels.flops import causal_pairs, transform


@dataclass(frozen=True)
class ProblemSize:
    """One head of one row: n queries and m keys of c channels, and what the mechanism was asked to be."""

    n: int
    m: int
    c: int
    heads: int
    pattern: Pattern
    options: dict[str, Any]

    @classmethod
    def of(cls, mechanism: Mechanism, pattern: Pattern, *, length: int, heads: int, dim: int) -> "ProblemSize":
        """As many keys as queries, and every option that was not given at its default."""
        options = {option.name: option.default for option in mechanism.available_options()} | mechanism.options
        return cls(length, length, dim, heads, pattern, options)

    @property
    def causal(self) -> bool:
        return self.pattern is Pattern.CAUSAL_SELF

    def __getitem__(self, option: str) -> Any:
        return self.options[option]


@dataclass(frozen=True)
class Work:
    pairs: float = 0
    products: float = 0
    fixed: float = 0
    choices: float = 0

    def operations(self, c: int, *, train: bool) -> float:
        forward = 4 * c * self.pairs + self.products + self.fixed + self.choices
        return forward + train * (10 * c * self.pairs + 2 * self.products + self.fixed)


@dataclass(frozen=True)
class Step:
    work: Work
    keys: int | None  # that it looks at, where it looks at keys


def core(mechanism: Mechanism, size: ProblemSize) -> Work | None:
    """The work between projections, for one head of one row; None without a formula."""
    if keys := KEYS.get(mechanism.target):
        return Work(pairs=float(keys(size).sum()))
    formula = CORES.get(mechanism.target)
    return formula(size) if formula else None


def step(mechanism: Mechanism, size: ProblemSize) -> Step | None:
    """The work of one more query after n tokens; None without a formula."""
    if keys := KEYS.get(mechanism.target):
        seen = int(keys(size)[-1])
        return Step(Work(pairs=seen), seen)
    if mechanism.target not in SUMS:
        return None
    work = CORES[mechanism.target](replace(size, n=1, m=0 if size.pattern.cross else 1))
    return None if work is None else Step(work, None)


def layer(mechanism: Mechanism, size: ProblemSize, batch: int) -> Work | None:
    """The work of a mechanism that has no heads of queries, keys and values, for a whole batch."""
    formula = LAYERS.get(mechanism.target)
    return formula(size, batch) if formula else None


# ------------------------------------------------------------------------------------------ how many keys a query sees


def _all_keys(s: ProblemSize) -> np.ndarray:
    return np.arange(1, s.n + 1) if s.causal else np.full(s.n, s.m)


def _local(s: ProblemSize) -> np.ndarray:
    i, w = np.arange(s.n), s["window"]
    if s["shape"] == "window":
        left, right = (i - w + 1, i) if s.causal else (i - w, i + w)
    else:
        left, right = i // w * w - s["overlap"], i // w * w + w - 1 + s["overlap"]
    right = np.minimum(right, i) if s.causal else right
    return np.minimum(right, s.n - 1) - np.maximum(left, 0) + 1


def _longformer(s: ProblemSize) -> np.ndarray:
    i, reach = np.arange(s.n), s["window"] // 2
    left = np.maximum(i - reach, 0)
    right = i if s.causal else np.minimum(i + reach, s.n - 1)
    seen = right - left + 1 + np.minimum(left, s["global_tokens"])  # global tokens come first
    return np.where(i < s["global_tokens"], i + 1 if s.causal else s.n, seen)


def _bigbird(s: ProblemSize) -> np.ndarray:
    i, block = np.arange(s.n), s["block"]
    u, last = i // block, (s.n - 1) // block
    before, after = np.maximum(u - 2, 0), 0 if s.causal else np.maximum(last - u - 2, 0)
    random = np.minimum(s["random"], before + after)
    if s.causal:
        return (np.minimum(u, 2) + random) * block + i % block + 1  # block 0, the one before, random ones; the own
    whole = np.minimum(u, 2) + 1 + np.minimum(last - u, 2) + random
    return np.where((u == 0) | (u == last), s.n, np.minimum(whole * block, s.n))


def _sparse_transformer(s: ProblemSize) -> np.ndarray:
    i, l = np.arange(s.n), s["stride"] or max(1, round(math.sqrt(s.n)))  # noqa: E741  the paper's letter
    if s["kind"] == "strided":
        near = np.minimum(i, l - 1) + 1 + (0 if s.causal else np.minimum(s.n - 1 - i, l - 1))
        far = i // l + 1 + (0 if s.causal else (s.n - 1 - i) // l)
        both = 1  # of the distances below l only 0 is a multiple
    else:
        summary, start = min(s["summary"], max(1, l // s["bands"])), i // l * l
        end = i if s.causal else np.minimum(start + l, s.n) - 1
        near = end - start + 1
        first = l - summary  # of the summary tokens of a block; bands only move them
        both = np.maximum(end - start + 1 - first, 0)
        blocks, rest = (i // l, both) if s.causal else (s.n // l, max(s.n % l - first, 0))
        far = blocks * summary + rest
    return {"both": near + far - both, "near": near, "far": far + np.zeros_like(i)}[s["part"]]


KEYS: dict[str, Callable[[ProblemSize], np.ndarray]] = {
    "softmax": _all_keys,
    "local": _local,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "sparse_transformer": _sparse_transformer,
}


# ----------------------------------------------------------------------------------------- summaries of keys and values


def _kernel(s: ProblemSize, features: int, projected: bool) -> Work:
    """Every key into sums of `features` by c, and one more column for the denominator; every query against them."""
    sums = (s.n + s.m) * 2 * features * (s.c + 1)
    return Work(products=sums, fixed=(s.n + s.m) * 2 * s.c * features if projected else 0)


def _linear(s: ProblemSize) -> Work:
    return _kernel(s, s.c, projected=False)


def _cosformer(s: ProblemSize) -> Work:
    return _kernel(s, 2 * s.c, projected=False)


def _performer(s: ProblemSize) -> Work:
    return _kernel(s, s["features"] or max(1, int(s.c * math.log(s.c))), projected=True)


def _abc(s: ProblemSize) -> Work:
    """Logits of every key, and of every value if they have their own; both into the slots; queries against these."""
    controls = 2 if s["control"] == "separate" else 1
    return Work(products=2 * s.m * s.c * s["slots"] * (controls + 2) + 4 * s.n * s.c * s["slots"])


def _linformer(s: ProblemSize) -> Work:
    return Work(pairs=s.n * s["rank"], products=4 * s.m * s["rank"] * s.c)


def _nystromformer(s: ProblemSize) -> Work:
    r, c, taps = s["landmarks"], s.c, 2 * s.m * s.c * s["conv"]
    if min(s.n, s.m) <= r:
        return Work(pairs=s.n * s.m, products=taps)
    inverse = s["iterations"] * 4 * 2 * r**3
    beside = 4 * r * (s.n + s.m) * c  # softmax over few, whose weights can be kept: nothing is made again
    return Work(products=beside + 2 * r * r * c * 2 + inverse + taps)


def _sinkhorn(s: ProblemSize) -> Work | None:
    block, c = s["block"], s.c
    if s["top"]:
        return None
    groups = -(-s.m // block)
    logits = 2 * groups * groups * c
    if s["combine"] == "cut" or s.pattern.cross:
        shown = min(s["cut"], groups)
        return Work(pairs=s.n * shown * block, products=logits + 4 * shown * groups * block * c)
    rows = causal_pairs(groups, groups) - groups if s.causal else groups * groups  # earlier blocks alone, or all
    own = groups * causal_pairs(block, block) if s.causal else s.n * block
    return Work(pairs=s.n * block + own, products=(logits / 2 if s.causal else logits) + 4 * rows * block * c)


def _probsparse(s: ProblemSize) -> Work:
    """The queries that are chosen see everything; every query draws as many keys to be chosen by."""
    chosen, drawn = (min(s["factor"] * max(1, math.ceil(math.log(x))), x) for x in (s.n, s.m))
    seen = chosen * s.m / (2 if s.causal else 1)
    return Work(pairs=seen, choices=2 * s.n * drawn * s.c)


def _yoso(s: ProblemSize) -> Work:
    """A cosine for every pair, and its value; weights are no softmax and can be kept."""
    pairs = causal_pairs(s.n, s.m) if s.causal else s.n * s.m
    return Work(products=4 * s.c * pairs + 2 * s.m * s.c * s["conv"])


CORES: dict[str, Callable[[ProblemSize], Work | None]] = {
    "linear": _linear,
    "cosformer": _cosformer,
    "performer": _performer,
    "abc": _abc,
    "linformer": _linformer,
    "nystromformer": _nystromformer,
    "sinkhorn": _sinkhorn,
    "probsparse": _probsparse,
    "yoso": _yoso,
}
SUMS = {"linear", "cosformer", "performer", "abc", "linformer"}  # whose state is a summary of fixed size


# ------------------------------------------------------------------------------------------------- layers without heads


def _fnet(s: ProblemSize, batch: int) -> Work:
    points = s.n * s.c * s.heads
    return Work(fixed=transform(batch * points, points, real=True))


def _s4d(s: ProblemSize, batch: int) -> Work:
    """The kernel, its transform and that of the tokens, and one back; then the map out."""
    d, points = s.c * s.heads, 2 * s.n
    rows = batch * d + s["channels"] * d + batch * s["channels"] * d
    directions = 2 if s["bidirectional"] and not s.causal else 1
    kernel = 4 * (s["state"] // 2) * s.n * s["channels"] * directions * d
    width = {"glu": 2 * d, "linear": d, "none": 0}[s["output"]]
    mapped = 2 * batch * s.n * s["channels"] * d * width
    return Work(products=kernel + mapped, fixed=transform(rows * points, points, real=True))


LAYERS: dict[str, Callable[[ProblemSize, int], Work]] = {"fnet": _fnet, "s4d": _s4d}
