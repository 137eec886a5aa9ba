"""Compiled blocks compute what the plain ones do, as one graph each and for batches of any width.

On a GPU long runs let torch.compile fuse the blocks of the encoder (`compile_parts`), which falls back on eager
execution where a mechanism cannot be compiled. Here nothing falls back. The compiler runs up to the graphs of forward
and backward, and these are executed operator by operator (`aot_eager`): tracing is tested, code generation is not.

Each mechanism is compiled in its own process, without the shape checks that tests add to every function, which are not
part of the package and cannot be traced.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes

ROOT = Path(__file__).parents[2]
SIZES = Sizes(dim=16, heads=2, layers=2, mlp=16, dropout=0.0, attention_dropout=0.0)
VOCABULARY, LENGTH = 17, 150
RAGGED = [[80, 64, 12, 33, 7], [145, 9, 145, 145, 2], [110, 50, 110, 77, 1]]  # three batches of different widths
MOST_GRAPHS = 4  # one for a block, one for the last block, which computes only one row; both again for a new width

QUICK = ("softmax",)
A_GRAPH_PER_WIDTH = {
    *("s4", "s4d"),  # Fourier transforms have one of a few lengths, which are part of the graph
    # Their blocks, strides or clusters are counted in Python, so a batch of another width is recompiled.
    *(
        "cluster_former",
        "etc",
        "logsparse",
        "poolingformer",
        "routing_transformer",
        "scatterbrain",
        "skyformer",
        "soft",
    ),
    *("authors_skyformer", "pypi_routing_transformer"),
}
REFUSES = ("authors_soft",)  # it refuses rows that are not whole pictures


def built_in() -> list[str]:
    """Mechanisms that an encoder can have."""
    folder = Path(attentions.__file__).parent
    names = [name for name in attentions.names() if any(folder.rglob(f"{name}.py"))]
    own = (name for name in names if Pattern.NONCAUSAL_SELF in attentions.get(name).meta.patterns)
    return [name for name in own if name not in REFUSES]


def outputs_and_gradients(model: EncoderClassifier) -> list[dict[str, Tensor]]:
    results = []
    for step, lengths in enumerate(RAGGED):
        torch.manual_seed(step)  # for mechanisms that draw random numbers in training
        tokens = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)))
        model.zero_grad()
        y = model(tokens, lengths)
        y.square().sum().backward()
        gradients = {  # None or 0 for an unused parameter
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
        }
        results.append({"output": y.detach(), **gradients})
    return results


def compare(name: str, file: str) -> None:
    """Run the network uncompiled, then with compiled blocks, and save both results and the number of graphs."""
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = EncoderClassifier(attentions.get(name), SIZES, vocabulary=VOCABULARY, classes=10, length=LENGTH)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plain = outputs_and_gradients(model)
    model.load_state_dict(before)
    for block in model.blocks:
        block.compile(dynamic=True, fullgraph=True, backend="aot_eager")
    compiled = outputs_and_gradients(model)
    torch.save({"plain": plain, "compiled": compiled, "graphs": counters["stats"]["unique_graphs"]}, file)


def in_a_process_of_its_own(name: str, file: Path) -> subprocess.CompletedProcess:
    code = f"from tests.backbones.test_compiled import compare; compare({name!r}, {str(file)!r})"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def each_mechanism() -> list:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in built_in()]


@pytest.mark.parametrize("name", each_mechanism())
def test_compiled_blocks_give_the_same_outputs_and_gradients(name, tmp_path):
    ended = in_a_process_of_its_own(name, tmp_path / "results.pt")
    assert ended.returncode == 0, ended.stderr[-3_000:]
    results = torch.load(tmp_path / "results.pt")
    torch.testing.assert_close(results["compiled"], results["plain"])
    most = 2 * len(RAGGED) if name in A_GRAPH_PER_WIDTH else MOST_GRAPHS
    assert 0 < results["graphs"] <= most
