"""What a run on a GPU lets torch.compile do: one graph for all blocks and batches, with one unknown in it.

There a batch has always the same number of rows and the same width, and is filled up to one of few totals. A compiler
that takes rows, widths or plain numbers for unknowns as well spends minutes on formulas of them, so that is what is
counted here, and never seconds. As in `test_compiled.py` graphs are made, forward and backward, but no code from them,
and mechanisms are compiled in a process without the checks that tests add to every function.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from longspan import attentions
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.kernels.packing import Rows
from longspan.runs import WORTH_COMPILING, compile_long_runs
from tests.backbones.test_compiled import built_in

ROOT = Path(__file__).parents[2]
SIZES = Sizes(dim=16, heads=2, layers=3, mlp=16)
VOCABULARY, WIDTH = 17, 150
BATCHES = [[80, 64, 150, 33], [145, 9, 145, 145], [110, 51, 110, 77]]
STEP = 128  # totals are multiples of it
QUICK = ("local", "s4")  # one works on packed tokens, one on padded ones and shows einops a parameter
MOST_FORMULAS = 12  # of the number of tokens: blocks of a packed row, what they hold, what is missing from the last


def formulas(graph: torch.fx.Graph) -> Iterator[torch.SymInt]:
    """All sizes in the graph that are no plain numbers."""
    for node in graph.nodes:
        value = node.meta.get("example_value")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        yield from (size for size in sizes if isinstance(size, torch.SymInt))


def train(model: EncoderClassifier) -> None:
    for lengths in BATCHES:
        filled = [*lengths, STEP - sum(lengths) % STEP]
        rows = Rows(torch.tensor(filled), sum(filled), WIDTH, len(lengths))
        model(torch.randint(1, VOCABULARY, (len(filled), WIDTH)), rows).square().sum().backward()


def describe(names: list[str]) -> None:
    """Train with each mechanism as a run would, and print what was compiled."""
    from torch._dynamo.backends.debugging import aot_eager

    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 1  # so that what one mechanism left behind would stop the next
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(module.graph)
        return aot_eager(module, inputs)

    compile_ = nn.Module.compile
    nn.Module.compile = lambda self, options=None, **rules: compile_(self, backend=backend, fullgraph=True, **rules)
    for name in names:
        graphs.clear()
        model = EncoderClassifier(attentions.get(name), SIZES, vocabulary=VOCABULARY, classes=10, length=WIDTH)
        compile_long_runs(model, "cuda", steps=WORTH_COMPILING)
        torch._dynamo.config.suppress_errors = False  # nothing falls back
        train(model)
        sizes = [size.node.expr for graph in graphs for size in formulas(graph)]
        unknowns = sorted({str(symbol) for size in sizes for symbol in size.free_symbols})
        print(json.dumps({"graphs": len(graphs), "unknowns": unknowns, "formulas": sorted({str(s) for s in sizes})}))


def each_mechanism() -> list:
    rest = [pytest.param([name], marks=pytest.mark.full, id=name) for name in built_in() if name not in QUICK]
    return [pytest.param(list(QUICK), id="-".join(QUICK)), *rest]


@pytest.mark.parametrize("names", each_mechanism())
def test_a_run_compiles_one_graph_whose_only_unknown_is_the_number_of_tokens(names):
    code = f"from tests.backbones.test_compiled_runs import describe; describe({names})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    for name, line in zip(names, ended.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert found["graphs"] == 1, name
        assert len(found["unknowns"]) <= 1, (name, found["unknowns"])
        assert len(found["formulas"]) <= MOST_FORMULAS, (name, found["formulas"])
