"""A card: the JSON record of one run, one measurement or one probe, sealed with a hash of its content.

    card = read("out/cards/listops/....json")     # parsed as data only, checked, refused with one sentence if not sound
    write(folder / filename(card), card)          # checked again, sealed, written in one atomic step

Cards are untrusted input: the size and the depth are bounded, a key may occur once, NaN and
Infinity are refused, the schema and the hash must hold. Fields this version does not know are kept and hashed, never
interpreted. Accuracies and other shares are fractions (0.41, not 41).
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

from longspan.core import atomic, readable_json
from longspan.core.errors import CorruptFile, UsageError
from longspan.results.schema import ANSWERS, PROCEDURES, SCHEMA_VERSION, SCHEMAS

Card = dict[str, Any]

MAX_BYTES = 16 * 2**20  # a card with a curve of 50,000 points stays below 8 MiB
MAX_DEPTH = 24
MAX_PREDICTIONS_BYTES = 2**30  # what an archive of predictions may unpack to
SCORE_TOLERANCE = 1e-6  # below one example in any test set here, above the rounding of a float32 mean

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
    """What breaks the schema, for the few keywords our schemas use. Used where jsonschema is not installed."""
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
    if isinstance(value, int | float) and value > schema.get("maximum", value):
        yield f"{where} is above {schema['maximum']}"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where} has fewer than {schema['minItems']} items"
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
    return _MEANINGS[card["kind"]](card)


def _run_fault(card: Card) -> str | None:
    score = card["score"]
    if card["status"] == "ok" and (score is None or card["metrics"] is None):
        return "status is ok but score or metrics is null"
    if card["status"] == "ok" and card["parameters"]["total"] is None:
        return "status is ok but parameters.total is null"
    if card["status"] == "fail" and not card["reason"]:
        return "status is fail but no reason is given"
    if score and score["name"] == "accuracy" and not 0 <= score["value"] <= 1:
        return f"an accuracy is a fraction between 0 and 1, got {score['value']!r}"
    return None


def _probe_fault(card: Card) -> str | None:
    if not card["results"]:
        return "a probe without results answers nothing"
    if card["question"] not in ANSWERS:
        return None
    if fault := _schema_fault(card["results"], ANSWERS[card["question"]]):
        return f"results: {fault}"
    for example in card["results"].get("examples", ()):
        shapes = {_shape(example["image"]), _shape(example["map"])}
        if len(shapes) != 1 or None in shapes:
            return "results: an image and its map must be rectangles of one size"
    return None


def _shape(grid: list[list[float]]) -> tuple[int, int] | None:
    """Rows and columns; None for what is no rectangle."""
    widths = {len(line) for line in grid}
    return (len(grid), widths.pop()) if len(widths) == 1 else None


def _measurement_fault(card: Card) -> str | None:
    """Points tell what was measured or why not, and each length once per mode and variant."""
    procedure = card["procedure"]
    if procedure in PROCEDURES and (fault := _schema_fault(card, PROCEDURES[procedure])):
        return fault
    speeds = _SPEEDS.get(procedure, ())
    seen = set()
    for point in card["points"]:
        where = f"the {point['mode']} point at length {point['length']}"
        key = (point["length"], point["mode"], point.get("variant"))
        if key in seen:
            return f"{where} occurs twice"
        seen.add(key)
        if speeds and point["status"] == "ok" and all(point[name] is None for name in speeds):
            return f"{where} is ok but has no speed"
        if point["status"] != "ok" and not point["reason"]:
            return f"{where} is {point['status']} but no reason is given"
    return None


_SPEEDS = {"lra-efficiency": ("steps_per_second", "compute_steps_per_second"), "core": ("seconds",)}

_MEANINGS = {"run": _run_fault, "probe": _probe_fault, "measurement": _measurement_fault}


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
    """What a card answers, beginning with its kind. Of two cards with one cell, the newer supersedes the older."""
    return card["kind"], *_CELLS[card["kind"]](card)


def _run_cell(card: Mapping[str, Any]) -> tuple:
    names = ("task", "task_version", "protocol", "tier", "mechanism", "pattern", "seed", "track", "fidelity")
    overrides = canonical(card["overrides"]).decode()
    return (*(card[name] for name in names), overrides, card["dataset"]["variant"])


def _probe_cell(card: Mapping[str, Any]) -> tuple:
    """One answer to a question about one model, whatever the number of samples behind it."""
    return card["question"], canonical(card["subject"]).decode()


def _measurement_cell(card: Mapping[str, Any]) -> tuple:
    machine = [card["environment"].get(name) for name in ("gpu", "cpu")]
    names = ("procedure", "mechanism", "pattern")
    return (*(card[name] for name in names), canonical({"on": machine, "with": card["settings"]}).decode())


_CELLS = {"run": _run_cell, "probe": _probe_cell, "measurement": _measurement_cell}


def _slug(text: str, length: int = 48) -> str:
    """Letters, digits and `_.=-` only, no leading dot: safe as a file name on every system."""
    return re.sub(r"[^A-Za-z0-9.=]+", "_", text)[:length].strip("._") or "unnamed"


def filename(card: Mapping[str, Any]) -> str:
    """A readable, unique name: `listops-performer_features=64-noncausal_self-longspan-smoke-seed0-1f2e3d4c5b6a.json`.

    The hash at its end leaves out `files`, so that the files may be named after the card.
    """
    digest = content_hash(card, without=("sha256", "files"))[:12]
    return "-".join([*_words(card), digest]) + ".json"


def _words(card: Mapping[str, Any]) -> list[str]:
    """What a reader looks for in a folder of cards."""
    if card["kind"] == "measurement":
        return [_slug(card[name]) for name in ("procedure", "mechanism", "pattern")]
    if card["kind"] == "probe":
        return [_slug(card["question"], 24), *_words({**card["subject"], "kind": "run"})]
    names = ("task", "mechanism", "pattern", "protocol", "tier")
    return [*(_slug(card[name], 40) for name in names), f"seed{int(card['seed'])}"]


def shelf(card: Mapping[str, Any]) -> str:
    """The folder of a store that a card belongs to: runs by task, the other kinds by kind."""
    return {"probe": "probes", "measurement": "measurements"}.get(card["kind"]) or _slug(card["task"])


# ------------------------------------------------------------------------------------------------------ read and write


def write(path: str | Path, card: Mapping[str, Any]) -> Path:
    """Check, seal and write a card in one atomic step."""
    sealed = seal(card)
    validate(sealed)
    path = Path(path)
    atomic.write_text(path, readable_json.dumps(sealed) + "\n")
    return path


def read(path: str | Path, kind: str | None = None) -> Card:
    """The card in a file, or CorruptFile with one sentence; where one kind is wanted, others are refused."""
    path = Path(path)
    card = parse(_bytes_of(path), path.name)
    try:
        validate(card)
    except InvalidCard as error:
        raise CorruptFile(f"{path.name}: {error}") from None
    if card["sha256"] != content_hash(card):
        raise CorruptFile(f"{path.name}: the content does not match its sha256, so the card was changed after the run.")
    if kind not in (None, card["kind"]):
        raise UsageError(f"{path.name} is the card of a {card['kind']}, not of a {kind}; name the card of a {kind}.")
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
class CardCheck:
    """One question asked of a card, and its answer."""

    check: Literal["card", "files", "score"]
    status: Literal["kept", "broken", "not applicable"]
    detail: str


def verify(path: str | Path) -> list[CardCheck]:
    """Everything that can be checked without training again: schema and hash, files present, score recomputed."""
    path = Path(path)
    try:
        card = read(path)
    except CorruptFile as error:
        return [CardCheck("card", "broken", str(error))]
    checks = [CardCheck("card", "kept", f"schema {card['schema']}, hash {card['sha256'][:12]}")]
    missing = {what: name for what, name in card["files"].items() if not (path.parent / name).is_file()}
    elsewhere = missing.pop("weights", None) is not None  # large, and no number on the card needs them
    if missing:
        checks.append(CardCheck("files", "broken", f"missing beside the card: {', '.join(missing.values())}"))
    elif card["files"]:
        present = f"{len(card['files']) - elsewhere} present"
        checks.append(CardCheck("files", "kept", f"{present}; the weights are not" if elsewhere else present))
    else:
        checks.append(CardCheck("files", "not applicable", "the card names no files"))
    return [*checks, _rescored(card, path.parent)] if card["kind"] == "run" else checks


def _rescored(card: Card, folder: Path) -> CardCheck:
    score, name = card["score"], card["files"].get("predictions")
    if score is None:
        return CardCheck("score", "not applicable", "the run failed, there is no score")
    if name is None:
        return CardCheck("score", "not applicable", "no predictions were kept")
    if not (folder / name).is_file():
        return CardCheck("score", "broken", f"{name} is missing, so the score cannot be recomputed")
    try:
        if score["name"] == "accuracy":
            value, count = accuracy_of(folder / name)
        elif (found := _mean_score(folder / name, score["name"])) is not None:
            value, count = found
        else:
            return CardCheck("score", "not applicable", f"{name} does not hold what {score['name']} is made of")
    except CorruptFile as error:
        return CardCheck("score", "broken", str(error))
    stated = f"the card says {score['value']:.6f} of {score['count']}, the predictions give {value:.6f} of {count}"
    if count != score["count"] or abs(value - score["value"]) > SCORE_TOLERANCE * max(1.0, abs(score["value"])):
        return CardCheck("score", "broken", stated)
    return CardCheck("score", "kept", f"{score['name']} {value:.6f} recomputed from {count} predictions")


def accuracy_of(path: Path) -> tuple[float, int]:
    """Accuracy and count from an archive with the arrays `label` and `prediction`; nothing in it is executed."""
    import numpy as np

    label, prediction = _arrays(path, "label", "prediction")
    if label.ndim != 1 or label.shape != prediction.shape or not len(label):
        raise CorruptFile(
            f"{path.name}: label {label.shape} and prediction {prediction.shape} must be equally long rows."
        )
    return float(np.mean(label == prediction)), len(label)


def _mean_score(path: Path, name: str) -> tuple[float, int] | None:
    """Another score and its count, where each row has its own share of it; None where rows have none.

    A perplexity comes from the `nats` and the `tokens` of each row, any other mean from an array of its name.
    """
    import numpy as np

    if name == "perplexity":
        if not {"nats", "tokens"} <= _names_in(path):
            return None
        nats, tokens = _arrays(path, "nats", "tokens")
        if nats.ndim != 1 or nats.shape != tokens.shape or tokens.sum() < 1:
            raise CorruptFile(f"{path.name}: nats {nats.shape} and tokens {tokens.shape} must be equally long rows.")
        count = int(tokens.sum())
        with np.errstate(over="ignore"):
            return float(np.exp(nats.astype(np.float64).sum() / count)), count
    if name not in _names_in(path):
        return None
    (values,) = _arrays(path, name)
    if values.ndim != 1 or not len(values):
        raise CorruptFile(f"{path.name}: {name} {values.shape} must be one number for each row.")
    return float(values.astype(np.float64).mean()), len(values)


_UNREADABLE = (OSError, EOFError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile)


def _names_in(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except _UNREADABLE as error:
        raise CorruptFile(f"{path.name}: no readable archive ({error}).") from None


def _arrays(path: Path, *names: str) -> list[Any]:
    """Arrays of an untrusted archive."""
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_PREDICTIONS_BYTES:
            raise CorruptFile(f"{path.name}: unpacks to {unpacked} bytes, more than predictions can need.")
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except _UNREADABLE as error:
        wanted = " and ".join(f"`{name}`" for name in names)
        raise CorruptFile(f"{path.name}: no readable arrays {wanted} ({error}).") from None
