"""What is checked on a GPU, as far as a CPU can test it: graphs without generated code, weights in bfloat16."""

import subprocess
import sys

import pytest

from longspan.attentions import Pattern
from longspan.conformance import check
from longspan.conformance.check import check as check_in_a_row
from longspan.conformance.compiled import ON_A_GPU
from longspan.conformance.half import with_bfloat16_weights
from longspan.conformance.parallel import check_each
from longspan.conformance.subject import Subject
from longspan.core import threads
from longspan.core.errors import CheckFailed
from longspan.core.threads import COMPILERS
from tests.conformance.faults_when_compiled import AlwaysSingle, FirstTokenTwice, LosesItsSum, SinglePrecisionBuffer
from tests.conformance.right import Plain

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF

# The shape checks that tests add to every function cannot be traced, hence a process without them.
COMPILED = """
from longspan import attentions
from longspan.attentions import Mechanism, Pattern
from longspan.conformance.compiled import compiled_by
from longspan.conformance.subject import Subject
from tests.conformance import faults_when_compiled as faults, right
for cls in (right.Plain, faults.Breaks, faults.OtherwiseCompiled):
    try:
        status, _ = compiled_by(Subject(Mechanism(cls, {}, cls.__name__), Pattern.CAUSAL_SELF), "aot_eager")
    except Exception as error:
        status = "raised " + type(error).__name__
    print(cls.__name__, status)
"""


def test_a_layer_must_be_one_graph_and_compute_the_same_when_compiled():
    ended = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["Plain kept", "Breaks raised Unsupported", "OtherwiseCompiled broken"]


def subject_of(cls, pattern=NS):
    from longspan.attentions import Mechanism

    return Subject(Mechanism(cls, {}, cls.__name__), pattern)


def test_bfloat16_weights_give_bfloat16_near_float32():
    assert with_bfloat16_weights(subject_of(Plain))[0] == "kept"
    assert "float32" in with_bfloat16_weights(subject_of(AlwaysSingle))[1]
    for fault in (LosesItsSum, FirstTokenTwice):
        assert "away from float32" in with_bfloat16_weights(subject_of(fault))[1]
    with pytest.raises(RuntimeError, match=r"BFloat16|dtype"):
        with_bfloat16_weights(subject_of(SinglePrecisionBuffer))


@pytest.mark.parametrize(
    "fault",
    [LosesItsSum, *(pytest.param(one, marks=pytest.mark.full) for one in (AlwaysSingle, SinglePrecisionBuffer))],
)
def test_a_check_on_a_cpu_says_what_it_leaves_to_a_gpu(fault):
    (report,) = check(fault, [NS], profile="quick")
    assert report.ok, report.broken
    left = {result.promise for result in report.results if result.detail == ON_A_GPU}
    assert left == {"torch.compile", "CUDA graph", "float16", "bfloat16 weights"}


def test_checks_side_by_side_report_what_checks_in_a_row_do(tmp_path):
    from longspan import attentions

    asked = [(attentions.get(name), pattern) for name, pattern in (("none", CS), ("linear", CS), ("none", NS))]
    in_a_row = [check_in_a_row(mechanism, [pattern], profile="quick")[0] for mechanism, pattern in asked]
    found = dict(check_each(asked, jobs=2, profile="quick"))
    assert [report for _, report in sorted(found.items())] == in_a_row


def test_checks_side_by_side_share_the_cores_when_they_compile(tmp_path, monkeypatch):
    from longspan import attentions

    (tmp_path / "tells.py").write_text(
        "from longspan.attentions import Attention\nfrom longspan.attentions.softmax import Softmax\n\n\n"
        "class Tells(Attention):\n    meta = Softmax.meta\n\n"
        "    def forward(self, x, context=None, *, mask=None, context_mask=None):\n"
        "        import torch._inductor.config\n\n"
        "        raise ValueError(f'compilers: {torch._inductor.config.compile_threads}')\n"
    )
    monkeypatch.delenv(COMPILERS, raising=False)
    monkeypatch.setattr(threads, "available_cpus", lambda: 12)
    asked = [(attentions.get(f"{tmp_path}/tells.py:Tells"), NS)] * 2
    for _, report in check_each(asked, jobs=2, profile="quick"):
        assert any("compilers: 6" in result.detail for result in report.broken), report.broken


def test_a_mechanism_that_ends_its_process_is_named(tmp_path):
    from longspan import attentions

    (tmp_path / "leaves.py").write_text(
        "import os\nimport time\nfrom pathlib import Path\nfrom longspan.attentions import Attention\n"
        "from longspan.attentions.softmax import Softmax\n\n\n"
        "class Leaves(Attention):\n    meta = Softmax.meta\n\n"
        "    def forward(self, x, context=None, *, mask=None, context_mask=None):\n"
        "        while not Path(__file__).with_name('may leave').exists():\n            time.sleep(0.05)\n"
        "        os._exit(3)\n"
    )
    leaves = attentions.get(f"{tmp_path}/leaves.py:Leaves"), NS
    reports = check_each([leaves, (attentions.get("none"), NS)], jobs=2, profile="quick")
    assert next(reports)[0] == 1  # now only the first check is pending
    (tmp_path / "may leave").touch()
    with pytest.raises(CheckFailed, match=r"A process ended while .*leaves.py:Leaves as noncausal_self"):
        next(reports)
