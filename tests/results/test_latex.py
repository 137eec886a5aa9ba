"""Whatever a card says is text in LaTeX: it reads back letter by letter, and nothing in it is a command."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.printable import printable
from longspan.results.latex import COMMANDS, LETTERS, SYMBOLS, escaped

KNOWN = sorted({**COMMANDS, **SYMBOLS}.items(), key=lambda pair: -len(pair[1]))
SPECIAL = set('&%$#_{}~^\\[]*`<>|"')
HARD = [
    "--",
    "''",
    ",,",
    "``",
    "[x]",
    "*",
    r"\input{/etc/passwd}",
    "$x^2$",
    "~%#&_^{}",
    "a\\\\b",
    "\\end{table}",
    "%\n",
]
ASCII = "".join(map(chr, range(32, 127)))


def read(text):
    """What LaTeX would show of an escaped text; an unknown command or a bare special letter is an error."""
    shown = ""
    while text:
        found = next((pair for pair in KNOWN if text.startswith(pair[1]) and pair[0] != "μ"), None)
        if found:
            letter, code = found
            shown, text = shown + letter, text[len(code) :]
        elif text.startswith("{}"):  # keeps two letters from forming a ligature
            text = text[2:]
        else:
            assert text[0] not in SPECIAL, f"{text[0]!r} is bare in {text!r}"
            shown, text = shown + text[0], text[1:]
    return shown


@given(st.text(st.sampled_from(ASCII + "".join(sorted(LETTERS)) + "±–·†°●"), max_size=30) | st.sampled_from(HARD[:-1]))
def test_a_text_reads_back_letter_by_letter(text):
    assert read(escaped(text)) == text.strip()


@given(st.text(max_size=30))
def test_any_text_is_one_line_of_letters_that_pdflatex_knows(text):
    made = escaped(text)
    assert "\n" not in made
    assert all(letter.isascii() or letter in LETTERS for letter in made)
    read(made)  # only our own commands, no bare special letter
    bare = re.sub(r"\\[&%$#_{}]", "", made)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0


@given(st.text(st.sampled_from("-',`"), min_size=2, max_size=8))
def test_two_letters_never_join_into_another(text):
    assert not re.search(r"--|''|,,|``", escaped(text))


def test_a_letter_that_is_not_known_is_named_by_its_number():
    assert escaped("漢") == "{[}U+6F22{]}"
    assert escaped("ő ﬁ") == "o fi"
    assert escaped("a\x1bb") == escaped(printable("a\x1bb", keep="")) == "a{[}U+FFFD{]}b"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex on this machine")
@pytest.mark.parametrize(
    "fonts",
    ["", pytest.param(r"\usepackage[T1]{fontenc}", marks=pytest.mark.full)],  # TeX may have to generate the fonts first
    ids=["OT1", "T1"],
)
def test_every_letter_compiles_with_either_encoding_of_fonts(fonts, tmp_path):
    letters = [*HARD, *ASCII, *LETTERS, *SYMBOLS, "漢"]
    rows = "\n".join(rf"{escaped(text)} & {escaped(text)}x \\" for text in letters)
    body = rf"\begin{{longtable}}{{ll}}{rows}\end{{longtable}}"
    head = rf"\documentclass{{article}}\usepackage[utf8]{{inputenc}}{fonts}\usepackage{{longtable}}"
    (tmp_path / "all.tex").write_text(rf"{head}\begin{{document}}{body}\end{{document}}", encoding="utf-8")
    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:]
