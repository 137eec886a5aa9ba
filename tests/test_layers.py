"""Imports point downwards only, siblings never import one another, and the reading half never imports torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "longspan"

# From the top down. A part may import parts of lower layers, itself, and what SIDEWAYS allows within a layer.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"notebook", "sharing"},
    {"report"},
    {"analysis"},
    {"launchers"},
    {"api"},
    {"runs"},
    {"training", "efficiency", "probes", "rules"},
    {"tasks"},
    {"backbones", "conformance", "huggingface", "multihead"},
    {"attentions", "datasets", "metrics"},
    {"kernels", "results", "suites", "published"},
    {"core"},
]
SIDEWAYS = {("results", "suites"), ("results", "published")}  # a board knows its suite and the published rows
SIDEWAYS |= {("suites", "published")}  # an index uses constants that a paper prints
SIDEWAYS |= {("efficiency", "training")}  # the timed step is the training step
FLAT = {  # packages in which a file never imports a sibling, except for these shared modules
    "attentions": {"auxiliary", "base", "bypass", "relative", "state_space", "states"},
    "tasks": {
        *("base", "byte_pairs", "byte_text", "cab_table", "classification", "diffusion", "forecasting", "fresh_feed"),
        *("language", "lit_feed", "lra_models", "masked_tokens", "speech", "speech_feed", "speech_rules"),
        *("copying_rules", "pathfinder_rules", "placed_answers", "recall_rules", "row_draws", "speech_sound"),
        *("strong", "token_feed", "widths"),
    },
    "datasets": {"base", "characters", "corpus", "placed_answers", "series"},
    "probes": {"base", "matrices", "ask"},
}
ROOT_MODULES = {"__init__", "__main__", "api", "multihead", "suites", "rules"}
READING = ("core", "results", "suites", "published", "analysis", "report", "notebook", "sharing", "cli", "launchers")


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    """Every longspan module a file imports, inside functions too; imports for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for child in branch.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "longspan")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module and node.module.split(".")[0] == "longspan":
                yield from (resolve(node.module, alias.name) for alias in node.names)


def resolve(module, name):
    """`from longspan.core import errors` means longspan.core.errors; a name inside a module means the module."""
    place = PACKAGE.joinpath(*module.split(".")[1:], name)
    return f"{module}.{name}" if place.is_dir() or place.with_suffix(".py").is_file() else module


def part_of(module):
    """The part of the package a module belongs to: `longspan.core.errors` -> `core`."""
    words = module.split(".")
    return words[1] if len(words) > 1 else ""


def height(part):
    return next(len(LAYERS) - depth for depth, layer in enumerate(LAYERS) if part in layer)


def test_the_root_holds_the_public_functions_and_nothing_else():
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT_MODULES


def test_every_part_of_the_package_has_its_layer():
    parts = {part_of(module_of(path)) for path in sources()} - {""}
    assert parts <= set().union(*LAYERS), "a new part needs a place in LAYERS"


@pytest.mark.parametrize("path", sources(), ids=module_of)
def test_imports_point_downwards_only(path):
    own = part_of(module_of(path))
    for module in imports_of(path):
        other = part_of(module)
        if own in ("", other) or other == "" or (own, other) in SIDEWAYS:
            continue  # the package itself loads its public names lazily
        assert height(other) < height(own), f"{module_of(path)} imports {module}, which does not lie below it"


@pytest.mark.parametrize("shelf", FLAT)
def test_files_of_a_shelf_never_import_one_another(shelf):
    for path in sorted((PACKAGE / shelf).rglob("*.py") if shelf == "attentions" else (PACKAGE / shelf).glob("*.py")):
        if path.stem in FLAT[shelf] | {"__init__"}:
            continue
        for module in imports_of(path):
            words = module.split(".")
            neighbour = PACKAGE / shelf / f"{words[2]}.py" if words[1:2] == [shelf] and len(words) > 2 else None
            if neighbour is not None and neighbour.is_file():
                assert words[2] in FLAT[shelf], f"{shelf}/{path.name} imports {module}"


def test_nobody_waits_for_lightning_who_does_not_train():
    """Importing it takes twice as long as importing torch, so only the function that needs it does."""
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "lightning" for name in modules), module_of(path)


def test_the_reading_half_and_the_package_itself_never_import_torch():
    modules = [module_of(path) for path in sources() if part_of(module_of(path)) in (*READING, "")]
    program = f"""
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise AssertionError("torch was imported")

sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
import longspan
dir(longspan), longspan.__version__, longspan.suites.names(), longspan.Store, longspan.board
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_is_called_what_says_nothing():
    names = {path.stem for path in [*sources(), *(ROOT / "tests").rglob("*.py")]}
    assert not names & {"utils", "util", "helpers", "common", "misc", "new"}


@pytest.mark.parametrize("name", ["Finding", "Verdict", "Slots", "Cell", "Subject", "Report", "Bench"])
def test_one_class_name_has_one_meaning(name):
    homes = [path for path in sources() if re.search(rf"^class {name}\b", path.read_text(), re.MULTILINE)]
    assert len(homes) <= 1, homes


def test_every_public_name_exists():
    import longspan

    for name in longspan.__all__:
        assert getattr(longspan, name) is not None
    with pytest.raises(AttributeError, match="no public name 'runn'"):
        longspan.runn  # noqa: B018
