"""What a card of each kind must say, as JSON Schema: a run, a probe of a trained model, a measurement of cost.

All kinds share the frame: schema, kind, code, environment, files beside the card, when it was made, and the seal.
"""

from collections.abc import Mapping
from typing import Any

from longspan.results.variant import PATTERN as VARIANT

SCHEMA_VERSION = 1
LARGEST = 1e150  # of any number on a card: its square is finite too, so that no mean or deviation overflows
LARGEST_INTEGER = 2**63 - 1


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, nullable: bool = False) -> dict:
    kind = ["object", "null"] if nullable else "object"
    return {"type": kind, "required": list(required), "properties": {**required, **(optional or {})}}


def _map_of(values: Mapping[str, Any]) -> dict:
    return {"type": "object", "additionalProperties": values}


def _or_null(rule: Mapping[str, Any]) -> dict:
    return {**rule, "type": [rule["type"], "null"]}


_TEXT = {"type": "string", "minLength": 1, "maxLength": 500}
_SENTENCE = {"type": "string", "maxLength": 10_000}
_COUNT = {"type": "integer", "minimum": 0, "maximum": LARGEST_INTEGER}
_VERSION = {**_COUNT, "minimum": 1}
_NUMBER = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
_POSITIVE = {"type": "number", "minimum": 0, "maximum": LARGEST}
_FRACTION = {"type": "number", "minimum": 0, "maximum": 1}
_FREE = {"type": "object"}  # numbers and texts in it are bounded too: see card.py
_HASH = {"type": "string", "pattern": r"^[0-9a-f]{64}$(?!\n)"}  # in Python, $ also matches before a last line break
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|\+00:00)$(?!\n)"
_VARIANT = {"type": "string", "maxLength": 40, "pattern": VARIANT}
_METRIC = _object({"value": _NUMBER, "count": _COUNT})
_METRICS = _map_of(_METRIC)
_FILES = _map_of({"type": "string", "pattern": r"^[A-Za-z0-9_=][A-Za-z0-9._=,-]*$(?!\n)", "maxLength": 255})


_CODE = {  # for a built-in its version and outputs, for a plug-in its source; see code_identity.py
    "mechanism_version": _VERSION,
    "mechanism_fingerprint": _map_of(_map_of({"type": "array", "items": _NUMBER})),
    "mechanism_sha256": _HASH,
}
CODE_SCHEMA = _object({}, _CODE)
_CONFORMANCE = _object(
    {
        "status": {"type": "string", "enum": ["kept", "broken"]},
        "profile": {"type": "string", "enum": ["quick", "full"]},
        "broken": {"type": "array", "items": _TEXT, "maxItems": 100},  # names of promises
    }
)


def _card(kind: str, fields: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema of one kind of card: its own fields inside the frame that all kinds share.

    Optional fields were added after the first cards were written.
    """
    frame = {
        "schema": {"type": "integer", "enum": [SCHEMA_VERSION]},
        "kind": {"type": "string", "enum": [kind]},
        **fields,
        "code": _object({"version": _TEXT, "commit": _or_null(_SENTENCE), "dirty": {"type": ["boolean", "null"]}}),
        "environment": _FREE,
        "files": _FILES,
        "created": {"type": "string", "maxLength": 50, "pattern": _MOMENT},
        "sha256": _HASH,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Longspan {kind} card, schema {SCHEMA_VERSION}",
        **_object(frame, {"files_sha256": _map_of(_HASH), **(optional or {})}),
    }


RUN_SCHEMA = _card(
    "run",
    {
        "task": _TEXT,
        "task_version": _VERSION,
        "backbone": _TEXT,
        "protocol": _TEXT,
        "tier": _TEXT,
        "mechanism": _TEXT,
        "title": _TEXT,
        "pattern": _TEXT,
        "seed": _COUNT,
        "overrides": _FREE,
        "track": {"type": "string", "enum": ["fixed", "free"]},
        "fidelity": {"type": "boolean"},
        "settings": _object(
            {"data": _FREE, "model": _FREE, "recipe": _FREE, "precision": _TEXT, "device": _TEXT}, _CODE
        ),
        "dataset": _object(
            {
                "name": _TEXT,
                "variant": _VARIANT,
                "sha256": _TEXT,
                "counts": _object({"train": _COUNT, "valid": _COUNT, "test": _COUNT}),
            },
            {"labels_sha256": _HASH},  # of the test labels, where examples have classes: see predictions.py
        ),
        "parameters": _object(
            {
                "total": _or_null(_COUNT),  # unknown if the process died before the network was built
                "parts": _map_of(_COUNT),
                "baseline": _or_null(_COUNT),
                "ratio": _or_null(_POSITIVE),
                "within_rule": {"type": ["boolean", "null"]},
            }
        ),
        "metrics": {**_map_of(_METRICS), "type": ["object", "null"]},
        "score": _object(
            {
                "name": _TEXT,
                "split": {"type": "string", "enum": ["test"]},  # the only one that boards rank
                "value": _NUMBER,
                "count": _COUNT,
                "higher_is_better": {"type": "boolean"},
                "chance": _or_null(_NUMBER),
            },
            {
                "unit": {"type": "string", "enum": ["percent", "plain"]},  # percent if absent
                "selected_by": _TEXT,  # the validation metric that selects the weights, where it is not the score
            },
            nullable=True,
        ),
        "selected_step": _or_null(_COUNT),
        "curve": {
            "type": "array",
            "items": {**_object({"step": _COUNT}), "additionalProperties": _or_null(_NUMBER)},  # train_*, valid_*
        },
        "timing": _object(
            {
                "wall_seconds": _or_null(_POSITIVE),
                "steps_per_second": _or_null(_POSITIVE),
                "examples_per_second": _or_null(_POSITIVE),
            },
            {"shared": {"type": ["boolean", "null"]}},  # the device had other work too; null if unknown
        ),
        "memory": _object({"peak_bytes": _or_null(_COUNT)}),
        "energy": _object({"joules": _POSITIVE}, nullable=True),
        "status": {"type": "string", "enum": ["ok", "fail"]},
        "reason": _or_null(_SENTENCE),
    },
    {
        "slots": _map_of(_TEXT),  # module -> "Class (pattern)"
        "preset": _TEXT,  # the plain name that stands for this form of the mechanism under the protocol
        "gave_up_at": _COUNT,  # the step after which a run that did not learn was stopped (`recipe.give_up_at`)
        "initial_sha256": _TEXT,  # of the weights that training started from (`recipe.initial_weights`)
        "selected_until": _map_of(_COUNT),  # for the end of each shorter run, the step it would have selected
        "conformance": _CONFORMANCE,  # what `check` reported for exactly this code; absent if it was not run
    },
)

PROBE_SCHEMA = _card(
    "probe",
    {
        "question": _TEXT,
        "subject": _object(
            {
                "task": _TEXT,
                "task_version": _VERSION,
                "protocol": _TEXT,
                "tier": _TEXT,
                "mechanism": _TEXT,
                "title": _TEXT,
                "pattern": _TEXT,
                "seed": _COUNT,
                "card": _or_null(_HASH),  # the hash of the card of the run whose model was probed
            },
            {"dataset": _object({"variant": _VARIANT}), "overrides": _FREE},  # as that card has them
        ),
        "method": {**_SENTENCE, "minLength": 1},  # one sentence: how the answer was computed
        "settings": _FREE,
        "results": _FREE,
    },
)

_ACCURACY = _object({"accuracy": _FRACTION, "count": _COUNT})
_GRID = {"type": "array", "items": {"type": "array", "items": _NUMBER}}

ANSWERS: dict[str, dict[str, Any]] = {  # what the results of known questions hold; those of others are free
    "span": _object(
        {
            "mean": _POSITIVE,
            "std": _or_null(_POSITIVE),
            "samples": _COUNT,
            "length": _POSITIVE,
            "uniform": _POSITIVE,
            "by_layer": _GRID,
            "source": {"type": "string", "enum": ["weights", "gradients"]},
        }
    ),
    "rollout": _object(
        {
            "query": _TEXT,
            "examples": {
                "type": "array",
                "items": _object(
                    {
                        "row": _COUNT,
                        "label": _COUNT,
                        "prediction": _COUNT,
                        "image": _GRID,
                        "map": _GRID,
                        "lit_area": _FRACTION,
                        "lit_share": _FRACTION,
                    }
                ),
            },
        }
    ),
    "embeddings": _object(
        {
            "side": _COUNT,
            "by_intensity_distance": {"type": "array", "items": _NUMBER, "minItems": 256},
            "beside": _NUMBER,
            "below": _NUMBER,
            "others": _NUMBER,
        }
    ),
    "transfer": _object(
        {
            "accuracy": _FRACTION,
            "chance": _FRACTION,
            "count": _COUNT,
            "standard_error": _POSITIVE,
            "above_chance": {"type": "boolean"},
            "from_accuracy": _FRACTION,
            "from_chance": _or_null(_FRACTION),
            "to_length": _COUNT,
        }
    ),
    "extrapolation": _object(
        {
            "trained_length": _COUNT,
            "tokens": _COUNT,
            "points": {
                "type": "array",
                "minItems": 1,
                "items": _object({"length": _COUNT, "perplexity": _or_null(_POSITIVE), "reason": _or_null(_SENTENCE)}),
            },
        }
    ),
    "gap": _object({"train": _ACCURACY, "test": _ACCURACY, "gap": _NUMBER}),
}

_STATUSES = ("ok", "oom", "fail", "refused", "unsupported")


def _point(modes: tuple[str, ...], fields: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict:
    """One measured point: which, whether it could be measured, and the numbers."""
    return _object(
        {
            "length": _COUNT,
            "mode": {"type": "string", "enum": list(modes)},
            "status": {"type": "string", "enum": list(_STATUSES)},
            "reason": _or_null(_SENTENCE),
            **fields,
        },
        optional,
    )


def _points(point: Mapping[str, Any]) -> dict:
    return {"type": "array", "items": point}


MEASUREMENT_SCHEMA = _card(
    "measurement",
    {
        "procedure": _TEXT,
        "mechanism": _TEXT,
        "title": _TEXT,
        "pattern": _TEXT,
        "settings": _FREE,
        "points": _points(_point(("train", "inference", "forward", "decode"), {})),
        "parameters": _object({"total": _or_null(_COUNT)}),
    },
)

_LRA_POINT = _point(
    ("train", "inference"),
    {
        "steps_per_second": _or_null(_POSITIVE),
        "compute_steps_per_second": _or_null(_POSITIVE),
        "examples_per_second": _or_null(_POSITIVE),
        "peak_bytes": _or_null(_COUNT),
    },
)
_TIME = {"median": _POSITIVE, "low": _POSITIVE, "high": _POSITIVE, "count": _COUNT, "dropped": _COUNT}
_FLOOR = {"bytes": _COUNT, "operations": _COUNT, "seconds": _POSITIVE, "ratio": _POSITIVE}
_CORE_POINT = _point(
    ("forward", "train", "decode"),
    {
        "variant": {"type": "string", "enum": ["eager", "graph", "compiled"]},
        "seconds": _object(_TIME, {"calls": _COUNT}, nullable=True),  # per call, in decoding per token
        "memory": _object(
            {
                "allocated": _COUNT,
                "reserved": _or_null(_COUNT),
                "activations": _or_null(_COUNT),
                "method": _TEXT,
            },
            nullable=True,
        ),
        "energy": _object({"joules": _POSITIVE, "window_seconds": _POSITIVE, "calls": _COUNT}, nullable=True),
        "operations": _or_null(_COUNT),
        "floor": _object({**_FLOOR, "bound": {"type": "string", "enum": ["memory", "compute"]}}, nullable=True),
        "achieved": _object(
            {"operations_per_second": _or_null(_POSITIVE), "bytes_per_second": _or_null(_POSITIVE)}, nullable=True
        ),
        "state_bytes": _or_null(_COUNT),
    },
    {"captured": {"type": ["boolean", "null"]}, "agreement": _or_null(_POSITIVE)},
)

PROCEDURES: dict[str, dict[str, Any]] = {  # what cards of known procedures hold beyond that; those of others are free
    "lra-efficiency": _object({"points": _points(_LRA_POINT)}),
    "core": _object(
        {
            "settings": _object(
                {
                    **dict.fromkeys(("batch", "heads", "dim"), _COUNT),
                    "dtype": _TEXT,
                    "module": {"type": "string", "enum": ["core", "layer", "block"]},
                    "device": _TEXT,
                }
            ),
            "ceilings": _object(
                {"bytes_per_second": _POSITIVE, "operations_per_second": _POSITIVE, "method": _TEXT}, nullable=True
            ),
            "gate": _object(
                {
                    "ok": {"type": "boolean"},
                    "reason": _or_null(_SENTENCE),
                    "dtype": _TEXT,
                    "checked": {"type": "array", "items": _TEXT},
                    "error": _or_null(_POSITIVE),
                }
            ),
            "points": _points(_CORE_POINT),
        }
    ),
}

SCHEMAS = {"run": RUN_SCHEMA, "probe": PROBE_SCHEMA, "measurement": MEASUREMENT_SCHEMA}
