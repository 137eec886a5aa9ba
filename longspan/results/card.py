"""A card: the JSON record of one run, sealed with a hash of its own content.

    card = read("out/cards/listops/....json")     # parsed as data only, checked, refused with one sentence if not sound
    write(folder / filename(card), card)          # checked again, sealed, written in one atomic step

Cards come from strangers, so reading trusts nothing: the size and the depth are bounded, a key may occur once, NaN and
Infinity are refused, the schema and the hash must hold. Fields this version does not know are kept and hashed, never
interpreted. Scores are fractions (accuracy 0.41, not 41).
"""

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from longspan.core import atomic
from longspan.core.errors import CorruptFile, UsageError

Card = dict[str, Any]

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20  # a card with a curve of 50,000 points stays below 8 MiB
MAX_DEPTH = 24
MAX_PREDICTIONS_BYTES = 2**30  # what an archive of predictions may unpack to
SCORE_TOLERANCE = 1e-6  # below one example in any test set here, above the rounding of a float32 mean

# ---------------------------------------------------------------------------------------------------------- the schema


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, nullable: bool = False) -> dict:
    kind = ["object", "null"] if nullable else "object"
    return {"type": kind, "required": list(required), "properties": {**required, **(optional or {})}}


def _map_of(values: Mapping[str, Any]) -> dict:
    return {"type": "object", "additionalProperties": values}


_TEXT = {"type": "string", "minLength": 1, "maxLength": 500}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number"}
_POSITIVE = {"type": "number", "minimum": 0}
_FREE = {"type": "object"}
_METRIC = _object({"value": _NUMBER, "count": _COUNT})
_METRICS = _map_of(_METRIC)


def _or_null(rule: Mapping[str, Any]) -> dict:
    return {**rule, "type": [rule["type"], "null"]}


RUN_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Longspan run card, schema 1",
    **_object(
        {
            "schema": {"type": "integer", "enum": [SCHEMA_VERSION]},
            "kind": {"type": "string", "enum": ["run"]},
            "task": _TEXT,
            "task_version": {"type": "integer", "minimum": 1},
            "backbone": _TEXT,
            "protocol": _TEXT,
            "tier": _TEXT,
            "mechanism": _TEXT,
            "title": _TEXT,
            "pattern": _TEXT,
            "seed": {"type": "integer"},
            "overrides": _FREE,
            "track": {"type": "string", "enum": ["fixed", "free"]},
            "fidelity": {"type": "boolean"},
            "settings": _object(
                {"data": _FREE, "model": _FREE, "recipe": _FREE, "precision": _TEXT, "device": _TEXT},
            ),
            "dataset": _object(
                {
                    "name": _TEXT,
                    "variant": {"type": "string", "enum": ["generated", "official", "imported", "standin"]},
                    "sha256": _TEXT,
                    "counts": _object({"train": _COUNT, "valid": _COUNT, "test": _COUNT}),
                }
            ),
            "code": _object(
                {"version": _TEXT, "commit": {"type": ["string", "null"]}, "dirty": {"type": ["boolean", "null"]}}
            ),
            "environment": _FREE,
            "parameters": _object(
                {
                    "total": _COUNT,
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
                    "split": _TEXT,
                    "value": _NUMBER,
                    "count": _COUNT,
                    "higher_is_better": {"type": "boolean"},
                    "chance": _or_null(_NUMBER),
                },
                nullable=True,
            ),
            "selected_step": _or_null(_COUNT),
            "curve": {
                "type": "array",
                "items": _object(
                    {"step": _COUNT},
                    {
                        name: _or_null(_NUMBER)
                        for name in (
                            "train_loss",
                            "train_accuracy",
                            "valid_loss",
                            "valid_accuracy",
                            "learning_rate",
                            "seconds",
                        )
                    },
                ),
            },
            "timing": _object(
                {
                    "wall_seconds": _or_null(_POSITIVE),
                    "steps_per_second": _or_null(_POSITIVE),
                    "examples_per_second": _or_null(_POSITIVE),
                }
            ),
            "memory": _object({"peak_bytes": _or_null(_COUNT)}),
            "energy": _object({"joules": _POSITIVE}, nullable=True),
            "status": {"type": "string", "enum": ["ok", "fail"]},
            "reason": {"type": ["string", "null"]},
            "files": _map_of({"type": "string", "pattern": r"^[A-Za-z0-9_=][A-Za-z0-9._=,-]*$", "maxLength": 255}),
            "created": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$"},
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        }
    ),
}

SCHEMAS: dict[str, dict[str, Any]] = {"run": RUN_SCHEMA}  # one schema per kind of card


# ------------------------------------------------------------------------------------------------------------ checking


class InvalidCard(UsageError):
    """A card in memory that does not follow its schema."""


def validate(card: Any) -> None:
    """Raise InvalidCard, with the first fault found, unless the card follows the schema of its kind."""
    if not isinstance(card, dict):
        raise InvalidCard(f"A card must be a JSON object, got {type(card).__name__}.")
    if (version := card.get("schema")) != SCHEMA_VERSION or isinstance(version, bool):
        raise InvalidCard(f"The card has schema {version!r}; this version of longspan reads schema {SCHEMA_VERSION}.")
    kind = card.get("kind")
    if not isinstance(kind, str) or kind not in SCHEMAS:
        raise InvalidCard(f"The card has kind {kind!r}; known kinds: {', '.join(SCHEMAS)}.")
    if fault := _schema_fault(card, SCHEMAS[kind]) or _meaning_fault(card):
        raise InvalidCard(f"The card does not follow schema {SCHEMA_VERSION}: {fault}.")


def _schema_fault(card: Card, schema: Mapping[str, Any]) -> str | None:
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
    except ModuleNotFoundError:  # a machine that only trains may lack it
        return next(structural_faults(card, schema), None)
    error = best_match(Draft202012Validator(schema).iter_errors(card))
    return None if error is None else f"{error.json_path.removeprefix('$').lstrip('.') or 'card'}: {error.message}"


_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def structural_faults(value: Any, schema: Mapping[str, Any], where: str = "card") -> Iterator[str]:
    """What breaks the schema, for the few keywords our schemas use. Stands in where jsonschema is not installed."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_has_type(value, name) for name in types):
        yield f"{where} must be {' or '.join(types)}, got {type(value).__name__}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} must be one of {schema['enum']}, got {value!r}"
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield f"{where} is empty"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{where} is longer than {schema['maxLength']} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where} does not match {schema['pattern']}"
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        yield f"{where} is below {schema['minimum']}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from structural_faults(item, schema.get("items", {}), f"{where}[{index}]")
    if isinstance(value, dict):
        yield from (f"{where} lacks {name!r}" for name in schema.get("required", ()) if name not in value)
        known = schema.get("properties", {})
        for name, item in value.items():
            yield from structural_faults(
                item, known.get(name, schema.get("additionalProperties", {})), f"{where}.{name}"
            )


def _meaning_fault(card: Card) -> str | None:
    """What a schema cannot say."""
    if fault := next(_unsound_values(card), None):
        return fault
    try:
        datetime.fromisoformat(card["created"])
    except ValueError:
        return f"created is no date: {card['created']!r}"
    score = card["score"]
    if card["status"] == "ok" and (score is None or card["metrics"] is None):
        return "status is ok but score or metrics is null"
    if card["status"] == "fail" and not card["reason"]:
        return "status is fail but no reason is given"
    if score and score["name"] == "accuracy" and not 0 <= score["value"] <= 1:
        return f"an accuracy is a fraction between 0 and 1, got {score['value']!r}"
    return None


def _unsound_values(root: Any) -> Iterator[str]:
    """Nesting beyond MAX_DEPTH, numbers that are not finite, text that is not Unicode. Without recursion."""
    stack: list[tuple[Any, int]] = [(root, 1)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_DEPTH:
            yield f"nested deeper than {MAX_DEPTH} levels"
            return
        if isinstance(value, dict):
            stack.extend((item, depth + 1) for item in value.values())
            stack.extend((key, depth) for key in value)
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, float) and not math.isfinite(value):
            yield "a number is NaN or infinite"
        elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            yield "a text holds half a Unicode character"


# ------------------------------------------------------------------------------------------------------- seal and name


def canonical(content: Mapping[str, Any]) -> bytes:
    """The one spelling of a JSON value that is hashed: sorted keys, no spaces, UTF-8."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def content_hash(card: Mapping[str, Any], *, without: tuple[str, ...] = ("sha256",)) -> str:
    return hashlib.sha256(canonical({k: v for k, v in card.items() if k not in without})).hexdigest()


def seal(card: Mapping[str, Any]) -> Card:
    """A copy of the card that carries the hash of everything else in it. A seal that is broken is not renewed."""
    if fault := next(_unsound_values(dict(card)), None):
        raise InvalidCard(f"The card cannot be sealed: {fault}.")
    digest = content_hash(card)
    if card.get("sha256") not in (None, digest):
        raise InvalidCard("The card was changed after it was sealed; remove its sha256 to seal it anew.")
    return {**card, "sha256": digest}


def cell(card: Mapping[str, Any]) -> tuple:
    """What a run answers. Of two cards with one cell, the newer supersedes the older."""
    names = ("kind", "task", "task_version", "protocol", "tier", "mechanism", "pattern", "seed", "track", "fidelity")
    overrides = canonical(card["overrides"]).decode()
    return (*(card[name] for name in names), overrides, card["dataset"]["variant"])


def _slug(text: str, length: int = 48) -> str:
    """Letters, digits and `_.=-` only, no leading dot: safe as a file name on every system."""
    return re.sub(r"[^A-Za-z0-9.=]+", "_", text)[:length].strip("._") or "unnamed"


def filename(card: Mapping[str, Any]) -> str:
    """A readable, unique name: `listops-performer_features=64-noncausal_self-longspan-smoke-seed0-1f2e3d4c5b6a.json`.

    The hash at its end leaves out `files`, so that the files may be named after the card.
    """
    words = [_slug(card[name]) for name in ("task", "mechanism", "pattern", "protocol", "tier")]
    digest = content_hash(card, without=("sha256", "files"))[:12]
    return "-".join([*words, f"seed{int(card['seed'])}", digest]) + ".json"


# ------------------------------------------------------------------------------------------------------ read and write


def write(path: str | Path, card: Mapping[str, Any]) -> Path:
    """Check, seal and write a card in one atomic step."""
    sealed = seal(card)
    validate(sealed)
    path = Path(path)
    atomic.write_bytes(path, (json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def read(path: str | Path) -> Card:
    """The card in a file, or CorruptFile with one sentence."""
    path = Path(path)
    card = parse(_bytes_of(path), path.name)
    try:
        validate(card)
    except InvalidCard as error:
        raise CorruptFile(f"{path.name}: {error}") from None
    if card["sha256"] != content_hash(card):
        raise CorruptFile(f"{path.name}: the content does not match its sha256, so the card was changed after the run.")
    return card


def _bytes_of(path: Path) -> bytes:
    if not path.exists():
        raise UsageError(f"No card at {path}.")
    if not path.is_file():
        raise CorruptFile(f"{path.name}: a card must be a plain file.")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CorruptFile(f"{path.name}: cannot be read ({error.strerror}).") from None
    if len(content) > MAX_BYTES:
        raise CorruptFile(f"{path.name}: larger than {MAX_BYTES // 2**20} MiB, no card is.")
    return content


def parse(content: bytes, name: str = "card") -> Any:
    """Strict JSON from untrusted bytes: no repeated keys, no NaN, bounded depth, whole Unicode."""
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite_float,
        )
    except RecursionError:
        raise CorruptFile(f"{name}: nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:  # not UTF-8, not JSON, or refused by a hook below
        raise CorruptFile(f"{name}: not sound JSON ({error}).") from None
    if fault := next(_unsound_values(value), None):
        raise CorruptFile(f"{name}: {fault}.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


# -------------------------------------------------------------------------------------------------------------- verify


@dataclass(frozen=True)
class Finding:
    """One question asked of a card, and its answer."""

    check: Literal["card", "files", "score"]
    status: Literal["kept", "broken", "not applicable"]
    detail: str


def verify(path: str | Path) -> list[Finding]:
    """Everything that can be checked without training again: schema and hash, files present, score recomputed."""
    path = Path(path)
    try:
        card = read(path)
    except CorruptFile as error:
        return [Finding("card", "broken", str(error))]
    findings = [Finding("card", "kept", f"schema {card['schema']}, hash {card['sha256'][:12]}")]
    missing = [name for name in card["files"].values() if not (path.parent / name).is_file()]
    if missing:
        findings.append(Finding("files", "broken", f"missing beside the card: {', '.join(missing)}"))
    elif card["files"]:
        findings.append(Finding("files", "kept", f"{len(card['files'])} present"))
    else:
        findings.append(Finding("files", "not applicable", "the card names no files"))
    return [*findings, _rescored(card, path.parent)]


def _rescored(card: Card, folder: Path) -> Finding:
    score, name = card["score"], card["files"].get("predictions")
    if score is None:
        return Finding("score", "not applicable", "the run failed, there is no score")
    if score["name"] != "accuracy":
        return Finding("score", "not applicable", f"{score['name']} cannot be recomputed from labels alone")
    if name is None:
        return Finding("score", "not applicable", "no predictions were kept")
    if not (folder / name).is_file():
        return Finding("score", "broken", f"{name} is missing, so the score cannot be recomputed")
    try:
        value, count = accuracy_of(folder / name)
    except CorruptFile as error:
        return Finding("score", "broken", str(error))
    stated = f"the card says {score['value']:.6f} of {score['count']}, the predictions give {value:.6f} of {count}"
    if count != score["count"] or abs(value - score["value"]) > SCORE_TOLERANCE:
        return Finding("score", "broken", stated)
    return Finding("score", "kept", f"accuracy {value:.6f} recomputed from {count} predictions")


def accuracy_of(path: Path) -> tuple[float, int]:
    """Accuracy and count from an archive with the arrays `label` and `prediction`; nothing in it is executed."""
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_PREDICTIONS_BYTES:
            raise CorruptFile(f"{path.name}: unpacks to {unpacked} bytes, more than predictions can need.")
        with np.load(path, allow_pickle=False) as arrays:
            label, prediction = arrays["label"], arrays["prediction"]
    except (OSError, EOFError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CorruptFile(f"{path.name}: no readable arrays `label` and `prediction` ({error}).") from None
    if label.ndim != 1 or label.shape != prediction.shape or not len(label):
        raise CorruptFile(
            f"{path.name}: label {label.shape} and prediction {prediction.shape} must be equally long rows."
        )
    return float(np.mean(label == prediction)), len(label)
