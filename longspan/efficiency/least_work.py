"""The least work of a mechanism: the operations its formula needs at a given size, in any implementation.

A formula says how many operations one head of one row needs, in four parts that differ in the cost of backward:

    pairs        a query and a key under a softmax: 4 c operations each; backward 10 c, scores recomputed
    products     every other matrix product; backward twice as much
    fixed        Fourier transforms and products with a matrix that is not learned; backward as much again
    choices      hashing, sampling, sorting: no gradient, so no backward

Only products are counted, not elementwise work. For a mechanism without a formula here, the counted operations of its
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
    """One head of one row: n queries and m keys of c channels, with the pattern and options of the mechanism."""

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
    keys: int | None  # how many it attends to, where it attends to keys


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
        return (np.minimum(u, 2) + random) * block + i % block + 1  # block 0, the one before, random ones; its own
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


def _logsparse(s: ProblemSize) -> np.ndarray:
    lag = np.arange(s.n) % (s["restart"] or s.n)
    seen = ((lag & (lag - 1)) == 0) | (lag < s["local"])
    past = seen.cumsum()  # as many keys as there are such distances up to i
    return past if s.causal else past + past[::-1] - 1


def _etc(s: ProblemSize) -> np.ndarray:
    i, radius = np.arange(s.n), s["radius"]
    stride = s["stride"] or -(-s.n // max(s["global_tokens"], 1))
    is_global = (i % stride == 0) & (i < s["global_tokens"] * stride)
    upto = np.concatenate([[0], is_global.cumsum()])  # global tokens before each position
    left, end = np.maximum(i - radius, 0), i + 1 if s.causal else np.minimum(i + radius + 1, s.n)
    far = upto[left] if s.causal else upto[left] + upto[-1] - upto[end]
    return np.where(is_global, i + 1 if s.causal else s.n, end - left + far)


KEYS: dict[str, Callable[[ProblemSize], np.ndarray]] = {
    "softmax": _all_keys,
    "global_attention": _all_keys,
    "local": _local,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "sparse_transformer": _sparse_transformer,
    "logsparse": _logsparse,
    "etc": _etc,
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


def _dpfp(s: ProblemSize) -> Work:
    """The delta rule reads what it holds for a key before it writes, and has no denominator."""
    features = 2 * s.c * s["nu"]
    if s["update"] == "delta" and s.causal:
        return Work(products=(s.n + 2 * s.m) * 2 * features * s.c)
    return _kernel(s, features, projected=False)


def _performer(s: ProblemSize) -> Work:
    return _kernel(s, s["features"] or max(1, int(s.c * math.log(s.c))), projected=True)


def _scatterbrain(s: ProblemSize) -> Work:
    """Features for all, exact weights for nearby pairs; with lsh, as if all buckets were of one size."""
    features = s["features"] or max(2, int(s.c * math.log(s.c)) // 2 * 2)  # in pairs, of which one is projected
    far = replace(_kernel(s, features, projected=False), fixed=(s.n + s.m) * s.c * features)
    if s["support"] == "lsh" or s.pattern.cross:
        return replace(far, pairs=s.n * min(s["window"], -(-s.m // s["buckets"])))
    i, w = np.arange(s.n), s["window"]
    left = i - (w - 1 if s.causal else w // 2)
    return replace(far, pairs=float((np.minimum(left + w, s.n) - np.maximum(left, 0)).sum()))


def _rfa(s: ProblemSize) -> Work:
    """A sine and a cosine of each projection."""
    projected = (s.n + s.m) * 2 * s.c * s["features"]
    return Work(products=_kernel(s, 2 * s["features"], projected=False).products, fixed=projected)


def _abc(s: ProblemSize) -> Work:
    """Logits of every key, and of every value if they have their own; both into the slots; queries against these."""
    controls = 2 if s["control"] == "separate" else 1
    return Work(products=2 * s.m * s.c * s["slots"] * (controls + 2) + 4 * s.n * s.c * s["slots"])


def _efficient_attention(s: ProblemSize) -> Work:
    """Values into a map for each channel, with the sum of its weights; queries against the maps."""
    return Work(products=2 * s.c * (s.m * (s.c + 1) + s.n * s.c))


def _flowformer(s: ProblemSize) -> Work:
    return Work(products=2 * s.c * s.c * (s.n + s.m))


def _linformer(s: ProblemSize) -> Work:
    return Work(pairs=s.n * s["rank"], products=4 * s.m * s["rank"] * s.c)


def _nystromformer(s: ProblemSize) -> Work:
    r, c, taps = s["landmarks"], s.c, 2 * s.m * s.c * s["conv"]
    if min(s.n, s.m) <= r:
        return Work(pairs=s.n * s.m, products=taps)
    inverse = s["iterations"] * 4 * 2 * r**3
    beside = 4 * r * (s.n + s.m) * c  # softmax over few, whose weights can be kept: nothing is recomputed
    return Work(products=beside + 2 * r * r * c * 2 + inverse + taps)


def _skyformer(s: ProblemSize) -> Work:
    """Queries and keys against drawn tokens, keys into them, queries out of them, and an inverse."""
    r, drawn, c = s["landmarks"], s["landmarks"] * s["accumulation"], s.c
    inverse = s["iterations"] * 4 * 2 * r**3 + 2 * drawn * drawn * c + 2 * r * r * c
    return Work(products=(s.n + s.m) * 2 * c * (drawn + r) + inverse)


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
    """The chosen queries see everything; to choose them, every query is scored against a sample of keys."""
    chosen, drawn = (min(s["factor"] * max(1, math.ceil(math.log(x))), x) for x in (s.n, s.m))
    seen = chosen * s.m / (2 if s.causal else 1)
    return Work(pairs=seen, choices=2 * s.n * drawn * s.c)


def _relative(s: ProblemSize) -> Work:
    """Every pair once more by its distance; projections of distances are shared by all rows, and left out."""
    seen = _all_keys(s)
    if s.options.get("same_length"):
        i, w = np.arange(s.n), s["memory"]
        seen = np.minimum(i, w - 1) + 1 + (0 if s.causal else np.minimum(s.n - 1 - i, w - 1))
    return Work(pairs=float(seen.sum()), products=2.0 * s.c * float(seen.sum()))


def _set_transformer(s: ProblemSize) -> Work:
    """Tokens into pools, queries against pools; maps of pools, which if causal can be part of the projections."""
    r, c = s["points"], s.c
    return Work(products=4 * r * c * (s.n + s.m) + (0 if s.pattern.causal else 4 * r * c * c))


def _xcit(s: ProblemSize) -> Work:
    """The covariance of channels, and every value mixed by it."""
    return Work(products=2 * s.c * s.c * (s.n + s.m))


def _yoso(s: ProblemSize) -> Work:
    """The signs of every token; values are only added up. What the backward needs depends on how many keys collide."""
    signs = 2 * (s.n + s.m) * s.c * s["hashes"] * s["bits"]
    return Work(products=2 * s.m * s.c * s["conv"], choices=signs)


def _yoso_e(s: ProblemSize) -> Work:
    """A cosine for every pair, and its value; weights are not a softmax and can be kept."""
    pairs = causal_pairs(s.n, s.m) if s.causal else s.n * s.m
    return Work(products=4 * s.c * pairs + 2 * s.m * s.c * s["conv"])


CORES: dict[str, Callable[[ProblemSize], Work | None]] = {
    "linear": _linear,
    "cosformer": _cosformer,
    "performer": _performer,
    "abc": _abc,
    "dpfp": _dpfp,
    "efficient_attention": _efficient_attention,
    "flowformer": _flowformer,
    "linformer": _linformer,
    "nystromformer": _nystromformer,
    "skyformer": _skyformer,
    "sinkhorn": _sinkhorn,
    "probsparse": _probsparse,
    "compressive_transformer": _relative,
    "transformer_xl": _relative,
    "rfa": _rfa,
    "scatterbrain": _scatterbrain,
    "set_transformer": _set_transformer,
    "xcit": _xcit,
    "yoso": _yoso,
    "yoso_e": _yoso_e,
}
SUMS = {"linear", "cosformer", "performer", "abc", "linformer"}  # whose state is a summary of fixed size
SUMS |= {"dpfp", "efficient_attention", "flowformer", "rfa", "set_transformer", "xcit"}


# ------------------------------------------------------------------------------------------------- layers without heads


def _fnet(s: ProblemSize, batch: int) -> Work:
    points = s.n * s.c * s.heads
    return Work(fixed=transform(batch * points, points, real=True))


def _s4d(s: ProblemSize, batch: int) -> Work:
    """The kernel, its transform and that of the tokens, and an inverse one; then the output projection."""
    d, points = s.c * s.heads, 2 * s.n
    rows = batch * d + s["channels"] * d + batch * s["channels"] * d
    directions = 2 if s["bidirectional"] and not s.causal else 1
    kernel = 4 * (s["state"] // 2) * s.n * s["channels"] * directions * d
    width = {"glu": 2 * d, "linear": d, "none": 0}[s["output"]]
    mapped = 2 * batch * s.n * s["channels"] * d * width
    return Work(products=kernel + mapped, fixed=transform(rows * points, points, real=True))


def _luna(s: ProblemSize, batch: int) -> Work:
    """Projections; every key into the slots and every query from them, causally by two sums of c times slots each."""
    d, l, values = s.c * s.heads, s["slots"], 1 if s["tied"] else 2  # noqa: E741  the paper's letter
    if s.causal:
        mapped = 2 * batch * s.n * d * d * (3 + values)
        return Work(products=mapped + 2 * l * d * d + 10 * batch * s.heads * s.n * s.c * l)
    mapped = 2 * batch * d * d * (2 * s.n + values * (s.m + l)) + 2 * l * d * d
    return Work(pairs=batch * s.heads * (s.n + s.m) * l, products=mapped)


def _flash(s: ProblemSize, batch: int) -> Work:
    """Projections; the pairs of each group, which no softmax needs twice; sums over groups and queries against them."""
    d, z, g = s.c * s.heads, s["features"], min(s["group"], s.n)
    width, whole = int(s["expansion"] * d), s.n // g
    tokens = whole * g
    near = (whole * causal_pairs(g, g) + causal_pairs(s.n - tokens, s.n - tokens)) if s.causal else tokens * g
    far = 4 * s.n * z * width if not s.causal or whole > 1 else 0
    mapped = 2 * s.n * d * (3 * width + z)
    return Work(products=batch * (mapped + 2 * near * (z + width) + far))


def _mca(s: ProblemSize, batch: int) -> Work:
    """Blocks into slots, these into keys and values; every query in and out, and against the slots it sees."""
    d, f = s.c * s.heads, s["factor"]
    blocks = s.m // f
    filters = 2 * blocks * f * d * (d if s["dense"] else s.c)
    seen = (np.arange(s.n) + s["inclusive"]) // f + 1 if s.causal else np.full(s.n, blocks + 1)
    products = filters + 4 * (blocks + 1) * d * d + 4 * s.n * d * d
    return Work(pairs=batch * s.heads * float(np.minimum(seen, blocks + 1).sum()), products=batch * products)


def _poolingformer(s: ProblemSize, batch: int) -> Work:
    """Keys of the window and slots of the wider one; projections of both levels, and weights of the slots."""
    d, i, slots = s.c * s.heads, np.arange(s.n), np.arange(0, s.n, s["stride"])
    near = np.minimum(i + 1, s["window"]) if s.causal else _around(i, s["window"] // 2, i)
    half, wide = s["kernel"] // 2, s["pooled_window"]
    if s.causal:
        far = np.searchsorted(slots, i - half, side="right") - np.searchsorted(slots, i - wide, side="right")
    else:
        far = _around(i, wide // 2, slots)
    weights = 2 * len(slots) * s.c * s["kernel"] * s.heads if s["pool"] == "dynamic" else 0
    products = 8 * s.n * d * d + 6 * s.n * d * (d if s["dense"] else s.c) + weights
    return Work(pairs=batch * s.heads * float((near + np.maximum(far, 0)).sum()), products=batch * products)


def _around(i: np.ndarray, reach: int, places: np.ndarray) -> np.ndarray:
    """How many of these positions, in ascending order, lie within reach of each i."""
    return np.searchsorted(places, i + reach, side="right") - np.searchsorted(places, i - reach)


def _funnel(s: ProblemSize, batch: int) -> Work:
    """Projections of pools in and out and of keys and values; every pair once more by its distance, if it has one."""
    d, apart = s.c * s.heads, int(s["separate_cls"])
    pools, keys = (apart + -(-(x - apart) // s["stride"]) for x in (s.n, s.m))
    keys = s.m if s["pool_q_only"] else keys
    pairs = batch * s.heads * pools * keys
    return Work(pairs, 4 * batch * d * d * (pools + keys) + (0 if s.pattern.cross else 2 * s.c * pairs))


def _soft(s: ProblemSize, batch: int) -> Work:
    """Tokens against landmarks three times (distances, into them, out of them), and the inverse of their matrix."""
    r, c, d = min(s["landmarks"], -(-s.n // s["ratio"])), s.c, s.c * s.heads
    inverse = s["iterations"] * 4 * r**3 + 4 * r * r * c
    head = 6 * s.n * r * c + 2 * r * s["ratio"] * c * c + inverse + 2 * s.n * c * s["conv"]
    return Work(products=batch * (s.heads * head + 6 * s.n * d * d))


def _axial(s: ProblemSize, batch: int) -> Work:
    """The projections of every axis (keys and values of shared ones once), and each token with those of its lines."""
    columns = max(1, round(math.sqrt(s.n)))
    shape = s["shape"] or (-(-s.n // columns), columns)
    after, seen = 1, 0
    for size in reversed(shape):
        place = np.arange(s.n) // after % size
        behind = (s.n - 1 - np.arange(s.n)) // after  # tokens of the line that follow
        seen += int((place + 1 + (0 if s.causal else np.minimum(behind, size - 1 - place))).sum())
        after *= size
    d = s.c * s.heads
    apart = len(shape) if s["combine"] != "sum" or s["projections"] == "own" else 1
    return Work(pairs=batch * s.heads * seen, products=2 * batch * s.n * 4 * d * d * apart)


def _routing_transformer(s: ProblemSize, batch: int) -> Work:
    """Projections, the scores s of every token, and pairs within clusters; causally as if all were of one size."""
    d, clusters = s.c * s.heads, s["clusters"] or max(1, round(math.sqrt(s.n)))
    window = min(s["window"] or -(-s.n // clusters), s.n)
    keys = min(s["context_window"] or -(-s.m // clusters), s.m) if s.pattern.cross else window
    pairs, maps = clusters * window * (keys + s["memory"]), 4
    if s.causal:
        rank, maps = np.arange(s.n) // clusters, 3
        pairs = int(np.minimum(np.maximum(rank, 1), window - 1).sum())
    elif s.pattern is Pattern.CAUSAL_CROSS:
        pairs = s.n * keys
    routed = 2 * s.c * clusters * (s.n if s.causal else s.n + s.m)
    return Work(batch * s.heads * pairs, 2 * batch * s.n * maps * d * d, choices=batch * s.heads * routed)


def _cluster_former(s: ProblemSize, batch: int) -> Work:
    """Projections, distances to all centroids, and windows of sorted tokens; causally as if all were of one size."""
    d, clusters = s.c * s.heads, s["clusters"] or min(64, max(1, s.n // 16))
    i = np.arange(s.n)
    if s.causal or s["strict"]:
        left, right = (s["window"] - 1, 0) if s.causal else (s["window"] // 2, s["window"] // 2)
        size = -(-s.n // clusters)
        start, end = i // size * size, np.minimum(i // size * size + size, s.n) - 1
    else:
        block, left, right = s["window"] - s["overlap"], s["overlap"] // 2, s["overlap"] // 2
        start, end, i = 0, s.n - 1, i // block * block
        right += block - 1
    seen = np.minimum(i + right, end) - np.maximum(i - left, start) + 1
    return Work(
        batch * s.heads * float(seen.sum()), 2 * batch * s.n * 4 * d * d, choices=2 * batch * s.n * d * clusters
    )


def _sac(s: ProblemSize, batch: int) -> Work:
    """The projections, the predictor and its scores of all pairs, and the edges."""
    d, r = s.c * s.heads, s["width"]
    allowed = np.arange(1, s.n + 1) if s.causal else np.full(s.n, s.n)
    seen = np.minimum(allowed, s["edges"] + 1).sum()
    predictor = 2 * batch * (s.n * (4 * r * (d + r) + r * d) + int(allowed.sum()) * r)
    return Work(batch * s.heads * float(seen), 2 * batch * s.n * 4 * d * d, choices=predictor)


LAYERS: dict[str, Callable[[ProblemSize, int], Work]] = {
    "axial": _axial,
    "cluster_former": _cluster_former,
    "flash": _flash,
    "fnet": _fnet,
    "funnel": _funnel,
    "luna": _luna,
    "mca": _mca,
    "poolingformer": _poolingformer,
    "routing_transformer": _routing_transformer,
    "s4d": _s4d,
    "soft": _soft,
    "sac": _sac,
}
