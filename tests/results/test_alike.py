"""A board never averages unlike things: other code, other settings, another precision, other data."""

import json
import statistics
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import tasks
from longspan.analysis.cards import Evidence
from longspan.results import card as cards
from longspan.results.alike import alike
from longspan.results.board import board
from longspan.results.render import FORMS, render
from longspan.results.run_settings import MOST_LETTERS, decisive, difference
from longspan.results.store import Store, newest
from tests.results.factory import make_card, make_core, make_probe

OLD, NEW = "2026-01-02T03:04:05Z", "2026-02-02T03:04:05Z"
ONE, OTHER = {"mechanism_sha256": "a" * 64}, {"mechanism_sha256": "b" * 64}


def run(mechanism="mine.py:Mine", task="listops", *, recipe=None, data=None, **fields):
    """A card with single settings changed; keywords that are not card fields are settings."""
    settings = {name: fields.pop(name) for name in ("mechanism_sha256", "precision", "device") if name in fields}
    card = make_card(mechanism, task, sealed=False, **fields)
    card["settings"] |= settings | {"recipe": card["settings"]["recipe"] | (recipe or {})}
    card["dataset"] |= {"sha256": data or card["dataset"]["sha256"]}
    return cards.seal(card)


def starter(*given, **how):
    return board(given, "lra-generated", "longspan", "smoke", **how)


def values(view, task="listops"):
    return {row.mechanism: row.cells[task].value for row in view.rows}


def reasons(view):
    return [one.reason for one in view.off]


# ------------------------------------------------------------------------------------------------------- what differs


def test_two_files_of_one_name_are_not_averaged():
    """`mine.py:Mine` and `other/mine.py:Mine` are both written `mine.py:Mine` on their cards."""
    here = run(**ONE, seed=0, accuracy=0.3, created=OLD)
    there = run(**OTHER, seed=1, accuracy=0.5, created=NEW)
    view = starter(here, there)
    assert values(view) == {"mine.py:Mine": 0.5}
    assert reasons(view) == [f"other code of mine.py:Mine (source {'a' * 12}, the board shows {'b' * 12})"]


def test_an_edited_file_supersedes_nothing_and_reverting_finds_its_card_again(tmp_path):
    store = Store(tmp_path)
    before, after = run(**ONE, accuracy=0.3, created=OLD), run(**OTHER, accuracy=0.5, created=NEW)
    for card in (before, after):
        store.add(card)
    assert [card["settings"]["mechanism_sha256"][0] for card in store.cards()] == ["a", "b"]
    assert values(starter(*store.cards())) == {"mine.py:Mine": 0.5}
    reverted = run(**ONE, seed=1, accuracy=0.4, created="2026-03-02T03:04:05Z")
    assert values(starter(*store.cards(), reverted))["mine.py:Mine"] == pytest.approx(0.35)


def test_an_average_over_tasks_is_of_one_code():
    old = [run(task=task, **ONE, created=OLD) for task in ("listops", "pathfinder")]
    assert starter(*old).rows[0].rank == 1
    (row,) = starter(*old, run(task="pathfinder", **OTHER, created=NEW)).rows
    assert (row.cells["listops"].status, row.cells["pathfinder"].status) == ("missing", "ok")
    assert (row.rank, [mean.value for mean in row.averages.values()]) == (None, [None])


def test_an_edited_recipe_is_listed_with_the_setting_that_differs():
    before = run(recipe={"learning_rate": 0.05}, seed=0, accuracy=0.3, created=OLD)
    after = run(recipe={"learning_rate": 0.03}, seed=1, accuracy=0.5, created=NEW)
    view = starter(before, after)
    assert values(view) == {"mine.py:Mine": 0.5}
    assert reasons(view) == ["recipe.learning_rate 0.05, the board shows 0.03"]
    assert len(newest([before, run(recipe={"learning_rate": 0.03}, created=NEW)])) == 2


def test_rows_by_two_recipes_do_not_share_a_board():
    before = run("linear", recipe={"learning_rate": 0.05}, accuracy=0.9, created=OLD)
    after = run("softmax", recipe={"learning_rate": 0.03}, accuracy=0.5, created=NEW)
    assert list(values(starter(before, after))) == ["softmax"]
    free = run("linear", recipe={"learning_rate": 0.05}, created=OLD, track="free")
    assert [row.mechanism for row in starter(free, after).free] == ["linear"]  # the free track allows any recipe


def test_precisions_are_not_averaged_and_devices_are():
    single = run(precision="fp32", seed=0, accuracy=0.3, created=OLD)
    half = run(precision="bf16", seed=1, accuracy=0.5, created=NEW)
    view = starter(single, half, run(precision="bf16", device="cuda", seed=2, accuracy=0.5, created=OLD))
    assert values(view) == {"mine.py:Mine": 0.5}
    assert view.rows[0].cells["listops"].seeds == 2
    assert reasons(view) == ["precision fp32, the board shows bf16"]
    notes = starter(single, run("softmax", precision="bf16")).notes
    assert any("different precisions (bf16, fp32)" in note for note in notes)


def test_data_sets_are_not_averaged_within_a_row_and_noted_between_rows():
    view = starter(run(data="1" * 64, seed=0, created=OLD), run(data="2" * 64, seed=1, created=NEW))
    assert view.rows[0].cells["listops"].seeds == 1
    assert reasons(view) == [f"other data (hash {'1' * 12}, the board shows {'2' * 12})"]
    view = starter(run("softmax", data="1" * 64), run("linear", data="2" * 64))
    assert len(view.rows) == 2
    assert any("different data sets" in note for note in view.notes)


def official_run(mechanism, accuracy, **fields):
    """A card with the settings that the protocol has."""
    rules = tasks.get("listops").protocol("longspan", "smoke")
    found = run(mechanism, accuracy=accuracy, **fields)
    return found | {"settings": found["settings"] | json.loads(json.dumps(asdict(rules)))}


def test_a_newer_card_of_other_settings_or_of_no_version_there_is_puts_no_others_off_the_board():
    ours = [official_run("softmax", 0.4, seed=seed, created=OLD) for seed in range(2)]
    changed = official_run("linear", 0.3, created=NEW)
    changed["settings"]["recipe"]["batch_size"] = 64
    tomorrow = official_run("linear", 0.3, created=NEW, task_version=999)
    for newer, why in ((changed, "recipe.batch_size 64, the protocol has 16"), (tomorrow, "version 999 of the task")):
        view = starter(*ours, newer)
        assert values(view) == {"softmax": 0.4}
        assert [why in reason for reason in reasons(view)] == [True]
    assert list(values(starter(tomorrow))) == ["linear"]


def test_a_card_that_hides_an_override_is_on_no_board_even_alone():
    changed = official_run("linear", 0.3)
    changed["settings"]["recipe"]["batch_size"] = 64
    view = starter(changed)
    assert not values(view)
    assert reasons(view) == ["settings were changed without saying so: recipe.batch_size 64, the protocol has 16"]
    (told,) = reasons(starter(changed | {"overrides": {"recipe.batch_size": 64}}))
    assert told == "settings were overridden: recipe.batch_size=64"


def test_a_seed_counts_once_whichever_way_the_same_data_came():
    downloaded = [run(seed=seed, accuracy=0.4 + 0.1 * seed, variant="official", created=OLD) for seed in range(2)]
    own_copy = run(seed=1, accuracy=0.6, variant="imported", created=NEW)
    view = starter(*downloaded, own_copy)
    assert view.rows[0].cells["listops"].seeds == 2
    assert values(view) == {"mine.py:Mine": pytest.approx(0.5)}
    assert reasons(view) == ["another run of the seed is newer"]


def test_a_cell_is_of_one_form_of_a_mechanism_and_that_of_the_protocol_comes_first():
    """A run of plain lra_local is in the row of the forms that the protocol has for each task."""
    form = run("lra_local(block=64)", preset="local", accuracy=0.4, created=OLD)
    plain = run("lra_local", seed=1, accuracy=0.9, created=NEW)
    view = starter(form, plain)
    assert values(view) == {"lra_local": 0.4}
    assert reasons(view) == ["run as lra_local, the board shows lra_local(block=64)"]
    elsewhere = run("lra_local", "pathfinder", preset="local", accuracy=0.7)
    assert values(starter(form, elsewhere), "pathfinder") == {"lra_local": 0.7}


def test_an_old_card_has_later_settings_at_their_first_value():
    old, new = run(seed=0, created=OLD), run(recipe={"optimizer": "adamw", "power": 1}, seed=1, created=NEW)
    assert starter(old, new).rows[0].cells["listops"].seeds == 2
    other = run(recipe={"optimizer": "adafactor"}, seed=1, created=NEW)
    assert reasons(starter(old, other)) == ["recipe.optimizer adamw, the board shows adafactor"]
    assert len(newest([old, run(recipe={"optimizer": "adamw"}, created=NEW)])) == 1


def test_outputs_within_the_tolerance_are_one_code_and_supersede():
    def built_in(number, **fields):
        card = make_card("softmax", sealed=False, **fields)
        prints = {"noncausal_self": {"output": [number], "gradient": [1.0]}}
        code = {"mechanism_version": 1, "mechanism_fingerprint": prints}
        return cards.seal(card | {"settings": card["settings"] | code})

    assert len(newest([built_in(0.5, created=OLD), built_in(0.5 + 1e-6, created=NEW)])) == 1
    changed = [built_in(0.5, created=OLD), built_in(0.6, created=NEW, seed=1)]
    assert len(newest([changed[0], built_in(0.6, created=NEW)])) == 2
    assert reasons(starter(*changed)) == ["other code of softmax (its outputs differ from those of the card shown)"]


def test_an_installed_package_is_told_apart_by_source_though_its_name_looks_built_in():
    view = starter(run("theirs", **ONE, seed=0, created=OLD), run("theirs", **OTHER, seed=1, created=NEW))
    assert view.rows[0].cells["listops"].seeds == 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_lists_what_differs(form):
    view = starter(run(recipe={"steps": 9}, seed=0, created=OLD), run(recipe={"steps": 8}, seed=1, created=NEW))
    text = render(view, form)
    if form != "csv":  # csv has one line per cell of the board, and nothing else
        assert "recipe.steps 9, the board shows 8" in text.replace("\n", " ")


def test_seeds_that_are_off_for_one_reason_share_a_line():
    old = [run(recipe={"steps": 9}, seed=seed, created=OLD) for seed in range(3)]
    text = render(starter(*old, run(recipe={"steps": 8}, created=NEW)), "markdown")
    assert "Off the board: Mine.Py:Mine on listops, seeds 0, 1, 2 (recipe.steps 9, the board shows 8)." in text


def test_what_differs_is_told_in_bounded_length():
    long = {f"recipe.{'x' * 400}{n}": "y" * 9000 for n in range(50)}
    words = difference(long, {})
    assert words is not None
    assert len(words) < 3 * (2 * MOST_LETTERS + 40) + 40
    assert words.endswith("47 more settings differ")
    assert difference(long, long) is None


@given(st.lists(st.sampled_from(["code", "recipe", "precision", "data"]), min_size=1, max_size=8), st.randoms())
def test_what_is_kept_agrees_in_everything_and_nothing_is_lost(changes, random):
    given_cards = [
        run(
            seed=seed,
            created=f"2026-01-{seed + 1:02}T00:00:00Z",
            mechanism_sha256=("b" if change == "code" else "a") * 64,
            recipe={"steps": 9 if change == "recipe" else 8},
            precision="bf16" if change == "precision" else "fp32",
            data=("2" if change == "data" else "1") * 64,
        )
        for seed, change in enumerate(changes)
    ]
    random.shuffle(given_cards)
    kept, others = alike(given_cards)
    assert len(kept) + len(others) == len(given_cards)
    assert len({(c["settings"]["precision"], c["dataset"]["sha256"], *decisive(c).items()) for c in kept}) == 1
    assert max(given_cards, key=lambda card: card["created"]) in kept


def test_committed_cards_have_the_settings_that_their_protocols_have_today():
    """A setting added later is named in LATER; a changed one raises the version of its task."""
    for folder in sorted(Path(__file__).parents[2].glob("results/*/cards")):
        for card in Store(folder).cards(superseded=True):
            task = tasks.get(card["task"])
            if card["task_version"] != task.meta.version:
                continue
            protocol = task.protocol(card["protocol"], card["tier"]).override(card["overrides"])
            today = {"settings": json.loads(json.dumps(asdict(protocol)))}
            assert difference(decisive(card), decisive(today)) is None, card["task"]


# ----------------------------------------------------------------------------------------------------------- the future


def test_a_card_dated_in_the_future_supersedes_nothing(tmp_path):
    store = Store(tmp_path)
    for card in (run(accuracy=0.4, created=NEW), run(accuracy=0.9, created="2999-01-01T00:00:00Z")):
        store.add(card)
    assert [card["score"]["value"] for card in store.cards()] == [0.4]
    assert [card["score"]["value"] for card in store.cards(superseded=True)] == [0.9, 0.4]


@pytest.mark.parametrize("created", ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
def test_a_card_dated_in_the_future_decides_neither_code_nor_settings_nor_version(created):
    now = run(**ONE, seed=0, accuracy=0.4, created=NEW)
    for later in (
        run(**OTHER, seed=1, created=created),
        run(**ONE, recipe={"steps": 9}, seed=1, created=created),
        run(**ONE, precision="bf16", seed=1, created=created),
        run(**ONE, data="3" * 64, seed=1, created=created),
        run(**ONE, task_version=2, seed=1, created=created),
    ):
        view = starter(now, later)
        assert values(view) == {"mine.py:Mine": 0.4}
        assert len(view.off) == 1


def test_a_clock_that_is_a_little_ahead_is_forgiven():
    ahead = (datetime.now(UTC) + timedelta(minutes=2)).isoformat(timespec="seconds")
    assert [card["created"] for card in newest([run(created=NEW), run(created=ahead)])] == [ahead]


@pytest.mark.parametrize(
    "created", ["2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-02T03:04:05Z\n"]
)
def test_what_is_no_moment_is_refused(created):
    with pytest.raises(cards.InvalidCard):
        cards.validate(make_card(created=created))


def test_the_first_year_of_all_sorts_like_any_other():
    assert [card["created"] for card in newest([run(created="0001-01-01T00:00:00Z"), run(created=NEW)])] == [NEW]


# ------------------------------------------------------------------------------------------------------------- analyses


def test_analyses_read_the_newest_code_and_settings_only():
    old, new = run(**ONE, seed=0, created=OLD), run(**OTHER, seed=1, created=NEW)
    probes = [make_probe(run=old), make_probe(run=new)]
    evidence = Evidence.of([old, new], probes, [])
    assert evidence.runs == [new]
    assert [card["subject"]["card"] for card in evidence.asked("span")] == [new["sha256"]]
    assert statistics.fmean(card["seed"] for card in evidence.runs) == 1


def test_measurements_of_an_edited_plug_in_are_not_joined():
    def timed(mechanism, source, lengths, created):
        code = {"version": "0.1.0", "commit": None, "dirty": None, "mechanism_sha256": source * 64}
        return make_core(mechanism, dict.fromkeys(lengths, 1e-5), code=code, created=created)

    old, new = timed("mine.py:Mine", "a", (256, 512), OLD), timed("mine.py:Mine", "b", (1024, 2048), NEW)
    evidence = Evidence.of([], [], [old, new])
    assert (evidence.measurements, evidence.earlier) == ([new], [old])
    built_in = [timed("softmax", "a", (256, 512), OLD), timed("softmax", "b", (1024, 2048), NEW)]
    assert Evidence.of([], [], built_in).measurements == built_in
    same = [timed("mine.py:Mine", source, (256,), created) for source, created in (("a", OLD), ("b", NEW))]
    assert len(newest(same)) == 2
