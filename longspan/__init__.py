"""Longspan: the arena for long-sequence attention.

    import longspan

    longspan.check("performer(features=64)", patterns=["causal_self"], profile="quick")
    card = longspan.run("listops", "performer", tier="smoke")
    model = longspan.load("out/cards/listops/....json")
    longspan.board("starter", tier="smoke").to_pandas()
    longspan.advise("causal_self", 16384).plot()

Every public name is loaded when it is first used, so that `import longspan` costs nothing and needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan import attentions, datasets, suites, tasks
    from longspan.api import ask, catalogue, params
    from longspan.attentions.base import Attention, AttentionMeta, HeadwiseAttention, Pattern
    from longspan.conformance import check
    from longspan.multihead import MultiheadAttention
    from longspan.notebook import advise, analyze, board, boards, card, cards, measure, report, run
    from longspan.results.store import Store
    from longspan.runs import Cell, load

_HOMES = {
    "Attention": "longspan.attentions.base",
    "AttentionMeta": "longspan.attentions.base",
    "Cell": "longspan.runs",
    "HeadwiseAttention": "longspan.attentions.base",
    "MultiheadAttention": "longspan.multihead",
    "Pattern": "longspan.attentions.base",
    "Store": "longspan.results.store",
    "ask": "longspan.api",
    "catalogue": "longspan.api",
    "check": "longspan.conformance",
    "load": "longspan.runs",
    "params": "longspan.api",
}
_HOMES |= dict.fromkeys(
    ("advise", "analyze", "board", "boards", "card", "cards", "measure", "report", "run"), "longspan.notebook"
)
_MODULES = ("attentions", "datasets", "suites", "tasks")

__all__ = [
    "Attention",
    "AttentionMeta",
    "Cell",
    "HeadwiseAttention",
    "MultiheadAttention",
    "Pattern",
    "Store",
    "advise",
    "analyze",
    "ask",
    "attentions",
    "board",
    "boards",
    "card",
    "cards",
    "catalogue",
    "check",
    "datasets",
    "load",
    "measure",
    "params",
    "report",
    "run",
    "suites",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"longspan.{name}")
    if name == "__version__":
        from longspan.core.version import VERSION

        return VERSION
    raise AttributeError(f"longspan has no public name {name!r}; it has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
