"""The gallery of mechanisms in docs/ agrees with the code, and an outdated page is detected."""

import json
import re

import pytest

from docs import make_gallery as gallery
from longspan import attentions
from longspan.api import catalogue, describe
from longspan.attentions import Pattern
from longspan.core.spec import Spec
from longspan.results.chance import is_above_chance

REMEDY = "the gallery is out of date; run: python docs/make_gallery.py"
BUILT_IN = sorted(name for name in attentions.names() if gallery.is_built_in(name))


@pytest.fixture(scope="module")
def vectors():
    return gallery.recorded(set(BUILT_IN))


def rows(text):
    """name -> the cells after it, of every table row that begins with a link to a mechanism."""
    found = re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \| (.*) \|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_the_committed_table_has_every_mechanism_with_its_patterns_and_cost():
    committed = rows((gallery.FOLDER / "index.md").read_text())
    for entry in catalogue(("attentions",))["attentions"]:
        if entry["name"] in BUILT_IN:
            patterns = " ".join(Pattern(pattern).code for pattern in entry["patterns"])
            expected = [entry["title"], patterns, entry["cost"]]
            assert committed.pop(entry["name"], [])[:3] == expected, f"{entry['name']}: {REMEDY}"
    assert not committed, f"rows of mechanisms that are gone: {REMEDY}"


def test_every_mechanism_learns_or_has_a_reason_not_to():
    scores = json.loads(gallery.SCORES.read_text())
    ranked = [name for name in BUILT_IN if not attentions.get(name).meta.fidelity]
    assert {Spec.parse(spec).target for spec in scores} == set(ranked), "run it, then benchmarks/smoke_scores.py"
    above = {name for name, score in scores.items() if is_above_chance(score["value"], score["chance"], score["count"])}
    assert set(ranked) - above == set(gallery.BELOW), "a reason for each that does not learn, and for no other"
    committed = (gallery.FOLDER / "index.md").read_text()
    assert all(f"| `{name}` | {100 * scores[name]['value']:.1f} |" in committed for name in ranked), REMEDY


def test_every_causal_mechanism_learns_to_predict_text():
    perplexities = json.loads(gallery.PERPLEXITIES.read_text())
    causal = {
        name
        for name in BUILT_IN
        if Pattern.CAUSAL_SELF in (meta := attentions.get(name).meta).patterns and not meta.fidelity
    }
    assert set(perplexities) == causal, "run it on lm, then benchmarks/smoke_scores.py"
    assert all(score["value"] < score["chance"] / 2 for score in perplexities.values())


def test_every_mechanism_has_a_committed_page_and_no_page_is_left_over():
    assert sorted(path.stem for path in gallery.FOLDER.glob("*.md")) == sorted([*BUILT_IN, "index"]), REMEDY


def test_twins_stand_in_a_table_of_their_own():
    ranked, twins = (gallery.FOLDER / "index.md").read_text().split("## Twins")
    for name in BUILT_IN:
        assert name in rows(twins if attentions.get(name).meta.fidelity else ranked), f"{name}: {REMEDY}"


@pytest.mark.parametrize("name", ["linear", "local", "lra_local"])
def test_a_page_has_the_formula_and_all_options_and_is_the_same_each_time(name, vectors):
    entry, tasks = describe("attentions", name), catalogue(("tasks",))["tasks"]
    first, second = (gallery.page(gallery.exhibit(entry, vectors), tasks) for _ in range(2))
    assert first == second
    assert entry["formula"] in first
    assert entry["paper"] in first
    assert all(f"| `{option['name']}` |" in first for option in entry["options"])
    assert f"longspan show {name}\n" in first
    assert f"eprint = {{{entry['paper'].removeprefix('arXiv:')}}}" in first


@pytest.mark.parametrize(
    "name, declaration",
    [
        ("yoso", "| gradient | defined by the paper, not by calculus |"),
        ("sac", "| adds to the loss | a term while training |"),
        ("flash", "| takes the place of | attention and MLP |"),
        ("luna", "| carries on | to the next layer |"),
        ("transformer_xl", "| carries on | to the next segment |"),
        ("linear", "| carries on | nothing |"),
    ],
)
def test_a_page_says_what_a_mechanism_asks_of_a_network_or_of_training(name, declaration):
    entry = describe("attentions", name)
    one = gallery.Exhibit(entry, states={}, parameters=0, recorded=(), unshipped=False, results={})
    assert declaration in gallery.page(one, [])


def test_the_state_of_softmax_grows_by_a_key_and_a_value_for_each_token_and_that_of_linear_stays():
    softmax = gallery.decoding_states("softmax")["CS"]
    assert softmax.long - softmax.short == (gallery.LONG - gallery.SHORT) * 2 * gallery.WIDTH * 4
    assert str(softmax).endswith("256 B a token")
    linear = gallery.decoding_states("linear")
    assert set(linear) == {"CS", "CC"}
    channels = gallery.WIDTH // gallery.HEADS
    assert all(state.short == state.long == gallery.HEADS * channels * (channels + 1) * 4 for state in linear.values())
    assert str(linear["CS"]).endswith(", constant")
    assert gallery.decoding_states("fnet") == {}


def test_parameters_of_softmax_are_four_maps():
    from longspan.conformance.parameters import DIM

    assert gallery.count_parameters("softmax") == 4 * DIM * (DIM + 1)


def test_every_shipped_vector_is_counted_once_for_a_mechanism_there_is(vectors):
    shipped = sorted(path.stem for path in (gallery.ROOT / "tests" / "golden").glob("*.npz"))
    assert [vector.name for vector in vectors] == shipped
    assert {vector.mechanism for vector in vectors} <= set(BUILT_IN)
    by_name = {vector.name: vector for vector in vectors}
    assert by_name["local__ns_pad_as_released_by_cab"].mechanism == "cab_local"
    assert by_name["local_lra__ns"].mechanism == "lra_local"
    assert {vector.status for vector in vectors} == {"matched"}


@pytest.mark.parametrize(
    "case, expected",
    [("local", "local"), ("local_lra", "lra_local"), ("local_window", "local"), ("s4d", "s4d"), ("new", "new")],
)
def test_a_case_belongs_to_the_mechanism_it_is_named_after(case, expected):
    assert gallery.owner(case, {"local", "lra_local", "s4", "s4d"}) == expected


def test_pages_that_are_missing_changed_or_left_over_are_out_of_date(tmp_path):
    made = {"index.md": "all\n", "linear.md": "new\n", "local.md": "same\n"}
    for name, text in {"linear.md": "old\n", "local.md": "same\n", "gone.md": "what\n"}.items():
        (tmp_path / name).write_text(text)
    assert gallery.outdated(made, tmp_path) == ["gone.md", "index.md", "linear.md"]


def test_check_fails_with_a_sentence_until_the_pages_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "pages", lambda: {"index.md": "all\n", "linear.md": "new\n"})
    (tmp_path / "gone.md").write_text("what\n")
    assert gallery.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "Out of date: gone.md, index.md, linear.md; run: python docs/make_gallery.py\n"
    assert gallery.main([], tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.md", "linear.md"]
    assert gallery.main(["--check"], tmp_path) == 0
    assert gallery.main(["--chekc"], tmp_path) == 2


def test_a_mechanism_that_cannot_be_imported_ends_it_with_a_sentence(tmp_path, monkeypatch, capsys):
    problem = {"kind": "attentions", "name": "bent", "sentence": "The attention bent could not be imported."}
    monkeypatch.setattr(gallery, "catalogue", lambda kinds: {"attentions": [], "tasks": [], "problems": [problem]})
    assert gallery.main([], tmp_path) == 2
    assert problem["sentence"] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_broken_promise_is_shown_with_its_reason_and_machine():
    lines = [
        {"promise": "shape", "status": "kept", "detail": "right"},
        {"promise": "padding", "status": "broken", "detail": "off by 2 | 3"},
        {"promise": "decoding", "status": "not applicable", "detail": "not causal"},
    ]
    sound = [{**line, "status": "kept"} if line["status"] == "broken" else line for line in lines]
    results = {
        "cpu float32": [{"pattern": "noncausal_self", "promises": sound}],
        "gpu bfloat16": [{"pattern": "noncausal_self", "promises": lines}],
    }
    entry = describe("attentions", "fnet")
    one = gallery.Exhibit(entry, states={}, parameters=0, recorded=(), unshipped=False, results=results)
    text = gallery.page(one, [])
    assert "| shape | kept |" in text
    assert "| padding | **broken** |" in text
    assert "| decoding | – |" in text
    assert "- **padding**, NS, gpu bfloat16: off by 2 &#124; 3" in text
    assert "cpu float32, gpu bfloat16" in text
