"""The options that the Comprehensive Attention Benchmark gave its mechanisms, by task and pattern: its Table 5.

    presets = {"cab-2023": cab_presets("summarization")}      # in a task; `abc` as causal_self is then abc(slots=64)

Where published parameter counts contradict the table, the counts are followed: 64 slots for ABC on MLM, 64 states for
S4D as causal_self, 8 channels for it in both language models. CAB's LARA takes plain means of segments, its S4D has one
direction and shares its states. What the 64 landmarks of causal LongShort mean is not known; here they are chunks of 64
tokens. Twins of CAB's code have the options of their originals. Paper: arXiv:2210.07661.
"""

from collections.abc import Mapping

from longspan.attentions import Pattern
from longspan.core.spec import Spec, Value
from longspan.tasks.base import Preset

NS, CS, NC, CC = Pattern
LARA = {"proposal": "means", "weighting": "query"}
S4D = {"channels": 8, "init": "inv", "output": "linear", "tied": True, "bidirectional": False}
CAUSAL = {"local": {"window": 16}, "abc": {"slots": 64}, "longshort": {"window": 16, "chunk": 64}, "s4d": S4D}


def speech(channels: int) -> Mapping[str, Mapping[str, Value]]:
    """The options as noncausal_self in speech, where S4D has as many channels as the network has heads."""
    return {
        "local": {"window": 15},
        "abc": {"slots": 64},
        "lara": LARA | {"landmarks": 64},
        "probsparse": {"factor": 5},
        "performer": {"features": 64},
        "longshort": {"window": 15, "landmarks": 64, "conv": 5},
        "nystromformer": {"landmarks": 64, "conv": 5},
        "s4d": S4D | {"channels": channels, "state": 64},
    }


TABLE: Mapping[str, Mapping[Pattern, Mapping[str, Mapping[str, Value]]]] = {
    "summarization": {
        NS: {
            "local": {"window": 15},
            "abc": {"slots": 64},
            "lara": LARA | {"landmarks": 64},
            "probsparse": {"factor": 5},
            "performer": {"features": 64},
            "longshort": {"window": 15, "landmarks": 16},
            "nystromformer": {"landmarks": 64},
            "s4d": S4D | {"state": 64},
        },
        CS: CAUSAL,
        CC: {"abc": {"slots": 64}, "performer": {"features": 64}},
    },
    "mlm": {
        NS: {
            "local": {"window": 15},
            "abc": {"slots": 64},
            "lara": LARA | {"landmarks": 16},
            "probsparse": {"factor": 5},
            "performer": {"features": 16},
            "longshort": {"window": 15, "landmarks": 16},
            "nystromformer": {"landmarks": 16},
            "s4d": S4D | {"state": 16},
        }
    },
    "lm": {CS: CAUSAL},
    "forecasting": {NC: {"abc": {"slots": 16}, "performer": {"features": 16}}},
    "super_resolution": {
        NS: {
            "local": {"window": 15},
            "abc": {"slots": 16},
            "lara": LARA | {"landmarks": 16},
            "probsparse": {"factor": 5},
            "performer": {"features": 16},
            "longshort": {"window": 15, "landmarks": 16},
            "nystromformer": {"landmarks": 16},
            "s4d": S4D | {"channels": 1, "state": 16},
        }
    },
    "tts_fastspeech2": {NS: speech(channels=2)},
    "tts_transformer": {
        NS: speech(channels=4),
        CS: CAUSAL | {"s4d": S4D | {"channels": 4}},
        CC: {"abc": {"slots": 64}, "performer": {"features": 64}},
    },
    "point_cloud_completion": {NC: {"abc": {"slots": 64}, "performer": {"features": 64}}},
}
TWINS = {  # mechanisms whose CAB release is also here as `cab_...`, by the patterns it has
    NS: ("abc", "lara", "local", "nystromformer", "performer"),
    CS: ("abc", "local", "longshort"),
    NC: ("abc", "performer"),
    CC: ("abc", "performer"),
}


def cab_presets(task: str) -> dict[str, Preset]:
    """The form of each mechanism in the slots of each pattern."""
    forms: dict[str, dict[Pattern, str]] = {}
    for pattern, rows in TABLE[task].items():
        twins = {f"cab_{name}": rows.get(name, {}) for name in TWINS[pattern]}
        twins = {name: {key: v for key, v in options.items() if key not in LARA} for name, options in twins.items()}
        for name, options in {**rows, **twins}.items():  # `cab_lara` takes none of the options in LARA
            forms.setdefault(name, {})[pattern] = str(Spec(name, dict(options)))
    return {name: Preset(by_pattern) for name, by_pattern in forms.items()}
