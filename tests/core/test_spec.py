"""Specs are data: any text has one canonical form or is refused with a clear error, and nothing is ever executed."""

import keyword
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.core.spec import MAX_LENGTH, Spec, literal

names = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=30)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)
targets = names | st.sampled_from(["folder/my file.py:Mine", "package.module:Mine", "linear-attention"])


@given(targets, st.dictionaries(names, values, max_size=4))
@example("local", {"a": "\x00", "b": "\ud800", "c": 'quote " and \\', "d": ((), (1,), ("\n",)), "e": -0.0})
@settings(deadline=None)
def test_the_canonical_form_is_a_fixed_point(target, options):
    spec = Spec(target, options)
    again = Spec.parse(str(spec))
    assert again == spec
    assert str(again) == str(spec)


FRAGMENTS = [
    "local",
    "(",
    ")",
    "a",
    "=",
    "1",
    ",",
    " ",
    "'",
    '"',
    "\\",
    "[",
    "]",
    "*",
    "**",
    ":",
    "#",
    "\n",
    "{}",
    "lambda",
    ".",
]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
@settings(deadline=None, max_examples=400)
def test_any_text_is_a_spec_or_a_usage_error(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about invalid escapes
        spec = parsed(text)
        assert spec is None or Spec.parse(str(spec)) == spec


def parsed(text):
    """None where the text is refused; any other exception fails the test."""
    try:
        return Spec.parse(text)
    except UsageError:
        return None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "local(",
        "local)",
        "local(window)",
        "local(3)",
        "local(**{'window': 3})",
        "local(window=3, window=4)",
        "local(window=open('x'))",
        "local(window=__import__('os').system('true'))",
        "local(window=[x for x in (1,)])",
        "local(window=3)(window=4)",
        "local(window=3), local(window=4)",
        "local(window=1e999)",
        "local(window=(1, 1e999))",
        "local(window=1+2j)",
        "local(window=b'3')",
        "local(window=(b'3',))",
        "local(window={1: 2})",
        "local(window=...)",
        "local(window=0x" + "f" * 5000 + ")",
        "local(window=" + "9" * 5000 + ")",
        "local(window=" + "(" * 300 + ")" * 300 + ")",
        "local(window=" + "-" * 100_000 + "1)",
        "my_file.py:",
        "local window",
    ],
    ids=lambda text: text[:30],
)
def test_hostile_strings_are_refused(text):
    with pytest.raises(UsageError, match="Cannot read"):
        Spec.parse(text)


def test_nothing_is_evaluated(tmp_path):
    trace = tmp_path / "trace"
    with pytest.raises(UsageError):
        Spec.parse(f"local(window=open({str(trace)!r}, 'w'))")
    assert not trace.exists()


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("performer", "performer"),
        ("performer()", "performer"),
        (" performer ( features = 64 , eps=1E-4 ) ", "performer(eps=0.0001, features=64)"),
        ("softmax(kernel=plain)", 'softmax(kernel="plain")'),
        ("softmax(kernel='plain')", 'softmax(kernel="plain")'),
        ("x(sizes=[1, 2])", "x(sizes=(1, 2))"),
        ("x(on=True, off=None)", "x(off=None, on=True)"),
        ("dir/my.py:Mine(window=4)", "dir/my.py:Mine(window=4)"),
    ],
)
def test_there_is_one_spelling(text, canonical):
    assert str(Spec.parse(text)) == canonical


def test_long_text_is_cut_in_the_sentence():
    with pytest.raises(UsageError) as caught:
        Spec.parse("x(" * 1000)
    assert len(str(caught.value)) < 250


def test_text_beyond_the_limit_is_refused_unread():
    fits = "local" + " " * (MAX_LENGTH - 5)
    assert Spec.parse(fits) == Spec("local")
    for text in (fits + " ", "a" * 10_000_000, "a" + " " * 10_000_000 + "(", f'a(x="{"b" * MAX_LENGTH}")'):
        with pytest.raises(UsageError, match="characters, more than 8,192"):
            Spec.parse(text)


def test_a_spec_whose_canonical_form_could_not_be_read_again_is_refused():
    with pytest.raises(UsageError, match=r"has 16,\d\d\d characters, more than"):
        Spec.parse(f'a(x="{chr(0x7F) * (MAX_LENGTH // 2)}")')


@pytest.mark.parametrize(
    "text, value",
    [("500", 500), ("[1, (2,)]", (1, (2,))), ("1e-4", 1e-4), ("None", None), ("'a' 'b'", "ab"), ("-0x10", -16)],
)
def test_a_literal_is_a_plain_value(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    "text", ["{[]: 1}", "{1}", "b'x'", "1e999", "1j", "...", "0x" + "f" * 99, "word", "-" * 9000, ""]
)
def test_what_is_no_plain_literal_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"characters, more than|not a plain"):
        literal(text)
