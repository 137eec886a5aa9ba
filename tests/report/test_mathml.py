"""Formulas of docstrings as MathML: nothing is lost, nothing becomes markup."""

import html
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.report.mathml import paragraphs, typeset
from longspan.results.catalogue import SHIPPED, read


def letters(markup):
    """The text of a formula without its spaces."""
    return re.sub(r"\s", "", "".join(ElementTree.fromstring(markup).itertext()))


@pytest.mark.parametrize(
    "source, expected",
    [
        ("p_ij", "<msub><mi>p</mi><mrow><mrow><mi>i</mi><mi>j</mi></mrow></mrow></msub>"),
        ("sqrt(c)", "<msqrt><mrow><mi>c</mi></mrow></msqrt>"),
        ("k^T", "<msup><mi>k</mi><mrow><mrow><mi>T</mi></mrow></mrow></msup>"),
        ("phi", "<mi>φ</mi>"),
        ("a <= b", "≤"),
        ("sum_{j <= t}", "<munder>"),
        ("K~", '<mover accent="true"><mi>K</mi>'),
        ("(a b)^T", "<msup><mo"),
        ("q . k", "⋅"),
        ('kind = "fixed"', "<mtext>&quot;fixed&quot;</mtext>"),
    ],
)
def test_each_notation_is_set_as_mathematics(source, expected):
    assert expected in typeset(source)


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs")), max_size=60))
def test_whatever_is_written_gives_sound_markup_and_keeps_its_source(source):
    root = ElementTree.fromstring(typeset(source))
    assert root.attrib["alttext"] == source
    assert {element.tag for element in root.iter()} <= TAGS


TAGS = {"math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "msub", "msup", "msubsup"}
TAGS |= {"msqrt", "mover", "munder", "munderover"}


@given(st.text(alphabet="abcxyz123+=()[]{}|, ", max_size=40))
def test_plain_letters_numbers_and_brackets_keep_their_order(source):
    assert letters(typeset(source)).replace("‖", "||") == re.sub(r"\s", "", source)


def test_every_formula_of_the_catalogue_is_sound():
    for entry in read(SHIPPED)["attentions"]:
        kinds = list(paragraphs(entry["formula"]))
        assert kinds[0][0] == "words"
        for kind, content in kinds:
            for line in content if kind == "formulas" else ():
                for formula in line:
                    ElementTree.fromstring(typeset(formula))


def test_a_formula_cannot_become_markup():
    made = typeset('x <b>"not bold"</b>')
    assert "<b>" not in made
    assert html.unescape(re.search('alttext="([^"]*)"', made)[1]) == 'x <b>"not bold"</b>'
