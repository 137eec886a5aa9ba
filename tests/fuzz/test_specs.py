"""Whatever is written where a mechanism or a setting is expected: one canonical form, or one sentence."""

import keyword
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import attentions
from longspan.cli.app import overrides
from longspan.core.spec import MAX_LENGTH, Spec
from tests.fuzz.figures import examples, inputs

names = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)
specs = st.builds(Spec, names | st.just("dir/my file.py:Mine"), st.dictionaries(names, values, max_size=4))

WORDS = [*"()[]{},=:;.'\"\\-~+*/#@ \n\t\0\x1b", "local", "window", "x=", "1", "1e999", "0x", "f'{", "b'", "lambda:"]
WORDS += [
    "not ",
    "**",
    " if 1 else ",
    " for x in ",
    "await ",
    "None",
    "é",
    "\u2028",
    "\ud800",
    "__import__('os')",
    ".py:A",
]
words = st.sampled_from(WORDS)
soups = st.lists(words | st.text(max_size=4), max_size=24).map("".join)
repeated = st.builds(
    lambda head, part, count, tail: head + part * count + tail,
    *(st.sampled_from(["", "a", "a(", "a(x=", "a b", "a("]), st.lists(words, min_size=1, max_size=3).map("".join)),
    *(st.integers(1, MAX_LENGTH), st.sampled_from(["", "(", ")", "x", "1)"])),
)
damaged = st.builds(
    lambda spec, place, new: f"{str(spec)[:place]}{new}{str(spec)[place + 1 :]}", specs, st.integers(0, 60), words
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """So that no input can name a plug-in on this machine."""
    monkeypatch.chdir(tmp_path)


@inputs(quick=400)
@pytest.mark.filterwarnings("ignore")  # Python warns about invalid escapes
def test_any_text_is_a_spec_with_one_spelling_or_a_sentence(count, figures):
    @examples(count)
    @given(soups | repeated | damaged | specs.map(str))
    def one(text):
        with figures.trying():
            spec = Spec.parse(text)
            assert Spec.parse(str(spec)) == spec
            assert str(Spec.parse(str(spec))) == str(spec)

    one()


@inputs(quick=200)
def test_every_spec_that_is_well_formed_is_accepted(count, figures):
    @examples(count)
    @given(specs)
    def one(spec):
        with figures.trying():
            assert Spec.parse(str(spec)) == spec

    one()
    assert figures["refused with a sentence"] == 0


@inputs(quick=300)
@pytest.mark.filterwarnings("ignore")
def test_any_text_names_a_mechanism_or_gets_a_sentence(count, figures):
    figures.title = "names of mechanisms"
    own = st.sampled_from(["local", "performer", "softmax", "nystromformer", "linformer"])
    options = st.sampled_from(["window", "features", "kernel", "rank", "x"])
    right = st.builds("{}( {} = {} )".format, st.just("local"), st.just("window"), st.integers(1, 2**200))
    close = st.builds(lambda name, option, value: f"{name}({option}={value!r})", own, options, values)

    @examples(count)
    @given(close | right | soups | damaged | repeated)
    def one(text):
        with figures.trying():
            assert len(str(attentions.get(text))) <= attentions.MAX_NAME

    one()


@inputs(quick=300)
def test_any_setting_is_a_plain_value_or_a_sentence(count, figures):
    figures.title = "settings"

    @examples(count)
    @given(st.builds("{}={}".format, names, soups | repeated | values.map(repr)) | soups)
    def one(change):
        with figures.trying(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for value in overrides([change]).values():
                assert value is None or isinstance(value, bool | int | float | str | tuple)

    one()
