"""Cards that an attacker might send, made from honest ones; the same for the same seed.

    for card in hostile_cards(50, seed=0):
        (folder / card.name).write_bytes(card.content)

Three in four are resealed after the change, and most changes respect the schema: these get through to the boards
and the report, where they can do harm. The others are not valid cards at all.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from longspan.results import card as cards
from longspan.results.card import Card
from tests.analysis import answers
from tests.results.factory import make_card, make_core, make_measurement

MARK = "__pwned"  # what an injected script would set on the window
SCRIPT = f"window.{MARK}=1"

TEXTS = (
    f"<script>{SCRIPT}</script>",
    f"</script><script>{SCRIPT}</script>",
    f"<img src=x onerror={SCRIPT}>",
    f"\"><svg onload='{SCRIPT}'>",
    f"' onmouseover='{SCRIPT}' autofocus onfocus='{SCRIPT}'",
    f"javascript:{SCRIPT}",
    f'<a href="javascript:{SCRIPT}">x</a>',
    f"<iframe srcdoc='<script>parent.{MARK}=1</script>'>",
    f"</style><script>{SCRIPT}</script>",
    f"-->{SCRIPT}//<!--",
    "<style>*{display:none}</style><base href=//evil.invalid><meta http-equiv=refresh content=0>",
    "<img src=http://evil.invalid/x><link rel=stylesheet href=//evil.invalid>",
    "{{ 7*7 }}{% for x in ().__class__ %}${7*7}#{7*7}%(x)s%s%n{0.__class__}{",
    "%{customdata} %{x} <b>bold</b><br>two <a href='javascript:1'>l</a> --ink",
    "__proto__",
    "constructor",
    "toString",
    f"`+{SCRIPT}+`\\\\\"'; {SCRIPT};//",
    "=cmd|'/C calc'!A0",
    '=HYPERLINK("http://evil.invalid")',
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "'=1+1",
    '","=1+1","',
    "| a | b |\n|---|---|\n# heading",
    f"[x](javascript:{SCRIPT}) ![y](http://evil.invalid/x.png) `code` **bold** ~~x~~",
    "\\input{/etc/passwd}\\write18{id} & $x^2$ %\n\\end{tabular}",
    "$\\frac{1}{$ x_ y^ \\",
    "%\n\\input{/etc/passwd}",
    "\x1b[31mred\x1b[0m\x1b[2J\x1b[H",
    "\x1b]0;title\x07\x1b]8;;http://evil.invalid\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m\x9d0;title\x9c\x90q\x85",
    "\x00\x01\x07\x08\x0b\x0c\x0e\x7f\x80\x9f",
    "line\r\rover",
    "one\ntwo\n\n  three",
    "\u202egnp.eman\u202c",
    "\u2066\u2067\u2068\u2069\u061c\u200e\u200f\u200b\u2060\ufeff\u2028\u2029\u00ad",
    "[red]markup[/red][/][link=http://evil.invalid]x[/link]",
    "z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a" * 8,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 漢字かな交じり文 \u0645\u0631\u062d\u0628\u0627",
    "\ue000\U000f0000\U0010ffff\ufffe",
    "../../../../etc/passwd",
    "/etc/passwd",
    "..\\..\\windows\\system32",
    "file:///etc/passwd",
    "https://evil.invalid/\"onclick='x'",
    "CON",
    ".hidden",
    " ",
    "   spaces   ",
    "",
    "a" * 500,
    "word " * 100,
    "W" * 120,
    "os:system('touch pwned')",
    "subprocess:run(['touch', 'pwned'])",
    "evil.py:Evil",
    "/tmp/evil.py:Evil(a=__import__('os'))",
    "softmax(",
    "softmax)",
    "performer(features=" + "[" * 60,
    "performer(features=10**9)",
    "(((((",
    ":::",
    "a=b",
    "nan",
    "null",
    "·  · ",
)
NUMBERS = (
    *(
        0,
        -1,
        1,
        2,
        -0.0,
        0.5,
        1.0,
        1.5,
        100,
        1e-300,
        5e-324,
        1e-9,
        1e9,
        1e15,
        1e18,
        1e21,
        1e100,
        1e300,
        1.7e308,
        -1e308,
    ),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**308, 10**309, 10**400, -(10**400)),
)
LONGEST = 20_000  # entries of a list: no slower to read than a long learning curve
DATES = (
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2999-01-01T00:00:00+00:00", "1969-12-31T23:59:59.999999Z"),
    *("2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "0000-00-00T00:00:00Z", "2026-01-02T03:04:05.1234567891Z"),
    *("2026-01-02T24:00:00Z", "2026-01-02T03:04:60Z", "٢٠٢٦-01-02T03:04:05Z", "2026-01-02", "yesterday", ""),
)
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx", "lm", "forecasting_etth1", "no_such_task")
NAMES: dict[str, tuple[Any, ...]] = {
    "task": TASKS,
    "protocol": ("longspan", "lra-paper", "lra-released", "cab-2023", "strong", "no_such_protocol"),
    "tier": ("smoke", "lite", "full", "no_such_tier"),
    "pattern": ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross", "noncausal_self+causal_self", "no"),
    "mechanism": ("softmax", "linear", "performer(features=64)", "lra_local", "none", "no_such_mechanism"),
    "question": ("span", "gap", "transfer", "extrapolation", "rollout", "embeddings", "no_such_question"),
    "procedure": ("core", "lra-efficiency", "no_such_procedure"),
    "variant": ("generated", "official", "imported", "standin", "eager", "graph", "compiled", "none"),
    "status": ("ok", "fail", "oom", "refused", "unsupported", "maybe"),
    "mode": ("train", "inference", "forward", "decode"),
    "track": ("fixed", "free", "neither"),
    "name": ("accuracy", "loss", "perplexity", "mse", "mae", "rouge1", "no_such_metric"),
    "unit": ("percent", "plain", "none"),
    "module": ("core", "layer", "block"),
    "device": ("cpu", "cuda", "cuda:7", "tpu"),
    "cost": ("n", "n^2", "n log n", "n^999", "1", "exp(n)"),
    "source": ("weights", "gradients"),
    "bound": ("memory", "compute"),
    "created": DATES,
}


@dataclass(frozen=True)
class HostileCard:
    """The bytes of a file, its name, and what was done to the honest card."""

    name: str
    content: bytes
    how: str


def honest_cards() -> list[Card]:
    """Valid cards of every kind, question and procedure."""
    runs = [make_card(mechanism, task) for mechanism in ("softmax", "linear") for task in TASKS[:6]]
    runs += [make_card("performer(features=64)", task, tier="full", seed=seed) for task in TASKS[:5] for seed in (0, 1)]
    runs += [
        make_card("linear", "text", variant="standin"),
        make_card("s4", track="free", tier="full"),
        make_card("lra_local", fidelity=True, tier="full"),
        make_card("linear", status="fail"),
        make_card("softmax", overrides={"recipe.steps": 7}),
        _forecast(),
    ]
    probes = [answers.span_card(), answers.gap_card(0.9, 0.4), answers.transfer_card(), answers.extrapolation_card()]
    probes += [answers.rollout_card(), answers.embeddings_card()]
    measured = [make_measurement("softmax"), make_measurement("linear", {1000: 9.0, 4000: None})]
    measured += [make_core("softmax", exact=True, cost="n^2"), make_core("linear", joules_at=(256, 512))]
    measured += [make_core("linear", pattern="causal_self", modes=("forward", "train", "decode"))]
    return [*runs, *probes, *measured]


def _forecast() -> Card:
    """A run scored by an error in plain units."""
    card = make_card("linear", "forecasting_etth1", tier="full", chance=None, sealed=False)
    values = {name: {"value": 0.5, "count": 2000} for name in ("mse", "mae", "loss")}
    card["metrics"] = {"valid": copy.deepcopy(values), "test": values}
    card["curve"] = [{"step": 500} | {f"valid_{name}": 0.5 for name in values}]
    card["selected_step"] = 500
    card["score"] |= {"name": "mse", "value": 0.5, "higher_is_better": False, "unit": "plain"}
    return cards.seal(card)


def hostile_cards(count: int, seed: int) -> Iterator[HostileCard]:
    draw = random.Random(seed)
    honest = honest_cards()
    for number in range(count):
        card = copy.deepcopy(draw.choice(honest))
        del card["sha256"]
        done = _change(card, draw)
        content, how = _written(card, draw)
        yield HostileCard(f"hostile-{seed}-{number}.json", content, "; ".join([*done, how]))


def _change(card: Card, draw: random.Random) -> list[str]:
    """Change the card in place. Most changes that break the schema are taken back."""
    done = []
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        before, change = copy.deepcopy(card), draw.choices(CHANGES, [weight for _, weight in WEIGHED])[0]
        what = change(card, draw)
        if draw.random() < 0.85 and not _is_sound(card):
            card.clear()
            card.update(before)
        else:
            done.append(what)
    return done


def _is_sound(card: Card) -> bool:
    try:
        cards.validate({**card, "sha256": "0" * 64})
    except cards.InvalidCard:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- changes


def _places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The path of every value inside, except `schema` and `kind`, without which nothing is a card."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        if at or key not in ("schema", "kind"):
            yield (*at, key)
            yield from _places(item, (*at, key))


def _at(card: Any, path: tuple) -> Any:
    for key in path:
        card = card[key]
    return card


def _put(card: Any, path: tuple, value: Any) -> str:
    _at(card, path[:-1])[path[-1]] = value
    return f"{_told(path)} = {_told(value)}"


def _told(value: Any) -> str:
    return repr(value)[:80]


def _chosen(card: Card, draw: random.Random, kind: type | tuple[type, ...]) -> tuple | None:
    """A random place whose value has type `kind`; shallow fields are more likely than entries of long lists."""
    found = [path for path in _places(card) if isinstance(_at(card, path), kind)]
    shallow = [path for path in found if len(path) < 3]
    return draw.choice(shallow if shallow and draw.random() < 0.5 else found) if found else None


def _hostile_value(draw: random.Random, depth: int = 0) -> Any:
    kinds = [
        lambda: draw.choice(TEXTS),
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice((None, True, False)),
        lambda: [_hostile_value(draw, depth + 1) for _ in range(draw.choice((0, 1, 3)))],
        lambda: {draw.choice(TEXTS): _hostile_value(draw, depth + 1) for _ in range(draw.choice((0, 1, 3)))},
    ]
    return draw.choice(kinds[:3] if depth > 3 else kinds)()


def _text(card: Card, draw: random.Random) -> str:
    path = _chosen(card, draw, str)
    return "" if path is None else _put(card, path, draw.choice(TEXTS))


def _number(card: Card, draw: random.Random) -> str:
    path = _chosen(card, draw, (int, float))
    return "" if path is None else _put(card, path, draw.choice(NUMBERS))


def _name(card: Card, draw: random.Random) -> str:
    found = [path for path in _places(card) if path[-1] in NAMES and isinstance(_at(card, path), str)]
    path = draw.choice(found)
    return _put(card, path, draw.choice(NAMES[path[-1]]))


def _key(card: Card, draw: random.Random) -> str:
    """A new field of any name and content."""
    path = _chosen(card, draw, dict) or ()
    return _put(card, (*path, draw.choice(TEXTS)), _hostile_value(draw))


def _known_field(card: Card, draw: random.Random) -> str:
    """A field that readers look for but the schema leaves free."""
    holder, name = draw.choice(FREE_FIELDS)
    if not isinstance(card.get(holder), dict):
        return ""
    return _put(card, (holder, name), _hostile_value(draw))


FREE_FIELDS = [
    ("settings", name) for name in ("exact", "cost", "core_is", "batch", "heads", "dtype", "device", "lengths")
]
FREE_FIELDS += [("settings", name) for name in ("recipe", "model", "data", "mechanism_version", "mechanism_sha256")]
FREE_FIELDS += [("settings", "mechanism_fingerprint"), ("settings", "precision"), ("environment", "gpu")]
FREE_FIELDS += [("environment", name) for name in ("cpu", "torch", "cpu_count", "threads", "driver", "cuda")]
FREE_FIELDS += [("timing", name) for name in ("shared", "train_seconds")] + [("dataset", "labels_sha256")]
FREE_FIELDS += [("overrides", "recipe.steps"), ("score", "unit"), ("files", "weights"), ("files", "predictions")]
FREE_FIELDS += [("files", "arrays"), ("parameters", "parts"), ("parameters", "ratio")]


def _optional(card: Card, draw: random.Random) -> str:
    """A top-level field that only some cards have."""
    return _put(card, (draw.choice(OPTIONAL_FIELDS),), _hostile_value(draw))


OPTIONAL_FIELDS = ("rules", "slots", "conformance", "files_sha256", "reads", "notes", "ceilings", "gate", "subject")


def _swap(card: Card, draw: random.Random) -> str:
    """Replace any value by any other."""
    path = draw.choice(list(_places(card)))
    return _put(card, path, _hostile_value(draw))


def _drop(card: Card, draw: random.Random) -> str:
    path = draw.choice(list(_places(card)))
    _at(card, path[:-1]).pop(path[-1])
    return f"no {_told(path)}"


def _list(card: Card, draw: random.Random) -> str:
    """A list emptied, repeated, reversed or shuffled: curves, points, grids."""
    path = _chosen(card, draw, list)
    if path is None:
        return ""
    own = _at(card, path)
    longer = (own * draw.choice((2, 50)))[:LONGEST]
    turned = draw.choice(([], longer, own[::-1], draw.sample(own, len(own)), own[:1]))
    return _put(card, path, copy.deepcopy(turned))


def _both(card: Card, draw: random.Random) -> str:
    """A mechanism and a title at once, so that nothing honest stands beside the hostile text."""
    holder = card.get("subject", card)
    if not isinstance(holder, dict):
        return ""
    return " ".join(_put(holder, (name,), draw.choice(TEXTS)) for name in ("mechanism", "title"))


def _place(card: Card, draw: random.Random) -> str:
    """A board, task or pattern of its own."""
    holder = card.get("subject", card)
    if not isinstance(holder, dict):
        return ""
    return _put(holder, (draw.choice(("task", "protocol", "tier", "pattern")),), draw.choice(TEXTS))


def _contradiction(card: Card, draw: random.Random) -> str:
    """Numbers that cannot all be true."""
    if card["kind"] != "run" or not isinstance(card.get("score"), dict):
        return _number(card, draw)
    changes: list[tuple[tuple, Any]] = [
        (("score", "value"), draw.choice((0, 1, 0.999999, 1e-12))),
        (("score", "count"), 0),
        (("score", "count"), 10**15),
        (("score", "chance"), draw.choice((0, 1, -1, 2, 1e300))),
        (("score", "higher_is_better"), False),
        (("metrics", "test"), {}),
        (("metrics",), {}),
        (("timing", "steps_per_second"), draw.choice((0, 5e-324, 1e308))),
        (("parameters", "total"), draw.choice((0, 2**63 - 1))),
        (("parameters", "baseline"), 0),
        (("curve",), []),
        (("selected_step",), 10**12),
        (("dataset", "counts"), {"train": 0, "valid": 0, "test": 0}),
        (("score",), None),
        (("status",), "ok"),
    ]
    path, value = draw.choice(changes)
    return _put(card, path, value)


def _deep(card: Card, draw: random.Random) -> str:
    value: Any = draw.choice(TEXTS)
    for _ in range(draw.choice((10, 18, 30))):
        value = [value] if draw.random() < 0.5 else {"x": value}
    return _put(card, ("environment",), {"deep": value})


Change = Callable[[Card, random.Random], str]
WEIGHED: list[tuple[Change, int]] = [
    (_text, 8),
    (_both, 4),
    (_place, 3),
    (_number, 6),
    (_name, 5),
    (_contradiction, 4),
    (_known_field, 5),
    (_key, 4),
    (_optional, 2),
    (_list, 3),
    (_swap, 3),
    (_drop, 1),
    (_deep, 1),
]
CHANGES = [change for change, _ in WEIGHED]


# ------------------------------------------------------------------------------------------------------------- written


def _written(card: Card, draw: random.Random) -> tuple[bytes, str]:
    """The file: resealed three times in four, else damaged or with a seal that does not match."""
    how = draw.random()
    if how < 0.78:
        return _dumped({**card, "sha256": cards.content_hash(card)}), "sealed"
    if how < 0.84:
        return _dumped({**card, "sha256": "f" * 64}), "wrong seal"
    content = _dumped({**card, "sha256": cards.content_hash(card)})
    damage = draw.choice(DAMAGES)
    return damage(content, draw), (damage.__doc__ or "").strip()


def _dumped(card: Card) -> bytes:
    return json.dumps(card, ensure_ascii=False).encode()


def _repeated_key(content: bytes, draw: random.Random) -> bytes:
    """a key twice"""
    return content[:-1] + b', "score": null, "score": null}'


def _not_a_number(content: bytes, draw: random.Random) -> bytes:
    """NaN and infinity"""
    return content[:-1] + b', "x": ' + draw.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999")) + b"}"


def _cut(content: bytes, draw: random.Random) -> bytes:
    """cut short"""
    return content[: draw.randrange(len(content))]


def _flipped(content: bytes, draw: random.Random) -> bytes:
    """one byte changed"""
    at = draw.randrange(len(content))
    return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]


def _half_letter(content: bytes, draw: random.Random) -> bytes:
    """half a Unicode character"""
    return content[:-1] + draw.choice((rb', "x": "\ud800"}', rb', "\udfff": 1}', b', "x": "\xed\xa0\x80"}'))


def _nested(content: bytes, draw: random.Random) -> bytes:
    """nested without end"""
    depth = draw.choice((30, 2_000, 200_000))
    return content[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b"}"


def _long_number(content: bytes, draw: random.Random) -> bytes:
    """a number of thousands of digits"""
    return content[:-1] + b', "x": ' + b"9" * draw.choice((400, 4_299, 5_000)) + b"}"


def _another(content: bytes, draw: random.Random) -> bytes:
    """no card at all"""
    return draw.choice((b"", b"null", b"[]", b"7", b'"text"', b"\xff\xfe\x00", b"\xef\xbb\xbf" + content, b"{}"))


DAMAGES = (_repeated_key, _not_a_number, _cut, _flipped, _half_letter, _nested, _long_number, _another)
