"""A small site for the tests: made-up cards, a made-up catalogue, a made-up verdict, and one hostile card."""

from typing import Any

from longspan.analysis import Evidence
from longspan.results.card import Card
from tests.results.factory import make_card, make_measurement

HOSTILE = "<script>alert(1)</script>"
HOSTILE_TITLE = "</script><img src=x onerror=alert(2)>%{x} --ink $x^2$"

CATALOGUE = {
    "schema": 1,
    "attentions": [
        {
            "name": name,
            "title": title,
            "paper": paper,
            "family": family,
            "cost": cost,
            "patterns": ["noncausal_self", "causal_self"],
            "exact": name == "softmax",
            "stochastic": name == "performer",
            "length_bound": False,
            "positions": False,
            "dropout": "weights",
            "options": [{"name": "features", "type": "int", "default": 64}] if name == "performer" else [],
            "formula": f"{title}.\n\n    y_i = sum_j a_ij v_j    <b>not bold</b>",
            "fidelity": False,
            "carries": "segments" if name == "never_run" else "",
        }
        for name, title, paper, family, cost in (
            ("softmax", "Softmax", "arXiv:1706.03762", "exact", "n^2"),
            ("performer", "Performer", "arXiv:2009.14794", "kernel", "n"),
            ("never_run", "Never Run", "javascript:alert(3)", "kernel", "n"),
        )
    ],
    "tasks": [
        {
            "name": "listops",
            "title": "ListOps",
            "version": 1,
            "paper": "arXiv:2011.04006",
            "score": "accuracy",
            "higher_is_better": True,
            "slots": {"encoder": "noncausal_self"},
            "protocols": [["longspan", "smoke"]],
        }
    ],
}

CONFORMANCE = [
    {
        "mechanism": "performer",
        "pattern": "causal_self",
        "device": "cpu",
        "dtype": "float32",
        "profile": "quick",
        "ok": False,
        "promises": [
            {"promise": "shape", "status": "kept", "detail": ""},
            {"promise": "no future leak", "status": "broken", "detail": "changed by 0.1"},
            {"promise": "step equals parallel", "status": "not applicable", "detail": ""},
        ],
    }
]


def example_cards() -> list[Card]:
    scores = {"softmax": (0.40, 0.70), "performer(features=64)": (0.36, 0.76), "linear": (0.17, 0.72)}
    cards = [
        make_card(mechanism, task, seed=seed, accuracy=value + 0.002 * seed, chance=chance, steps_per_second=10 + place)
        for place, (mechanism, values) in enumerate(scores.items())
        for task, value, chance in zip(("listops", "pathfinder"), values, (0.163, 0.5), strict=True)
        for seed in range(2)
    ]
    return [
        *cards,
        make_card(HOSTILE, title=HOSTILE_TITLE, accuracy=0.3, overrides={}),
        make_card("softmax", overrides={"recipe.steps": HOSTILE}),
        make_card("linear", "text", variant="standin", chance=0.5, accuracy=0.52),
        make_card("performer(features=64)", "listops", seed=9, status="fail", reason=f"it died of {HOSTILE}"),
    ]


RULES = {
    "parameters": {"kept": True, "finding": "100,000 against 100,000 with softmax (1.000)"},
    "no spatial information": {"kept": False, "finding": f"it knows rows and columns {HOSTILE}"},
}


def full_cards() -> list[Card]:
    """Full runs on tasks of Long Range Arena and on one in no suite; the free track and a twin are included."""
    who: list[tuple[str, dict[str, Any]]] = [
        ("softmax", {}),
        ("linear", {"accuracy": 0.45}),
        ("lra_local", {"fidelity": True}),
        ("s4", {"accuracy": 0.8, "track": "free", "rules": RULES}),
    ]
    cards = [make_card(name, task, tier="full", **how) for name, how in who for task in ("listops", "text")]
    return [*cards, make_card("softmax", "text_4k", tier="full", accuracy=0.6)]


def example_evidence(runs: list[Card]) -> Evidence:
    """Runs, and measurements of softmax (out of memory at 4,000), two others and the hostile card."""
    speeds = {"softmax": 1.0, "linear": 3.0, "performer(features=64)": 2.0}
    cards = [
        make_measurement(name, {1000: 8.0 * fast, 4000: None if name == "softmax" else 2.0 * fast})
        for name, fast in speeds.items()
    ]
    hostile = make_measurement(HOSTILE, {1000: 1.0}, title=HOSTILE_TITLE)
    return Evidence(runs=runs, measurements=[*cards, hostile])
