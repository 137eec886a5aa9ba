"""The source of a plug-in includes every file of its author's that it imports."""

import hashlib
import sys

import pytest

from longspan.attentions import registry
from longspan.core.plugin_source import source_hash, sources

BASE = """
from longspan import AttentionMeta, HeadwiseAttention, Pattern
{imports}

class Base(HeadwiseAttention):
    meta = AttentionMeta("Mine", "none", "own", "n", (Pattern.NONCAUSAL_SELF,))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        {inside}
        return v
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the import path; `hash_of` drops its modules before each look."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def hash_of(folder, target="mine.py:Base"):
    for name in ("helper", "base", "far"):
        sys.modules.pop(name, None)
    return source_hash(registry.find(f"{folder}/{target}"))


def test_a_single_file_has_the_hash_of_its_text(folder):
    text = BASE.format(imports="import torch, math", inside="pass")
    (folder / "mine.py").write_text(text)
    assert hash_of(folder) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "imports, inside",
    [
        ("import helper", "pass"),
        ("from helper import WIDTH", "pass"),
        ("pass", "import helper"),
        ("import far", "pass"),
    ],
)
def test_an_edited_helper_is_other_code(folder, imports, inside):
    (folder / "mine.py").write_text(BASE.format(imports=imports, inside=inside))
    (folder / "far.py").write_text("from helper import WIDTH")
    (folder / "helper.py").write_text("WIDTH = 3")
    before = hash_of(folder)
    assert hash_of(folder) == before
    (folder / "helper.py").write_text("WIDTH = 4")
    assert hash_of(folder) != before


def test_an_edited_base_class_is_other_code(folder):
    (folder / "base.py").write_text(BASE.format(imports="", inside="pass"))
    (folder / "mine.py").write_text("import base\n\nclass Mine(base.Base):\n    pass\n")
    before = hash_of(folder, "mine.py:Mine")
    (folder / "base.py").write_text(BASE.format(imports="", inside="v = 2 * v"))
    assert hash_of(folder, "mine.py:Mine") != before


def test_a_name_that_is_no_module_and_a_file_that_is_no_python_are_passed_over(folder):
    (folder / "helper.py").write_text("def (")
    (folder / "mine.py").write_text(BASE.format(imports="import os.path", inside="import helper, nowhere, no.where"))
    assert len(sources(registry.find(f"{folder}/mine.py:Base"))) == 2


@pytest.mark.parametrize("shelf, own", [("site-packages", False), ("dist-packages", False), ("mylib", True)])
def test_a_library_in_a_folder_of_packages_is_not_part_of_the_source(folder, monkeypatch, shelf, own):
    """Such as site-packages of the user or the system, outside this interpreter's own folders."""
    (folder / shelf).mkdir()
    monkeypatch.syspath_prepend(folder / shelf)
    (folder / "mine.py").write_text(BASE.format(imports="import helper", inside="pass"))
    (folder / shelf / "helper.py").write_text("WIDTH = 3")
    before = hash_of(folder)
    (folder / shelf / "helper.py").write_text("WIDTH = 4")
    assert (hash_of(folder) != before) is own
