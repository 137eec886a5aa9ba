"""The public function of the checker: what it accepts, what it refuses, and what it returns."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from longspan import attentions
from longspan.attentions import Pattern
from longspan.cli import app
from longspan.conformance import check, table
from longspan.conformance.counting import count
from longspan.conformance.promises import FIRST, PROMISES
from longspan.conformance.report import Report
from longspan.core.errors import UnknownName, UnsupportedPattern, UsageError
from tests.conformance.one_promise import ask, asking_only
from tests.conformance.right import Plain

MINE = Path(__file__).parents[2] / "docs" / "my_attention.py"


def test_a_strangers_file_of_25_lines_keeps_every_promise_in_full():
    assert len(MINE.read_text().splitlines()) <= 25
    reports = check(f"{MINE}:Mine", profile="full")
    assert [report.pattern for report in reports] == ["noncausal_self", "causal_self"]
    assert all(report.ok for report in reports), [report.broken for report in reports]


@pytest.fixture(scope="module")
def report() -> Report:
    (report,) = check(Plain, [Pattern.NONCAUSAL_SELF], profile="quick", seed=3)
    return report


@pytest.fixture
def few():
    with asking_only("shape and dtype", "no future leak", "gradcheck"):
        yield


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("asked", ["softmax", attentions.get("softmax"), attentions.get("softmax").cls])
def test_a_mechanism_is_named_by_string_factory_or_class(asked):
    (report,) = check(asked, ["NS"], profile="quick")
    assert report.ok
    assert report.pattern == "noncausal_self"


def test_a_report_is_plain_json(report):
    said = json.loads(json.dumps(report.to_json()))
    assert list(said) == ["mechanism", "pattern", "device", "dtype", "profile", "ok", "promises"]
    assert [p["promise"] for p in said["promises"]] == [FIRST.name, *(p.name for p in PROMISES)]
    assert {p["status"] for p in said["promises"]} <= {"kept", "broken", "not applicable"}
    assert all(p["detail"] for p in said["promises"])


def test_names_and_sentences_of_promises_are_there_and_unique():
    names = [promise.name for promise in (FIRST, *PROMISES)]
    assert len(set(names)) == len(names)
    assert all(promise.sentence.endswith(".") and ". " not in promise.sentence for promise in (FIRST, *PROMISES))


def test_every_promise_is_explained_in_the_terminal():
    answer = CliRunner().invoke(app, ["check", "--explain"], env={"COLUMNS": "400"})
    assert answer.exit_code == 0, answer.output
    assert all(promise.name in answer.output and promise.sentence in answer.output for promise in (FIRST, *PROMISES))


@pytest.mark.full
def test_the_same_seed_finds_the_same_and_leaves_torch_as_it_was():
    assert_found_again()


@pytest.mark.usefixtures("few")
def test_the_same_seed_finds_the_same_under_the_first_promises():
    assert_found_again()


def assert_found_again():
    state = torch.random.get_rng_state()
    first, second = (check(Plain, ["CS"], profile="quick", seed=5) for _ in range(2))
    assert first == second
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.full)])
def test_another_precision_can_be_asked_for(dtype):
    (report,) = check(Plain, ["CS"], profile="quick", dtype=dtype)
    assert report.ok, report.broken
    assert report.dtype == dtype


class RoundedLikeSingle(Plain):
    """Right in float32, and no better than that in float64."""

    meta = replace(Plain.meta, exact=True)

    def attend(self, q, k, v, **masks):
        return super().attend(*(u.float() for u in (q, k, v)), **masks).to(q.dtype)


def test_a_check_in_float64_asks_for_more_than_one_in_float32():
    single, double = (
        ask(RoundedLikeSingle, "NS", "exact limit", dtype=dtype).status for dtype in ("float32", "float64")
    )
    assert (single, double) == ("kept", "broken")


def test_float64_is_refused_where_kernels_lack_it():
    with pytest.raises(UsageError, match=r"float64 is checked on a cpu, got 'meta'.*\.$"):
        check(Plain, ["NS"], dtype="float64", device="meta")


@pytest.mark.parametrize(
    "spec, dtype", [pytest.param("performer", "float32", marks=pytest.mark.full), ("linear", "float64")]
)
def test_a_quick_check_leaves_no_promise_out(spec, dtype):
    quick, full = (check(spec, ["CS"], profile=profile, dtype=dtype)[0] for profile in ("quick", "full"))
    assert [(f.promise, f.status) for f in quick.results] == [(f.promise, f.status) for f in full.results]


def test_a_table_shows_every_promise_with_its_sentence_and_its_detail(report):
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(table(report))
    shown = console.export_text()
    assert all(promise.sentence in shown for promise in (FIRST, *PROMISES))
    assert all(result.detail in shown for result in report.results)
    assert all(result.promise in shown for result in report.results)
    assert "all promises kept" in shown


@pytest.mark.parametrize(
    "arguments, options, error",
    [
        (("softmaks",), {}, UnknownName),
        (("softmax", ["diagonal"]), {}, UnknownName),
        (("fnet", ["causal_self"]), {}, UnsupportedPattern),
        (("softmax",), {"dtype": "float8"}, UsageError),
        (("softmax",), {"profile": "slow"}, UsageError),
        (("softmax",), {"device": "abacus"}, UsageError),
    ],
)
def test_a_wrong_request_is_refused_with_a_sentence(arguments, options, error):
    with pytest.raises(error, match=r"[.?]$"):
        check(*arguments, **options)


def test_counting_sees_products_writes_and_the_peak_but_no_views():
    x = torch.ones(8, 4)
    assert count(lambda: x @ x.mT).operations == 2 * 8 * 8 * 4 + 64
    assert count(lambda: x.view(4, 8).mT).operations == 0
    assert count(lambda: [torch.zeros(256) for _ in range(9)]).peak_bytes == 9 * 1024
    assert count(lambda: [torch.zeros(256).sum().item() for _ in range(9)]).peak_bytes <= 2 * 1024


def test_counting_sees_fused_attention_on_a_cpu():
    def fused(n):
        q = torch.zeros(1, 1, n, 8)
        return count(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)).operations

    assert fused(512) > 3.5 * fused(256)
