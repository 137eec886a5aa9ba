"""The one table of mechanisms: each listed here is tested for every promise in every pattern it declares."""

from longspan import attentions
from longspan.attentions import Pattern

# name: the specs it is tested with, the default first
CASES: dict[str, tuple[str, ...]] = {
    "abc": ("abc",),
    "axial": ("axial", "axial(combine=chain)"),
    "bigbird": ("bigbird", "bigbird(block=8)"),  # few blocks, and enough of them for random blocks
    "cluster_former": ("cluster_former", "cluster_former(clusters=3, window=6, overlap=2, strict=True)"),
    "compressive_transformer": (
        "compressive_transformer",
        "compressive_transformer(memory=7, compressed=3, ratio=3, compression=conv)",
    ),
    "cosformer": ("cosformer",),
    "dpfp": ("dpfp", "dpfp(update=delta)"),
    "efficient_attention": ("efficient_attention",),
    "etc": ("etc", "etc(radius=3, global_tokens=4)"),
    "flash": ("flash", "flash(group=8, features=6, activation=laplace, shift=True)"),
    "flowformer": ("flowformer",),
    "fnet": ("fnet",),
    "funnel": (
        "funnel",
        "funnel(stride=3, pool=max, separate_cls=False)",
        "funnel(pool_q_only=False)",
    ),
    "global_attention": (
        "global_attention",
        "global_attention(score=general)",
        "global_attention(score=concat)",
    ),
    "lara": ("lara",),
    "linear": ("linear",),
    "linformer": ("linformer",),
    "local": ("local",),
    "logsparse": ("logsparse", "logsparse(local=5)"),
    "longformer": ("longformer", "longformer(window=16, global_tokens=3)"),
    "longshort": ("longshort", "longshort(window=16, chunk=8)"),  # a causal window over all tokens, and over fewer
    "luna": ("luna", "luna(slots=3, tied=False, pack_heads=1)"),
    "mca": ("mca", "mca(factor=5, inclusive=True)"),
    "none": ("none",),
    "nystromformer": ("nystromformer",),
    "performer": ("performer",),
    "poolingformer": ("poolingformer", "poolingformer(window=6, pooled_window=20)"),
    "probsparse": ("probsparse",),
    "reformer": ("reformer", "reformer(buckets=4, chunk=3)"),  # buckets smaller and larger than the window
    "rfa": ("rfa", "rfa(gate=True)"),
    "routing_transformer": ("routing_transformer", "routing_transformer(clusters=3, window=5, context_window=7)"),
    "s4": ("s4",),
    "s4d": ("s4d",),
    "scatterbrain": ("scatterbrain", "scatterbrain(window=5, features=8, buckets=4)"),
    "set_transformer": ("set_transformer",),
    "sac": ("sac", "sac(edges=3, width=8)"),
    "sinkhorn": ("sinkhorn",),
    "skyformer": ("skyformer", "skyformer(landmarks=9, accumulation=2)"),
    "soft": ("soft", "soft(landmarks=8, ratio=3)"),  # fewer tokens than the landmarks need, and more
    "softmax": ("softmax", "softmax(kernel=plain)"),
    "sparse_transformer": ("sparse_transformer", "sparse_transformer(kind=strided)"),
    "synthesizer": ("synthesizer",),
    "transformer_xl": ("transformer_xl", "transformer_xl(memory=7, same_length=True)"),
    "xcit": ("xcit",),
    "yoso": ("yoso", "yoso(hashes=3, bits=3)"),
    "yoso_e": ("yoso_e",),
}

# specs of the table whose options add more parameters than the ten per cent a comparison allows
LARGER = {
    "compressive_transformer(memory=7, compressed=3, ratio=3, compression=conv)",
    "luna(slots=3, tied=False, pack_heads=1)",
}


def each_case() -> list[tuple[str, Pattern]]:
    """Every spec of the table with every pattern its mechanism declares."""
    return [(spec, p) for specs in CASES.values() for spec in specs for p in attentions.get(spec).meta.patterns]
