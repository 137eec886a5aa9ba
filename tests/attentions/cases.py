"""The one table of mechanisms: a line here, and a mechanism is held to every promise in every pattern it declares."""

from longspan import attentions
from longspan.attentions import Pattern

# name: the strings under which it is tested, the default first
CASES: dict[str, tuple[str, ...]] = {
    "abc": ("abc",),
    "bigbird": ("bigbird", "bigbird(block=8)"),  # few blocks, and enough for random ones
    "cosformer": ("cosformer",),
    "fnet": ("fnet",),
    "global_attention": (
        "global_attention",
        "global_attention(score=general)",
        "global_attention(score=concat)",
    ),
    "lara": ("lara",),
    "linear": ("linear",),
    "linformer": ("linformer",),
    "local": ("local",),
    "longformer": ("longformer", "longformer(window=16, global_tokens=3)"),
    "longshort": ("longshort", "longshort(window=16, chunk=8)"),  # a causal window of all, and of less than all
    "mca": ("mca", "mca(factor=5, inclusive=True)"),
    "none": ("none",),
    "nystromformer": ("nystromformer",),
    "performer": ("performer",),
    "poolingformer": ("poolingformer", "poolingformer(window=6, pooled_window=20)"),
    "probsparse": ("probsparse",),
    "reformer": ("reformer", "reformer(buckets=4, chunk=3)"),  # buckets emptier, and fuller, than the window
    "s4": ("s4",),
    "s4d": ("s4d",),
    "sinkhorn": ("sinkhorn",),
    "skyformer": ("skyformer", "skyformer(landmarks=9, accumulation=2)"),
    "soft": ("soft", "soft(landmarks=8, ratio=3)"),  # fewer tokens than the landmarks take, and more
    "softmax": ("softmax", "softmax(kernel=plain)"),
    "sparse_transformer": ("sparse_transformer", "sparse_transformer(kind=strided)"),
    "synthesizer": ("synthesizer",),
}


def each_case() -> list[tuple[str, Pattern]]:
    """Every string of the table with every pattern its mechanism declares."""
    return [(spec, p) for specs in CASES.values() for spec in specs for p in attentions.get(spec).meta.patterns]
