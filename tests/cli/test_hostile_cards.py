"""Untrusted cards on a terminal: whatever they say is shown as text, and no number in them stops a command."""

import json
import re
import sys
import unicodedata

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan.cli import app
from longspan.core.printable import PlainStream, plain_streams, printable
from longspan.core.readable_json import printed
from longspan.core.screen import Screen
from longspan.results import card as cards
from tests.results.factory import make_card, make_core, make_measurement, make_probe

ATTACKS = ("\x1b[2J\x1b]0;pwned\x07", "\x9b31m", "a\rb", "\u202egpj.exe", "\u2066x\u2069", "z\u200bw", "l\u2028p\u2029")
ATTACKS += (
    "[bold red]x[/]",
    "{0}{task.description}",
    "\x00\x08\x7f",
    "<script>alert(1)</script>",
    "=cmd()",
    "|`*_",
    "%s",
)
TEXT = st.sampled_from(ATTACKS) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
NUMBER = st.sampled_from([1e150, -1e150, 0.0, -0.0, 5e-324, 1e-300, 0.5, 2**63 - 1]) | st.floats(-1e150, 1e150)
POSITIVE = st.sampled_from([0.0, 5e-324, 1e150, 1.0]) | st.floats(0, 1e150)
COUNT = st.sampled_from([0, 1, 2**63 - 1]) | st.integers(0, 2**63 - 1)
FRACTION = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
WHEN = st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00+00:00"])
FIELDS = ("mechanism", "title", "pattern", "protocol", "tier", "backbone")

COMMANDS = [["board", "listops", "--format", form] for form in ("terminal", "md", "csv", "latex", "json", "html")]
COMMANDS += [
    ["board", "starter"],
    ["board", "lra", "--published", "none"],
    ["analyze"],
    ["analyze", "--json"],
]
COMMANDS += [["advise", "--pattern", "NS", "--length", "512", *more] for more in ([], ["--json"], ["--format", "csv"])]
COMMANDS += [["crossover", "--pattern", "NS"], ["report"]]


@st.composite
def run_card(draw):
    card = make_card(sealed=False, points=draw(st.integers(0, 3)), status=draw(st.sampled_from(["ok", "ok", "fail"])))
    for field in draw(st.sets(st.sampled_from(FIELDS), max_size=3)):
        card[field] = draw(TEXT)
    card |= {"created": draw(WHEN), "seed": draw(COUNT), "overrides": draw(st.dictionaries(TEXT, NUMBER, max_size=1))}
    card["environment"] = {"cpu": draw(TEXT), "gpu": draw(TEXT)}
    total, baseline = draw(COUNT), draw(COUNT)
    size = {"total": total, "baseline": baseline, "within_rule": total <= 1.1 * baseline}
    card["parameters"] |= size | {"ratio": draw(POSITIVE)}
    card["timing"] |= {"steps_per_second": draw(POSITIVE), "wall_seconds": draw(POSITIVE)}
    card["memory"]["peak_bytes"] = draw(COUNT)
    if card["status"] == "fail":
        card["reason"] = draw(TEXT)
    elif draw(st.booleans()):
        name, value = draw(TEXT), draw(NUMBER)
        card["score"] |= {"name": name, "value": value, "chance": draw(NUMBER), "unit": "plain"}
        card["metrics"]["test"][name] = {"value": value, "count": draw(COUNT)}
    else:
        card["score"] |= {"value": draw(FRACTION), "chance": draw(FRACTION), "count": draw(COUNT)}
    for point in card["curve"]:
        point |= {"valid_accuracy": draw(NUMBER), "seconds": draw(NUMBER), "step": draw(COUNT)}
    return card


@st.composite
def measurement(draw):
    make = draw(st.sampled_from([make_core, make_measurement]))
    card = make(draw(TEXT), title=draw(TEXT), environment={"gpu": draw(TEXT)}, created=draw(WHEN), sealed=False)
    card["settings"]["cost"] = draw(TEXT)
    for point in card["points"]:
        inside = [point.get(name) for name in ("seconds", "memory", "floor", "achieved")]
        for part in (point, card.get("ceilings"), *inside):
            for name, value in (part or {}).items():
                if isinstance(value, float):
                    part[name] = draw(POSITIVE)
                elif isinstance(value, int) and name != "length":
                    part[name] = draw(COUNT)
    return card


@st.composite
def probe(draw):
    card = make_probe(sealed=False, created=draw(WHEN))
    card["subject"] |= {"title": draw(TEXT), "mechanism": draw(TEXT), "task": draw(TEXT), "seed": draw(COUNT)}
    card["results"] = card["results"] | {"mean": draw(POSITIVE), "std": draw(POSITIVE), "length": draw(POSITIVE)}
    return card


def write(folder, drawn):
    """Write the valid cards, and beside them a file with a hostile name that is not a card."""
    for number, card in enumerate(drawn):
        bounded = json.loads(json.dumps(card))
        try:
            cards.write(folder / f"{number}.json", bounded)
        except cards.InvalidCard:  # a drawn value is outside the bounds of its field
            continue
    (folder / "a\x1b[31m\u202eb.json").write_text('{"schema": "\\u001b[2J"}')


def assert_harmless(result):
    assert "Unexpected" not in result.output, result.output
    kinds = {letter: unicodedata.category(letter) for letter in set(result.output) - {"\n"}}
    assert not {letter for letter, kind in kinds.items() if kind in ("Cc", "Cf", "Zl", "Zp")}, repr(result.output)


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example]
QUICK = settings(deadline=None, suppress_health_check=SLOW, derandomize=True, phases=[Phase.generate])


def through_every_command(folder, drawn, leave_out=()):
    cards_folder = folder / "out" / "cards"
    for old in cards_folder.glob("*.json"):
        old.unlink()
    cards_folder.mkdir(parents=True, exist_ok=True)
    write(cards_folder, drawn)
    paths = [str(path) for path in cards_folder.glob("*.json")]
    for words in [words for words in COMMANDS if words[0] not in leave_out] + [["verify", *paths]]:
        assert_harmless(CliRunner().invoke(app, words))


DRAWN = st.lists(run_card(), min_size=3, max_size=6), st.lists(measurement(), max_size=2), st.lists(probe(), max_size=2)


@settings(QUICK, max_examples=3)
@given(runs=DRAWN[0], measured=DRAWN[1], probed=DRAWN[2])
def test_no_card_stops_a_command_or_steers_a_terminal(runs, measured, probed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    through_every_command(tmp_path, [*runs, *measured, *probed], leave_out=("report",))


@pytest.mark.full
@settings(QUICK, max_examples=300)
@given(runs=DRAWN[0], measured=DRAWN[1], probed=DRAWN[2])
def test_no_card_of_two_thousand_stops_a_command_or_steers_a_terminal(runs, measured, probed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    through_every_command(tmp_path, [*runs, *measured, *probed])


# ----------------------------------------------------------------------------------------------- the two ways to print


@given(text=st.text() | st.sampled_from(ATTACKS))
def test_what_is_printable_stays_and_the_rest_is_replaced(text):
    shown = printable(text)
    assert len(shown) == len(text)
    for old, new in zip(text, shown, strict=True):
        assert new == (old if old.isprintable() or old == "\n" else "�")


@settings(max_examples=50, deadline=None)
@given(value=st.lists(st.dictionaries(st.text(max_size=5), st.text() | st.integers(), max_size=2), max_size=3))
def test_printed_json_means_the_same_and_is_printable(value):
    text = printed(value)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()


def test_whatever_is_printed_inside_is_text_and_the_streams_come_back(capsys):
    before = sys.stdout
    with plain_streams(), plain_streams():
        print("\x1b[2J", file=sys.stderr)
        print("a\x9bb\tc\u202ed")
        assert isinstance(sys.stdout, PlainStream)
        assert not sys.stdout.isatty()
    assert sys.stdout is before
    out, err = capsys.readouterr()
    assert (out, err) == ("a�b�c�d\n", "�[2J\n")


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_screen_draws_in_colour_and_shows_texts_literally(attack):
    import io

    from rich.table import Table
    from rich.text import Text

    buffer = io.StringIO()
    screen = Screen(file=buffer, force_terminal=True, width=200)
    made = Table(title=attack)
    made.add_column(attack)
    made.add_row(Text(attack, style="red"))
    made.add_row(Text("sound", style="red"))
    screen.print(made)
    screen.print(attack)
    drawn = buffer.getvalue()
    assert "\x1b[31m" in drawn, "colours are rich's own"
    shown = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert all(letter == "\n" or letter.isprintable() for letter in shown)
    assert "sound" in shown


def test_no_other_console_writes_to_the_terminal():
    """A rich console that is not a Screen would print the text of a card unescaped."""
    from pathlib import Path

    package = Path(cards.__file__).parents[1]
    found = [
        path
        for path in package.rglob("*.py")
        if re.search(r"\bConsole\(|rich\.print\b|import print\b", path.read_text())
    ]
    assert [path.name for path in found if path.name not in ("screen.py", "render.py")] == []
