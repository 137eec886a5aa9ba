"""A card: the JSON record of one run, one measurement or one probe, sealed with a hash of its content.

    card = read("out/cards/listops/....json")     # parsed as data only, checked, refused with one sentence if not sound
    write(folder / filename(card), card)          # checked again, sealed, written in one atomic step

Cards are untrusted input: size, depth, numbers and texts are bounded, a key may occur once, NaN and Infinity are
refused, the schema and the hash must hold. Fields this version does not know are kept and hashed, never
interpreted. Accuracies and other shares are fractions (0.41, not 41).
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from longspan.core import atomic, readable_json
from longspan.core.errors import CorruptFile, UsageError
from longspan.results.parameter_rule import within_rule
from longspan.results.run_settings import decisive_text
from longspan.results.schema import ANSWERS, LARGEST, LARGEST_INTEGER, PROCEDURES, SCHEMA_VERSION, SCHEMAS

Card = dict[str, Any]

MAX_BYTES = 16 * 2**20  # a card with a curve of 50,000 points stays below 8 MiB
MAX_DEPTH = 24
MAX_TEXT = 100_000  # characters of any text
MAX_FAULT = 300  # characters of each part of a fault message
MAX_FAULTS = 100  # of which the worst is told: a card of 16 MiB may have millions
MAX_DIGITS = 20  # of an integer, before it is read
ERRORS = ("perplexity", "mse", "mae", "mcd", "cd_l1")  # scores that are never negative, and better when lower
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")

# ------------------------------------------------------------------------------------------------------------ checking


class InvalidCard(UsageError):
    """A card in memory that does not follow its schema."""


def validate(card: Any) -> None:
    """Raise InvalidCard, with the first fault found, unless the card follows the schema of its kind."""
    _validate(card, sound=False)


def _validate(card: Any, *, sound: bool) -> None:
    """`sound`: its values were checked before."""
    if not isinstance(card, dict):
        raise InvalidCard(f"A card must be a JSON object, got {type(card).__name__}.")
    if (version := card.get("schema")) != SCHEMA_VERSION or isinstance(version, bool):
        raise InvalidCard(f"The card has schema {version!r}; this version of longspan reads schema {SCHEMA_VERSION}.")
    kind = card.get("kind")
    if not isinstance(kind, str) or kind not in SCHEMAS:
        raise InvalidCard(f"The card has kind {kind!r}; known kinds: {', '.join(SCHEMAS)}.")
    values = next(_unsound_values(card), None) if not sound else None
    if fault := _schema_fault(card, SCHEMAS[kind]) or values or _meaning_fault(card):
        raise InvalidCard(f"The card does not follow schema {SCHEMA_VERSION}: {fault}.")


def _schema_fault(card: Card, schema: Mapping[str, Any]) -> str | None:
    """What breaks the schema; `jsonschema` takes four times as long, so it is used only to word the message."""
    if (fault := next(structural_faults(card, schema), None)) is None:
        return None
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
    except ModuleNotFoundError:  # a machine that only trains may lack it
        return fault
    errors = Draft202012Validator(schema).iter_errors(card)
    error = best_match(itertools.islice(errors, MAX_FAULTS))
    if error is None:
        return fault
    where = error.json_path.removeprefix("$").lstrip(".") or "card"
    return f"{where[:MAX_FAULT]}: {error.message[:MAX_FAULT]}"  # both may quote the card at any length


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
    """What breaks the schema, for the few keywords our schemas use; a test compares it with jsonschema."""
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
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where} has more than {schema['maxItems']} items"
        if rule := schema.get("items"):
            for index, item in enumerate(value):
                yield from structural_faults(item, rule, f"{where}[{index}]")
    if isinstance(value, dict):
        yield from (f"{where} lacks {name!r}" for name in schema.get("required", ()) if name not in value)
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if rule := known.get(name, others):
                yield from structural_faults(item, rule, f"{where}.{name}")


def _meaning_fault(card: Card) -> str | None:
    """What breaks a rule that the schema cannot express; the values are sound."""
    try:
        datetime.fromisoformat(card["created"])
    except ValueError:
        return f"created is no date: {card['created']!r}"
    return _MEANINGS[card["kind"]](card)


def _run_fault(card: Card) -> str | None:
    score = card["score"]
    if card["status"] == "ok" and (score is None or card["metrics"] is None):
        return "status is ok but score or metrics is null"
    if fault := _size_fault(card["parameters"], known=card["status"] == "ok"):
        return fault
    if card["status"] == "fail" and not card["reason"]:
        return "status is fail but no reason is given"
    if score and score["name"] == "accuracy" and not 0 <= score["value"] <= 1:
        return f"an accuracy is a fraction between 0 and 1, got {score['value']!r}"
    if score and score["name"] in ERRORS and score["value"] < 0:
        return f"{score['name']} is never negative, got {score['value']!r}"
    if score and score["name"] in ("accuracy", *ERRORS) and score["higher_is_better"] == (score["name"] in ERRORS):
        return f"score.higher_is_better is {score['higher_is_better']}, which is not so of {score['name']}"
    return _track_fault(card)


def _size_fault(size: Mapping[str, Any], *, known: bool) -> str | None:
    """`known`: the run ended well, so that its size must be stated and judged."""
    unknown = [name for name in ("total", "baseline", "within_rule") if size[name] is None]
    if unknown and known:
        return f"status is ok but parameters.{unknown[0]} is null"
    if not unknown and size["within_rule"] and not within_rule(size["total"], size["baseline"]):
        return f"parameters.within_rule is true, but {size['total']} are too many beside {size['baseline']}"
    return None


def _track_fault(card: Card) -> str | None:
    """What the card says itself that keeps a run off the fixed track; a board judges its parameters row by row."""
    if card["track"] != "fixed":
        return None
    if "initial_sha256" in card:
        return "track is fixed, but training started from the weights of another run"
    verdicts = card.get("rules")
    verdicts = verdicts.items() if isinstance(verdicts, dict) else ()
    if broken := [rule for rule, found in verdicts if isinstance(found, dict) and found.get("kept") is False]:
        return f"track is fixed, but rules.{broken[0][:MAX_FAULT]} was not kept"
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
    """Rows and columns; None if it is not a rectangle."""
    widths = {len(line) for line in grid}
    return (len(grid), widths.pop()) if len(widths) == 1 else None


def _measurement_fault(card: Card) -> str | None:
    """Each point must say what was measured or why not, and a length may occur once per mode and variant."""
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
    """Nesting beyond MAX_DEPTH, numbers and texts out of bounds, text that is not Unicode. Without recursion."""
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
        elif isinstance(value, float):
            if not math.isfinite(value):
                yield "a number is NaN or infinite"
            elif abs(value) > LARGEST:
                yield f"a number is larger than {LARGEST:g}"
        elif isinstance(value, int):
            if abs(value) > LARGEST_INTEGER:
                yield "an integer needs more than 64 bits"
        elif isinstance(value, str):
            if len(value) > MAX_TEXT:
                yield f"a text is longer than {MAX_TEXT} characters"
            elif not value.isascii() and _HALF_A_CHARACTER.search(value):
                yield "a text holds half a Unicode character"


# ------------------------------------------------------------------------------------------------------- seal and name


def canonical(content: Mapping[str, Any]) -> bytes:
    """The canonical JSON that is hashed: sorted keys, no spaces, UTF-8."""
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
    """What a card answers, beginning with its kind. Of two cards with the same cell and code (`code_identity.py`),
    the newer supersedes the older."""
    return card["kind"], *_CELLS[card["kind"]](card)


def _run_cell(card: Mapping[str, Any]) -> tuple:
    names = ("task", "task_version", "protocol", "tier", "mechanism", "pattern", "seed", "track", "fidelity")
    changes = canonical(card["overrides"]).decode()
    data = (card["dataset"]["variant"], card["dataset"]["sha256"])
    return (*(card[name] for name in names), changes, decisive_text(card), card["settings"]["precision"], *data)


def _probe_cell(card: Mapping[str, Any]) -> tuple:
    """One answer to a question about one model, whatever the number of samples behind it."""
    required = SCHEMAS["probe"]["properties"]["subject"]["required"]
    return card["question"], canonical({name: card["subject"][name] for name in required}).decode()


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

    The hash at its end excludes the fields about the files, so that the files can be named after the card.
    """
    digest = content_hash(card, without=("sha256", "files", "files_sha256"))[:12]
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
        _validate(card, sound=True)
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
            parse_int=_bounded_int,
        )
    except RecursionError:
        raise CorruptFile(f"{name}: nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:  # not UTF-8, not JSON, or refused by a hook below
        raise CorruptFile(f"{name}: not sound JSON ({error}).") from None
    if fault := next(_unsound_values(value), None):
        raise CorruptFile(f"{name}: {fault}.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key!r} occurs twice")
        value[key] = item
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)
