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
    """The module docstring of a backbone, given by name or plug-in path."""
    import importlib
    import inspect

    module = registry.find(name).__module__ if ":" in name or name not in names() else f"{__name__}.{name}"
    return inspect.cleandoc(importlib.import_module(module).__doc__ or "")
