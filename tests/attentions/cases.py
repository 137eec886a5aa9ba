"""The one table of mechanisms: a line here, and a mechanism is held to every promise in every pattern it declares."""

from longspan import attentions
from longspan.attentions import Pattern

# name: the strings under which it is tested, the default first
CASES: dict[str, tuple[str, ...]] = {
    "abc": ("abc",),
    "bigbird": ("bigbird", "bigbird(block=8)"),  # few blocks, and enough for random ones
    "cosformer": ("cosformer",),
    "fnet": ("fnet",),
    "lara": ("lara",),
    "linear": ("linear",),
    "linformer": ("linformer",),
    "local": ("local",),
    "longformer": ("longformer", "longformer(window=16, global_tokens=3)"),
    "longshort": ("longshort", "longshort(window=16, chunk=8)"),  # a causal window of all, and of less than all
    "none": ("none",),
    "nystromformer": ("nystromformer",),
    "performer": ("performer",),
    "probsparse": ("probsparse",),
    "reformer": ("reformer", "reformer(buckets=4, chunk=3)"),  # buckets emptier, and fuller, than the window
    "s4": ("s4",),
    "s4d": ("s4d",),
    "sinkhorn": ("sinkhorn",),
    "softmax": ("softmax", "softmax(kernel=plain)"),
    "sparse_transformer": ("sparse_transformer", "sparse_transformer(kind=strided)"),
    "synthesizer": ("synthesizer",),
    "yoso": ("yoso",),
}


def each_case() -> list[tuple[str, Pattern]]:
    """Every string of the table with every pattern its mechanism declares."""
    return [(spec, p) for specs in CASES.values() for spec in specs for p in attentions.get(spec).meta.patterns]
