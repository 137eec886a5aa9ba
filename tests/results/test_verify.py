"""`verify` finds what is wrong with a card and its files, whatever they contain, and never raises."""

import json
import re
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.results import card as cards
from longspan.results.predictions import labels_digest, score_of
from longspan.results.shipped import shipped_cards
from longspan.results.store import Store
from longspan.results.verify import CardCheck, verify
from tests.results.factory import make_card, write_predictions

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
RESULTS = Path(__file__).parents[2] / "results"


KEPT = {"card": "kept", "files": "kept", "numbers": "kept", "settings": "not applicable", "labels": "not applicable"}
KEPT |= {"score": "kept"}


def stored(tmp_path, correct=800, **fields):
    """A card claiming 800 of 2000 beside predictions with `correct` hits."""
    write_predictions(tmp_path / "p.npz", correct, 2000)
    return cards.write(tmp_path / "card.json", make_card(accuracy=0.4, files={"predictions": "p.npz"}, **fields))


def statuses(findings: list[CardCheck]) -> dict[str, str]:
    return {finding.check: finding.status for finding in findings}


def test_verify_recomputes_the_score(tmp_path):
    findings = verify(stored(tmp_path))
    assert statuses(findings) == KEPT
    assert "0.400000 recomputed from 2000" in findings[-1].detail


def test_verify_catches_a_score_the_predictions_do_not_give(tmp_path):
    findings = verify(stored(tmp_path, correct=799))
    assert statuses(findings)["score"] == "broken"
    assert "the predictions give 0.399500" in findings[-1].detail


def test_verify_names_missing_files(tmp_path):
    path = stored(tmp_path)
    (tmp_path / "p.npz").unlink()
    assert statuses(verify(path)) == KEPT | {"files": "broken", "score": "broken"}


def test_weights_may_lie_elsewhere_since_no_number_comes_from_them(tmp_path):
    path = cards.write(tmp_path / "card.json", make_card(files={"weights": "w.safetensors"}))
    found = {finding.check: finding for finding in verify(path)}
    assert found["files"].status == "kept"
    assert found["files"].detail == "0 present, 0 with the hash of the card; the weights are not"


def test_samples_may_lie_elsewhere_too_but_not_be_others(tmp_path):
    here = {"samples": "s.npz"}
    path = cards.write(tmp_path / "card.json", make_card(files=here, files_sha256={"samples": "0" * 64}))
    found = {finding.check: finding for finding in verify(path)}
    assert (found["files"].status, found["samples"].status) == ("kept", "not applicable")
    assert found["files"].detail == "0 present, 0 with the hash of the card; the samples are not"
    (tmp_path / "s.npz").write_bytes(b"others")
    assert statuses(verify(path)) == KEPT | {"files": "broken", "score": "not applicable", "samples": "broken"}


def test_verify_says_what_cannot_be_checked(tmp_path):
    path = cards.write(tmp_path / "card.json", make_card(status="fail"))
    assert statuses(verify(path)) == KEPT | {"files": "not applicable", "score": "not applicable"}


def test_verify_stops_at_a_corrupt_card(tmp_path):
    (tmp_path / "card.json").write_bytes(b"{}")
    assert statuses(verify(tmp_path / "card.json")) == {"card": "broken"}


def test_pickled_predictions_are_never_loaded(tmp_path):
    path = stored(tmp_path)
    trap = np.array([object()], dtype=object)
    np.savez(tmp_path / "p.npz", label=trap, prediction=trap)
    assert statuses(verify(path))["score"] == "broken"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x80\x04K*."])
def test_garbage_in_place_of_predictions_is_a_finding(content, tmp_path):
    path = stored(tmp_path)
    (tmp_path / "p.npz").write_bytes(content)
    assert statuses(verify(path))["score"] == "broken"


# ------------------------------------------------------------------------------------------------- hostile predictions

LABEL = np.arange(2000) % 10
RIGHT = np.where(np.arange(2000) < 800, LABEL, (LABEL + 1) % 10)


def with_arrays(tmp_path, score="accuracy", value=0.4, **arrays):
    """What `verify` says about the score of a card with these predictions beside it."""
    np.savez(tmp_path / "p.npz", **arrays)
    return of_score(tmp_path, score, value)


def of_score(tmp_path, score="accuracy", value=0.4):
    card = make_card(sealed=False, files={"predictions": "p.npz"})
    card["score"] |= {"name": score, "value": value, "higher_is_better": score == "accuracy"}
    card["metrics"]["test"][score] = {"value": value, "count": 2000}
    path = cards.write(tmp_path / "card.json", card)
    return {finding.check: finding for finding in verify(path)}["score"]


def test_a_score_over_categories_is_the_mean_of_their_means(tmp_path):
    """Two categories with 6, 8 and 10: (mean(6, 8) + 10) / 2 = 8.5, not 8."""
    values = np.array([6.0, 8.0, 10.0])
    for category in (np.array([4, 4, 1]), np.array(["sofa", "sofa", "lamp"])):
        np.savez(tmp_path / "p.npz", chamfer=values, category=category, row=np.arange(3))
        assert score_of(tmp_path / "p.npz", "chamfer") == (8.5, 3, 3)
        np.savez(tmp_path / "p.npz", chamfer=values[::-1], category=category[::-1], row=np.arange(3)[::-1])
        assert score_of(tmp_path / "p.npz", "chamfer") == (8.5, 3, 3)
    for category in (np.array([0.5, 0.5, 1.0]), np.array([4, 1]), np.array([[4, 4, 1]])):
        found = with_arrays(tmp_path, "chamfer", 8.5, chamfer=values, category=category)
        assert (found.status, "category must be one word or integer" in found.detail) == ("broken", True)


def test_a_score_that_is_a_ratio_of_sums_comes_from_the_sums_of_the_rows(tmp_path):
    """Costs 1 and 2 over 3 and 2 frames: 0.6, not the mean of the clips."""
    np.savez(tmp_path / "p.npz", mcd_cost=np.array([1.0, 2.0]), made_frames=np.array([3, 2]))
    assert score_of(tmp_path / "p.npz", "mcd") == (0.6, 2, 2)
    np.savez(tmp_path / "p.npz", wer_sum=np.array([1.0, 2.0]), wer_count=np.array([3, 2]))
    assert score_of(tmp_path / "p.npz", "wer") == (0.6, 2, 2)
    found = with_arrays(tmp_path, "wer", 0.6, wer_sum=np.ones(2), wer_count=np.zeros(2))
    assert (found.status, "add up to more than 0" in found.detail) == ("broken", True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", ["mse", "perplexity"])
def test_a_prediction_that_is_not_finite_is_broken_whatever_the_card_says(metric, bad, tmp_path):
    values = np.ones(2000)
    values[7] = bad
    arrays = {"mse": values} if metric == "mse" else {"nats": values, "tokens": np.ones(2000, int)}
    found = with_arrays(tmp_path, metric, 1.0, **arrays)
    assert found.status == "broken"
    assert "NaN or infinite" in found.detail


@pytest.mark.parametrize(
    "label, said",
    [
        (LABEL.astype(str), "holds text"),
        (LABEL.astype("S1"), "holds text"),
        (LABEL.astype("datetime64[s]"), "holds dates"),
        (LABEL.astype("timedelta64[s]"), "holds time spans"),
        (LABEL.astype(complex), "holds complex numbers"),
        (LABEL.astype(bool), "holds truth values"),
        (LABEL.astype(float), "must hold integers"),
        (LABEL.astype([("a", "<i8")]), "not an array of numbers"),
        (LABEL.reshape(20, 100), "2 dimensions"),
        (np.array(3), "0 dimensions"),
        (LABEL[:0], "0 entries"),
        (LABEL[:1999], "1999"),
        (np.full(2000, 2**64 - 1, np.uint64), "must hold integers"),
    ],
    ids=lambda value: "" if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
def test_labels_that_are_no_row_of_integers_are_broken(label, said, tmp_path):
    found = with_arrays(tmp_path, label=label, prediction=RIGHT)
    assert found.status == "broken"
    assert said in found.detail


@pytest.mark.parametrize("row", [np.zeros(2000, int), np.arange(1, 2001), np.arange(1999), np.arange(2000.0)])
def test_rows_that_are_not_each_named_once_are_broken(row, tmp_path):
    assert with_arrays(tmp_path, label=LABEL, prediction=RIGHT, row=row).status == "broken"


def test_rows_may_come_in_any_order(tmp_path):
    order = np.random.default_rng(0).permutation(2000)
    assert with_arrays(tmp_path, label=LABEL[order], prediction=RIGHT[order], row=order).status == "kept"


@pytest.mark.parametrize("tokens", [np.full(2000, -1), np.zeros(2000, int), np.full(2000, 2**62), np.ones(2000)])
def test_tokens_that_are_no_counts_are_broken(tokens, tmp_path):
    assert with_arrays(tmp_path, "perplexity", 1.0, nats=np.ones(2000), tokens=tokens).status == "broken"


def test_a_subset_of_the_test_split_is_broken(tmp_path):
    """The score of the easiest 1,000 examples, with a card that counts 1,000."""
    np.savez(tmp_path / "p.npz", label=LABEL[:1000], prediction=RIGHT[:1000])
    card = make_card(sealed=False, accuracy=0.8, count=1000, files={"predictions": "p.npz"})
    card["dataset"]["counts"]["test"] = 2000
    found = {finding.check: finding for finding in verify(cards.write(tmp_path / "card.json", card))}["score"]
    assert found.status == "broken"
    assert "1000 rows were scored, the test split has 2000" in found.detail


def npy(header: str, content: bytes = b"") -> bytes:
    line = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + content


def test_an_array_of_a_quadrillion_elements_is_refused_before_it_is_allocated(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        huge = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }", b"\0" * 64)
        archive.writestr("label.npy", huge)
        archive.writestr("prediction.npy", huge)
    tracemalloc.start()
    found = of_score(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.status == "broken"
    assert "1000000000000000 entries" in found.detail
    assert peak < 50e6


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (8, 1000000000), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (8,), }",
        "{'descr': '<i7', 'fortran_order': False, 'shape': (8,), }",
        "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (8,), }",
        "__import__('os').system('true')",
        "[" * 100,
        "",
    ],
)
def test_a_header_numpy_would_not_write_is_refused(header, tmp_path):
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        for name in ("label", "prediction"):
            archive.writestr(f"{name}.npy", npy(header, b"\0" * 64))
    assert of_score(tmp_path).status == "broken"


def test_archives_that_numpy_would_not_write_are_refused(tmp_path):
    sound = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", b"\0" * 16)
    kinds = {
        "two members of one name": (["label.npy", "label.npy"], zipfile.ZIP_STORED),
        "members that are not arrays": (["label.npy", "../label.npy"], zipfile.ZIP_STORED),
        "compressed in a way": (["label.npy"], zipfile.ZIP_LZMA),
        "members)": ([f"a{number}.npy" for number in range(100)], zipfile.ZIP_STORED),
    }
    for said, (members, compression) in kinds.items():
        with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "p.npz", "w", compression) as archive:
            warnings.simplefilter("ignore")  # about two members of one name
            for name in members:
                archive.writestr(name, sound)
        found = of_score(tmp_path)
        assert found.status == "broken"
        assert said in found.detail


def test_an_archive_that_unpacks_to_gigabytes_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("label.npy", b"\0")
    content = bytearray((tmp_path / "p.npz").read_bytes())
    place = content.index(b"PK\x01\x02") + 24  # the claimed size of a member, in the zip directory
    content[place : place + 4] = (2**31).to_bytes(4, "little")
    (tmp_path / "p.npz").write_bytes(content)
    found = of_score(tmp_path)
    assert found.status == "broken"
    assert "more than such a file can need" in found.detail


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_bytes_changed_anywhere_in_the_predictions_are_a_finding_or_harmless(data, tmp_path):
    np.savez_compressed(tmp_path / "p.npz", label=LABEL, prediction=RIGHT, row=np.arange(2000))
    content = bytearray((tmp_path / "p.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    (tmp_path / "p.npz").write_bytes(content)
    assert of_score(tmp_path).status in ("kept", "broken")


# ------------------------------------------------------------------------------------- labels, files and contradictions


def test_labels_that_are_not_the_datasets_are_broken(tmp_path):
    """Predictions compared with themselves reach 100 %, and score and predictions agree."""
    np.savez(tmp_path / "p.npz", label=RIGHT, prediction=RIGHT)
    card = make_card(sealed=False, accuracy=1.0, files={"predictions": "p.npz"})
    card["dataset"]["labels_sha256"] = labels_digest(LABEL)
    found = statuses(verify(cards.write(tmp_path / "card.json", card)))
    assert found["score"] == "kept"
    assert found["labels"] == "broken"


def test_labels_of_the_dataset_are_kept_whatever_integers_hold_them(tmp_path):
    np.savez(tmp_path / "p.npz", label=LABEL.astype(np.uint8), prediction=RIGHT.astype(np.int16))
    card = make_card(sealed=False, files={"predictions": "p.npz"})
    card["dataset"]["labels_sha256"] = labels_digest(LABEL.astype(">i4"))
    assert statuses(verify(cards.write(tmp_path / "card.json", card)))["labels"] == "kept"


def of_labels(tmp_path, arrays, **fields):
    """What `verify` finds for a card of the labels LABEL beside these arrays."""
    np.savez(tmp_path / "p.npz", **arrays)
    card = make_card(sealed=False, files={"predictions": "p.npz"}, **fields)
    card["dataset"]["labels_sha256"] = labels_digest(LABEL)
    return statuses(verify(cards.write(tmp_path / "card.json", card)))


def test_an_accuracy_beside_known_labels_comes_from_nothing_else(tmp_path):
    arrays = {"label": LABEL, "prediction": RIGHT, "accuracy": np.ones(2000)}
    assert of_labels(tmp_path, arrays, accuracy=1.0)["score"] == "broken"
    assert of_labels(tmp_path, arrays, accuracy=0.4)["score"] == "kept"


@pytest.mark.parametrize(("chance", "status"), [(None, "broken"), (0.0, "broken"), (0.0999, "broken"), (0.1, "kept")])
def test_chance_is_at_least_the_share_of_the_most_frequent_label(chance, status, tmp_path):
    """With a lower one, a model that always gives the same answer would be above chance."""
    found = of_labels(tmp_path, {"label": LABEL, "prediction": RIGHT}, accuracy=0.4, chance=chance)
    assert (found["labels"], found["score"]) == (status, "kept")


def test_a_file_that_was_replaced_is_broken(tmp_path):
    predictions = write_predictions(tmp_path / "p.npz", 800, 2000)
    path = Store(tmp_path / "cards").add(make_card(), files={"predictions": predictions})
    beside = path.parent / cards.read(path)["files"]["predictions"]
    np.savez(beside, label=LABEL, prediction=RIGHT)  # the same score
    found = statuses(verify(path))
    assert (found["files"], found["score"]) == ("broken", "kept")


CONTRADICTIONS = {
    "the metrics say": lambda card: card["metrics"]["test"]["accuracy"].update(value=0.3),
    "not among the metrics": lambda card: card["metrics"]["test"].pop("accuracy"),
    "of 1999": lambda card: card["metrics"]["test"]["accuracy"].update(count=1999),
    "not on the learning curve": lambda card: card.update(selected_step=123),
    "goes to step 500 of 400": lambda card: card["settings"]["recipe"].update(steps=400),
    "do not increase": lambda card: card["curve"].reverse(),
    "the validation accuracy of step 500": lambda card: card["metrics"]["valid"]["accuracy"].update(value=0.9),
    "parameters are": lambda card: card["parameters"].update(ratio=0.5),
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_a_card_that_contradicts_itself_is_broken(said, tmp_path):
    card = make_card(sealed=False)
    CONTRADICTIONS[said](card)
    found = {finding.check: finding for finding in verify(cards.write(tmp_path / "card.json", card))}
    assert found["numbers"].status == "broken"
    assert said in found["numbers"].detail


def test_a_run_that_died_without_a_size_is_no_exception(tmp_path):
    size = make_card()["parameters"] | {"total": None}
    card = make_card(status="fail", sealed=False) | {"parameters": size}
    path = cards.write(tmp_path / "card.json", card)
    assert statuses(verify(path))["numbers"] == "kept"


def committed():
    """Cards of listops without overrides, of the fixed track, that come with the package."""
    return next(
        card
        for card in shipped_cards()
        if card["kind"] == "run" and (card["task"], card["track"]) == ("listops", "fixed") and not card["overrides"]
    )


def of_settings(tmp_path, changed=None, **fields):
    card = json.loads(json.dumps({**committed(), **fields, "files": {}, "files_sha256": {}}))
    del card["sha256"]
    card["settings"]["recipe"] |= changed or {}
    found = verify(cards.write(tmp_path / "card.json", card))
    return next(one for one in found if one.check == "settings")


def test_a_setting_that_was_changed_must_be_declared(tmp_path):
    """Else a run with four times the steps stands among those of the protocol."""
    steps = {"steps": 4 * committed()["settings"]["recipe"]["steps"]}
    hidden = of_settings(tmp_path, steps)
    assert hidden.status == "broken"
    assert re.fullmatch(r"not among the overrides: recipe.steps \d+, the protocol has \d+", hidden.detail)
    assert of_settings(tmp_path, steps, overrides={"recipe.steps": steps["steps"]}).status == "kept"
    assert of_settings(tmp_path).status == "kept"
    assert of_settings(tmp_path, {"a_setting_of_tomorrow": 1}).status == "not applicable"
    for unknown in ({"task_version": 99}, {"protocol": "mine"}, {"task": "mine.py:Mine"}):
        assert of_settings(tmp_path, steps, **unknown).status == "not applicable"


def test_every_committed_card_is_sound():
    paths = sorted(RESULTS.glob("*/cards/*/*.json"))
    assert paths
    for path in paths:
        assert [finding for finding in verify(path) if finding.status == "broken"] == [], path


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(content=st.binary(max_size=300) | st.from_regex(rb'\{"schema":1,"kind":"run".*\}', fullmatch=True))
def test_any_file_at_all_gets_a_verdict(content, tmp_path):
    (tmp_path / "card.json").write_bytes(content)
    assert statuses(verify(tmp_path / "card.json")) == {"card": "broken"}
