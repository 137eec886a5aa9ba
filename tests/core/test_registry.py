"""Finding classes: by file name, by path, by module and by entry point; every failure is a one-sentence error."""

import sys
from typing import Literal

import pytest

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import PluginError, UnknownName, UsageError
from longspan.core.registry import Option, Registry, checked_options, own_options

GOOD = '''
"""Mean attention: y_i = mean_j v_j."""
from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

class Mean(HeadwiseAttention):
    meta = AttentionMeta(title="Mean", paper="none", family="toy", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))

    def __init__(self, dim, heads, pattern, *, power: int = 1, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.power = power

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return v.mean(dim=2, keepdim=True).expand(-1, -1, q.shape[2], -1)

class Unfinished(HeadwiseAttention):
    meta = Mean.meta

class Other:
    pass
'''


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "my mean.py"
    path.write_text(GOOD)
    return path


def test_the_file_name_is_the_registered_name():
    assert {"softmax", "local", "linformer", "fnet", "nystromformer"} <= set(attentions.names())
    assert "base" not in attentions.names()
    assert attentions.get("softmax").cls.__name__ == "Softmax"


def test_listing_names_imports_none_of_them(tmp_path, monkeypatch):
    package = tmp_path / "shelf_of_bombs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("")
    (package / "bomb.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert Registry("thing", "shelf_of_bombs", "builtins:object").names() == ["bomb"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_file_holds_exactly_one_class(tmp_path, monkeypatch, count):
    package = tmp_path / f"shelf_with_{count}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "book.py").write_text("\n".join(f"class C{i}(dict): ..." for i in range(count)))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=f"exactly one thing class, found {count}"):
        Registry("thing", package.name, "builtins:dict").find("book")


def test_a_path_names_a_class(plugin):
    mechanism = attentions.get(f"{plugin}:Mean(power=2)")
    assert mechanism(8, 2, Pattern.NONCAUSAL_SELF).power == 2
    assert str(mechanism) == "my mean.py:Mean(power=2)"  # without the folder on this machine
    assert mechanism.formula == "Mean attention: y_i = mean_j v_j."
    assert mechanism.available_options() == [Option("power", "int", 1)]


def test_a_module_names_a_class(tmp_path, monkeypatch):
    (tmp_path / "module_of_means.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    assert str(attentions.get("module_of_means:Mean")) == "module_of_means:Mean"


def test_an_installed_package_offers_its_own(tmp_path, monkeypatch):
    """A distribution as pip installs it: a module, and a dist-info folder that lists its entry points."""
    (tmp_path / "installed_means.py").write_text(GOOD)
    (tmp_path / "installed_bomb.py").write_text("raise RuntimeError('wrong\\nmoment')")
    information = tmp_path / "means-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: means\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[longspan.attentions]\nmean_of_means = installed_means:Mean\nbomb = installed_bomb:Mean\n"
        "other = installed_means:Other\nsoftmax = installed_means:Mean\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mean_of_means", "bomb"} <= set(attentions.names())
    assert str(attentions.get("mean_of_means(power=3)")) == "mean_of_means(power=3)"
    with pytest.raises(PluginError, match=r"bomb could not be imported \(RuntimeError: wrong\); fix it"):
        attentions.get("bomb")
    with pytest.raises(PluginError, match="other is not a subclass of"):
        attentions.get("other")
    assert attentions.get("softmax").meta.title == "Softmax"  # a built-in cannot be overridden


@pytest.mark.parametrize(
    "body, words",
    [
        ("raise ValueError('not today')", "ValueError: not today"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def broken(:", "SyntaxError"),
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
    ],
)
def test_a_plugin_that_fails_on_import_is_one_sentence(tmp_path, body, words):
    path = tmp_path / "faulty.py"
    path.write_text(body)
    modules = set(sys.modules)
    with pytest.raises(PluginError, match=words) as caught:
        attentions.get(f"{path}:Mine")
    assert "\n" not in str(caught.value)
    assert set(sys.modules) == modules


def test_an_interrupt_goes_through(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        attentions.get(f"{path}:Mine")


def test_what_is_no_usable_class_is_refused(plugin):
    with pytest.raises(PluginError, match="check the path"):
        attentions.get(f"{plugin.parent / 'absent.py'}:Mean")
    with pytest.raises(UnknownName, match=r"has no class 'Meen'. Did you mean 'Mean'\?"):
        attentions.get(f"{plugin}:Meen")
    with pytest.raises(PluginError, match="does not define attend"):
        attentions.get(f"{plugin}:Unfinished")
    with pytest.raises(PluginError, match=r"is not a subclass of longspan\.attentions\.base\.Attention"):
        attentions.get(f"{plugin}:Other")
    with pytest.raises(PluginError, match="could not be imported"):
        attentions.get("no_such_package.at_all:Mine")


@pytest.mark.parametrize("line", ["", "meta = {'title': 'Mean', 'cost': 'n'}", "meta = None"])
def test_a_mechanism_without_meta_is_told_to_declare_it(tmp_path, line):
    path = tmp_path / "undeclared.py"
    path.write_text(
        "from longspan.attentions import HeadwiseAttention\n"
        "class Mine(HeadwiseAttention):\n"
        f"    {line}\n"
        "    def attend(self, q, k, v, *, key_mask=None, query_mask=None):\n"
        "        return q\n"
    )
    with pytest.raises(PluginError, match=r"undeclared\.py:Mine .*; give it meta = AttentionMeta\(\.\.\.\)\."):
        attentions.get(f"{path}:Mine")


@pytest.mark.parametrize(
    "text, words",
    [
        ("nystromforner", "No attention named 'nystromforner'. Did you mean 'nystromformer'?"),
        ("local(windw=3)", "has no option 'windw'. Did you mean 'window'?"),
        ("fnet(power=2)", "It has no options."),
        ("local(window=3.5)", "takes int, got 3.5"),
        ("local(window=True)", "takes int, got True"),
        ("local(window='3')", "takes int, got '3'"),
        ("local(shape=round)", "takes 'window' | 'blocks', got 'round'"),
        ("local(dropout=0.1)", "has no option 'dropout'"),
    ],
)
def test_wrong_names_and_values_are_refused_with_a_hint(text, words):
    with pytest.raises(UsageError) as caught:
        attentions.get(text)
    assert words in str(caught.value)


class Sample:
    def __init__(
        self,
        dim: int,
        *,
        rate: float = 0.5,
        size: int | None = None,
        mode: Literal["a", 2] = "a",
        sizes: tuple[int, ...] = (1, 2),
        free=None,
        bias: bool = True,
        **shell,
    ):
        del dim, rate, size, mode, sizes, free, bias, shell


SHELL = frozenset({"bias"})


def checked(**given):
    return checked_options(Sample, given, SHELL, "attention", "sample")


def test_options_are_read_off_the_constructor():
    assert [option.name for option in own_options(Sample, SHELL)] == ["free", "mode", "rate", "size", "sizes"]
    assert {option.name: option.type for option in own_options(Sample, SHELL)}["size"] == "int | None"


@pytest.mark.parametrize(
    "given, kept",
    [
        ({"rate": 0.5}, {}),
        ({"rate": 1}, {"rate": 1.0}),
        ({"size": None}, {}),
        ({"size": 3}, {"size": 3}),
        ({"mode": 2}, {"mode": 2}),
        ({"sizes": (1, 2)}, {}),
        ({"sizes": (3,)}, {"sizes": (3,)}),
        ({"free": "anything"}, {"free": "anything"}),
    ],
)
def test_defaults_are_left_out_and_whole_numbers_serve_as_fractions(given, kept):
    found = checked(**given)
    assert found == kept
    assert [type(value) for value in found.values()] == [type(value) for value in kept.values()]


@pytest.mark.parametrize("given", [{"rate": "fast"}, {"rate": True}, {"size": 2.0}, {"mode": "b"}, {"sizes": 3}])
def test_values_of_another_kind_are_refused(given):
    with pytest.raises(UsageError, match="give a value of that type"):
        checked(**given)


def test_a_name_of_any_length_gets_a_short_sentence():
    for text in ("x" * 8_000, f"local({'x' * 8_000}=1)", f'local(window="{"x" * 8_000}")', f"{'x' * 8_000}.py:Mine"):
        with pytest.raises(UsageError) as caught:
            attentions.get(text)
        assert len(str(caught.value)) < 1_500


def test_a_name_that_no_card_has_room_for_is_refused_before_it_is_trained(plugin):
    plugin.write_text(GOOD.replace("power: int = 1", "power: str = ''"))
    assert attentions.get(f'{plugin}:Mean(power="{"x" * 400}")')
    with pytest.raises(UsageError, match="has 525 characters, more than the 500 that a card has room for"):
        attentions.get(f'{plugin}:Mean(power="{"x" * 500}")')
