"""Documentation that can rot is tested: every command in it parses, every link and name in it exists."""

import ast
import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from longspan.attentions import AttentionMeta
from longspan.cli import app
from longspan.conformance.promises import FIRST, PROMISES

PROGRAM = typer.main.get_command(app)
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page, language):
    return [body for name, body in FENCE.findall(page.read_text()) if name == language]


def commands():
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                if line.startswith("longspan "):
                    yield page.name, line.split("  #")[0].strip()


def help_examples(group, words=("longspan",)):
    """The example lines in the help of every verb."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from help_examples(command, (*words, name))
        for line in (command.help or "").splitlines():
            if line.strip().startswith("longspan "):
                yield f"{name} --help", re.split(r" {3,}| > ", line.strip())[0]


def parse(line):
    """Parse the words as a command line, without running anything; wrong words raise."""
    command, words = PROGRAM, shlex.split(line)[1:]
    path = ["longspan"]
    while hasattr(command, "commands"):
        name = " ".join(words[:2])  # a few verbs have two words
        name = name if name in command.commands else words[0]
        words = words[len(name.split()) :]
        assert name in command.commands, f"{' '.join(path)} has no verb {name!r}"
        command = command.commands[name]
        path.append(name)
    command.make_context(" ".join(path), words).close()


def all_commands():
    return [*commands(), *help_examples(PROGRAM)]


@pytest.mark.parametrize("where, line", all_commands(), ids=lambda value: value)
def test_every_command_shown_is_one_the_program_reads(where, line):
    parse(line)


def test_a_wrong_command_would_be_noticed():
    usage_error = typer.BadParameter.__base__  # typer has no public name for it
    with pytest.raises(AssertionError, match="dance"):
        parse("longspan dance")
    with pytest.raises(usage_error) as caught:
        parse("longspan run listops -a softmax --sedes 3")
    assert "--sedes" in caught.value.format_message()
    with pytest.raises(usage_error) as caught:
        parse("longspan board")
    assert "SUITE" in caught.value.format_message()


def test_there_are_commands_to_test():
    assert len(all_commands()) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", FENCE.sub("", page.read_text())):  # a formula may look like a link
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short_enough_to_read(page):
    long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


def test_every_page_is_in_the_navigation():
    class Loader(yaml.SafeLoader):
        """mkdocs has YAML tags of its own, which do not matter here."""

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    groups = {title: pages for entry in settings["nav"] for title, pages in entry.items()}
    assert list(groups) == ["Use", "Extend", "Reference"]
    listed = {name for pages in groups.values() for entry in pages for name in entry.values()}
    # the pages of single mechanisms are generated, and linked from the table of all mechanisms
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} | {"mechanisms/index.md"}


def test_the_readme_fits_on_one_screen_and_names_both_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 75
    assert "make run" in text
    assert "make test" in text


def test_the_command_page_names_every_verb_and_exit_code():
    text = (ROOT / "docs" / "commands.md").read_text()
    for verb in PROGRAM.commands:
        assert f"| `{verb} " in text or f"| `{verb}`" in text, verb
    assert all(f"| {code} |" in text for code in (0, 1, 2, 3, 4, "128 + n"))


def test_the_page_for_mechanisms_explains_every_field_of_the_declaration():
    text = (ROOT / "docs" / "add-a-mechanism.md").read_text()
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in dataclasses.fields(AttentionMeta)} <= explained


def test_the_page_for_mechanisms_explains_every_promise_as_the_check_does():
    text = " ".join((ROOT / "docs" / "add-a-mechanism.md").read_text().split())
    lines = [f"- **{promise.name}**: {promise.sentence}" for promise in (FIRST, *PROMISES)]
    missing = [line for line in lines if line not in text]
    assert not missing, "docs/add-a-mechanism.md lacks:\n" + "\n".join(missing)


def test_the_api_page_names_things_that_exist():
    import importlib

    for name in re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


SNIPPET = re.compile(r'--8<-- "(.+)"')
SLOW = ("efficiency.lra import", "efficiency.sweep import")  # blocks that measure


def python_blocks():
    for page in PAGES:
        for i, block in enumerate(blocks(page, "python")):
            marks = [pytest.mark.full] if any(words in block for words in SLOW) else []
            yield pytest.param(block, id=f"{page.name}-{i}", marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trained cell, its probe and a measurement, as a reader of the pages would have by then."""
    import longspan
    from longspan import tasks
    from longspan.results import official

    place = tmp_path_factory.mktemp("reader")
    protocols = type(tasks.get("listops")).protocols
    small = {"data.train": 200, "data.valid": 20, "data.test": 20, "recipe.steps": 2, "recipe.evaluate_every": 2}
    small |= {"model.dim": 16, "model.layers": 1, "model.mlp": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("LONGSPAN_DATA", str(place / "data"))
        patch.setitem(protocols, ("longspan", "smoke"), protocols["longspan", "smoke"].override(small))
        patch.setattr(official, "_tasks", dict)  # the shipped catalogue has the protocol as it was
        longspan.run("listops", "softmax", tier="smoke", device="cpu", progress=False)
        yield place


@pytest.mark.parametrize("block", list(python_blocks()))
def test_every_python_block_runs(block, folder):
    if "transformers" in block:
        pytest.importorskip("transformers", reason="transformers is an extra: longspan[huggingface]")
    if named := SNIPPET.findall(block):
        for name in named:
            block = (ROOT / "docs" / name).read_text()  # as it is rendered
    (card,) = (path for path in (folder / "out" / "cards" / "listops").glob("*softmax*.json"))
    block = block.replace("out/cards/listops/....json", str(card)).replace("samples=200", "samples=2")
    if "compare(" in block:
        from longspan.core.errors import DataMissing

        with pytest.raises(DataMissing):  # nothing has been measured in this folder
            exec(compile(block, "block", "exec"), {"__name__": "block"})
        return
    exec(compile(block, "block", "exec"), {"__name__": "block"})


def test_snippets_are_named_as_the_site_reads_them():
    for page in PAGES:
        assert not re.search(r"--\s*8\s*<", page.read_text().replace("--8<-- ", "")), page.name
        for name in SNIPPET.findall(page.read_text()):
            assert (ROOT / "docs" / name).is_file(), f"{page.name} shows {name}"


def test_every_block_says_its_language():
    for page in PAGES:
        assert all(name in ("sh", "python", "text", "toml") for name, _ in FENCE.findall(page.read_text())), page.name


def test_toml_blocks_are_toml():
    import tomllib

    for page in PAGES:
        for block in blocks(page, "toml"):
            tomllib.loads(block)


def test_the_drawing_of_the_packages_is_that_of_the_imports():
    from docs import make_architecture

    assert make_architecture.DRAWING.read_text() == make_architecture.draw(), "run: make generated"


def test_the_page_on_kernels_names_every_mechanism_that_imports_an_engine():
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", (ROOT / "docs" / "kernels.md").read_text(), re.MULTILINE)
    named = {engine: set(re.findall(r"\w+", users)) for engine, users in rows}
    for path in sorted((ROOT / "longspan" / "attentions").glob("[!_]*.py")):
        engines = set(re.findall(r"^from longspan\.kernels\.(\w+)", path.read_text(), re.MULTILINE)) & set(named)
        missing = [engine for engine in engines if path.stem not in named[engine] | {"state_space"}]
        assert not missing, f"docs/kernels.md lacks {path.stem} in the row of {', '.join(missing)}"


def test_the_pages_name_files_that_exist():
    """`runs/cell.py` in the page on architecture is longspan/runs/cell.py."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"`([a-z_]+/[\w/]+(?:\.py)?)", text):
        inside = ROOT / "longspan" / name
        assert inside.exists() or inside.with_suffix(".py").exists() or (ROOT / name).exists(), name


def test_the_shortest_mechanism_is_short_and_called_what_the_pages_say():
    source = (ROOT / "docs" / "my_attention.py").read_text()
    assert len(source.splitlines()) <= 25
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    named = {name for page in PAGES for name in re.findall(r"my_attention\.py:(\w+)", page.read_text())}
    assert named <= classes


def test_the_shortest_backbone_and_task_work_together(tmp_path, monkeypatch):
    """A plug-in task, and a network with its slot filled by several mechanisms: padding never matters."""
    import torch

    import longspan
    from docs.my_backbone import PostNormClassifier
    from longspan.backbones.encoder_sizes import Sizes

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text((ROOT / "docs" / "my_task.py").read_text())
    few = {"recipe.steps": 2, "recipe.evaluate_every": 2, "data.train": 40, "data.valid": 8, "data.test": 8}
    card = longspan.run("my_task.py:ShallowListOps", "linear", overrides=few, device="cpu", progress=False)
    assert card["status"] == "ok"
    for name in ("softmax", "linear", "performer"):
        torch.manual_seed(0)
        factory = longspan.attentions.get(name)
        model = PostNormClassifier(factory, Sizes(16, 2, 1, 16), vocabulary=10, classes=3, length=12).eval()
        tokens = torch.randint(1, 10, (2, 12)).masked_fill(torch.arange(12) >= torch.tensor([[12], [7]]), 0)
        torch.testing.assert_close(model(tokens)[1:], model(tokens[1:, :7]))


def test_the_readme_shows_the_board_that_make_run_gives():
    """Its structure, not its numbers: columns, mechanisms, and what the text below it says."""
    from longspan import attentions, suites

    makefile = (ROOT / "Makefile").read_text()
    given = shlex.split(re.search(r"^MECHANISMS := (.*)$", makefile, re.MULTILINE)[1])  # type: ignore[index]
    block = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0]
    title, heading, _, *lines = block.splitlines()
    starter = suites.get("starter")
    assert title == f"{starter.title} · longspan · smoke"
    scored = [*map(suites.heading, starter.tasks[:2]), f"{suites.heading('lm')} ↓", "Avg"]
    assert re.split(r" {2,}", heading) == ["#", "Mechanism", *scored, "Seeds", "Steps/s", "Parameters"]
    ranked = [re.split(r" {2,}", line) for line in lines if line[0] != " "]
    assert [row[0] for row in ranked] == [str(place) for place in range(1, len(given) + 1)]
    assert {row[1].partition(" [")[0].removesuffix(" ?") for row in ranked} == {
        attentions.get(one).meta.title for one in given
    }
    patterns = [set(attentions.get(one).meta.patterns) for one in given]
    assert all({*starter.patterns.values()} <= own for own in patterns)
    scores = {row[1]: row[2:6] for row in ranked}
    assert not any("°" in score for score in scores["Softmax"])
    assert not all("●" in score for score in scores["Softmax"])
    recall = [float(row[3].split()[0]) for row in ranked]
    assert max(recall) - min(recall) >= 30


def test_no_page_names_a_machine():
    for page in [*PAGES, ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "constraints.txt", ROOT / "CHANGELOG.md"]:
        assert not re.search(r"/(work|root|home|tmp)/", page.read_text()), page.name
