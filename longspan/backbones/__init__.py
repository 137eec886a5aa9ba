"""Networks with slots. Each takes an attention factory and never names a mechanism."""

from longspan.core.registry import Registry

registry = Registry(
    "backbone",
    __name__,
    "torch.nn:Module",
    skip=(
        *(
            "batch_norm",
            "carrying",
            "compiling",
            "continuous",
            "encoder_block",
            "encoder_sizes",
            "fairseq_sinusoid",
            "greedy",
        ),
        *("masked_encoder", "norms", "parameters", "point_proxies", "sizes", "slots", "speech_layers", "tied_dropout"),
    ),
)


def names() -> list[str]:
    return registry.names()


def describe(name: str) -> str:
    """The first paragraph of a backbone's file."""
    import importlib
    import inspect

    if name not in names():
        registry.find(name)  # raises the sentence
    return inspect.cleandoc(importlib.import_module(f"{__name__}.{name}").__doc__ or "")
