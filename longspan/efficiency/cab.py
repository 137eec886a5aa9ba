"""How CAB measured its efficiency lengths: which mechanisms, with which options, in which sizes (appendix G).

    as_measured(["performer", "linear"])      # ['performer(features=16)', 'linear']

One noncausal self attention with its projections, batch 4, 8 heads of 64, fp32, 256 to 8,192 tokens. CAB's vanilla
attention stores its matrix, which is `softmax(kernel="plain")`; today's softmax is measured beside it. Departs from CAB
in: dropout is off, clocks synchronise with the device, and ProbSparse has the factor of CAB's tasks, since the adaptive
one of another repository is not described. Paper: arXiv:2210.07661.
"""

from collections.abc import Sequence
from typing import Any

from longspan.core.spec import Spec

SETUP: dict[str, Any] = {"lengths": tuple(2**i for i in range(8, 14)), "dtype": "float32", "module": "layer"}
VANILLA = 'softmax(kernel="plain")'
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": 16},
    "abc": {"slots": 16},
    "lara": {"landmarks": 16, "proposal": "means", "weighting": "query"},
    "cosformer": {},
    "performer": {"features": 16},
    "nystromformer": {"landmarks": 16, "conv": 5},
    "probsparse": {"factor": 5},
    "longshort": {"window": 16, "landmarks": 16, "conv": 5},
    "s4d": {"state": 16, "channels": 8, "init": "inv", "output": "linear", "tied": True, "bidirectional": False},
}


def as_measured(names: Sequence[str]) -> list[str]:
    """The mechanisms as CAB measured them: a name without options gets CAB's options; no names mean all of them.

    Exact attention is always among them, in both forms.
    """
    asked = [str(Spec(name, OPTIONS[name])) if name in OPTIONS else name for name in names or OPTIONS]
    return list(dict.fromkeys([VANILLA, "softmax", *asked]))
