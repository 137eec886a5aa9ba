"""Networks with slots. Each takes an attention factory and never names a mechanism."""

from longspan.core.registry import Registry

registry = Registry(
    "backbone",
    __name__,
    "torch.nn:Module",
    skip=("compiling", "greedy", "parameters", "point_proxies", "sizes", "slots"),
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
