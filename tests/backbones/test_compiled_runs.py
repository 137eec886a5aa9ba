"""What torch.compile produces in a run on a GPU: one graph for all blocks and batches, with one symbolic size.

There a batch always has the same number of rows and the same width, and is filled up to one of a few totals. If the
compiler also treats rows, widths or plain numbers as symbolic, it spends minutes on expressions of them; so these are
counted here, never seconds. As in `test_compiled.py`, forward and backward graphs are built but no code is generated,
and mechanisms are compiled in a process without the shape checks that tests add to every function.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from longspan import attentions
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.backbones import fastspeech2, gpt2, transformer
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.kernels.packing import Rows
from longspan.runs.fabric import WORTH_COMPILING, compile_long_runs
from longspan.tasks import Recipe
from longspan.tasks.lit_feed import filled
from longspan.tasks.token_feed import Batch
from tests.backbones.test_compiled import built_in

ROOT = Path(__file__).parents[2]
SIZES = Sizes(dim=16, heads=2, layers=3, mlp=16)
VOCABULARY, WIDTH = 17, 150
BATCHES = [[80, 64, 150, 33], [145, 9, 145, 145], [110, 51, 110, 77]]
SIDE = 16
PICTURES = replace(SIZES, hide_zeros=True, zero_rule="drop", positions="rope", pooling="mean")
LONG = Recipe(steps=WORTH_COMPILING, batch_size=1, learning_rate=1.0, warmup=0)
STEP = 128  # totals are multiples of it
QUICK = ("local", "s4")  # one works on packed tokens, one on padded ones and passes a parameter to einops
MOST_FORMULAS = 12  # of the number of tokens: blocks of a packed row, tokens in them, tokens missing in the last


def formulas(graph: torch.fx.Graph) -> Iterator[torch.SymInt]:
    """All symbolic sizes in the graph."""
    for node in graph.nodes:
        value = node.meta.get("example_value")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        yield from (size for size in sizes if isinstance(size, torch.SymInt))


def train(model: EncoderClassifier) -> None:
    for lengths in BATCHES:
        filled = [*lengths, STEP - sum(lengths) % STEP]
        rows = Rows(torch.tensor(filled), sum(filled), WIDTH, len(lengths))
        model(torch.randint(1, VOCABULARY, (len(filled), WIDTH)), rows).square().sum().backward()


def keep_graphs() -> list[torch.fx.Graph]:
    """Collect the graphs that modules are compiled to from now on, without fallback."""
    from torch._dynamo.backends.debugging import aot_eager

    torch.set_num_threads(1)
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(module.graph)
        return aot_eager(module, inputs)

    compile_ = nn.Module.compile
    nn.Module.compile = lambda self, options=None, **rules: compile_(self, backend=backend, fullgraph=True, **rules)
    return graphs


def graphs_of(name: str) -> int:
    """One for all blocks; one more for the first block, where a mechanism gets something from the block before."""
    return 1 + (attentions.get(name).meta.carries == "layers")


def describe(names: list[str]) -> None:
    """Train with each mechanism as a run would, and print what was compiled."""
    graphs = keep_graphs()
    for name in names:
        torch._dynamo.config.recompile_limit = graphs_of(name)  # state left by one mechanism would make the next fail
        graphs.clear()
        model = EncoderClassifier(attentions.get(name), SIZES, vocabulary=VOCABULARY, classes=10, length=WIDTH)
        compile_long_runs(model, "cuda", LONG)
        torch._dynamo.config.suppress_errors = False  # nothing falls back
        train(model)
        sizes = [size.node.expr for graph in graphs for size in formulas(graph)]
        unknowns = sorted({str(symbol) for size in sizes for symbol in size.free_symbols})
        print(json.dumps({"graphs": len(graphs), "unknowns": unknowns, "formulas": sorted({str(s) for s in sizes})}))


def describe_pictures(names: list[str]) -> None:
    """Train on pictures whose black pixels are left out, more and more of them lit, and print what was compiled."""
    graphs = keep_graphs()
    for name in names:
        graphs.clear()
        model = EncoderClassifier(attentions.get(name), PICTURES, vocabulary=256, classes=2, length=SIDE**2)
        compile_long_runs(model, "cuda", LONG)
        torch._dynamo.config.suppress_errors = False
        longest = set()
        for most in (30, 100, 180, 250):
            lit = torch.randint(10, most, (150,))
            places = torch.rand(len(lit), SIDE**2).argsort(dim=1).argsort(dim=1)
            pixels = torch.where(places < lit[:, None], torch.randint(1, 256, places.shape), 0)
            batch = filled(Batch(pixels, None, torch.zeros(len(lit), dtype=torch.long)), lit.numpy())
            model(batch.tokens, batch.lengths).square().sum().backward()
            longest.add((batch.lengths.total, batch.lengths.max_seqlen))
        print(json.dumps({"graphs": len(graphs), "shapes": len(longest)}))


def describe_writer(name: str) -> None:
    """Train an encoder and decoder as a run would, on batches of several widths, and print what was compiled."""
    graphs = keep_graphs()
    places = {"source_places": 512, "target_places": 512}
    sizes = transformer.Sizes(dim=16, heads=2, layers=2, mlp=16, **places)
    model = transformer.Transformer(attentions.get(name), sizes, vocabulary=VOCABULARY)
    compile_long_runs(model, "cuda", LONG)
    torch._dynamo.config.suppress_errors = False
    for source, target in ((448, 320), (320, 448), (384, 384)):
        source, target = (torch.randint(1, VOCABULARY, (2, width)) for width in (source, target))
        lengths = [source.shape[1], source.shape[1] - 9]
        model(source, lengths, target, [target.shape[1], 5]).square().sum().backward()
    print(json.dumps({"graphs": len(graphs)}))


def describe_speaker(name: str) -> None:
    """Train FastSpeech 2 on batches of several widths as a GPU would, whose kernels compute nothing here."""
    from longspan.kernels import state_space
    from longspan.kernels.state_space import operator

    graphs = keep_graphs()
    state_space.choose = lambda impl, name, x, unsupported_reason: "triton"
    operator.forward.register_kernel("cpu")(lambda *x: tuple(y.zero_() for y in operator._empty(*x)))
    operator.backward.register_kernel("cpu")(lambda *x: tuple(y.zero_() for y in operator._empty_gradients(*x)))
    sizes = fastspeech2.Sizes(dim=16, heads=2, mlp=16, encoder_layers=2, decoder_layers=2)
    model = fastspeech2.FastSpeech2(attentions.get(name), sizes, vocabulary=VOCABULARY)
    compile_long_runs(model, "cuda", LONG)
    torch._dynamo.config.suppress_errors = False
    for frames, phones in ((512, 80), (448, 64), (640, 96), (320, 32), (576, 80)):
        tokens, per_phone = torch.randint(2, VOCABULARY, (6, phones)), torch.ones(6, phones)
        lengths, durations = torch.tensor([phones] + 5 * [phones - 3]), (frames // phones * per_phone).long()
        known = durations, per_phone, per_phone
        model(tokens, lengths, torch.ones(2), *known, width=frames).mel.square().sum().backward()
    sizes = [size.node.expr for graph in graphs for size in formulas(graph)]
    unknowns = {str(symbol) for size in sizes for symbol in size.free_symbols}
    print(json.dumps({"graphs": len(graphs), "unknowns": len(unknowns)}))


def describe_reader(spec: str) -> None:
    """Train a language model that reads rows in segments as a run would, and print what was compiled."""
    graphs = keep_graphs()
    sizes = gpt2.GPT2Sizes(dim=16, heads=2, layers=3, mlp=16)
    model = gpt2.GPT2(attentions.get(spec), sizes, vocabulary=VOCABULARY, length=WIDTH)
    compile_long_runs(model, "cuda", LONG)
    torch._dynamo.config.suppress_errors = False
    for _ in range(2):
        tokens = torch.randint(1, VOCABULARY, (2, WIDTH))
        with collecting(model) as layers:
            (model(tokens, tokens).sum() + auxiliary_loss(layers)).backward()
    print(json.dumps({"graphs": len(graphs)}))


def run_apart(call: str) -> list[dict]:
    code = f"from tests.backbones.test_compiled_runs import *; {call}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def each_mechanism() -> list:
    rest = [pytest.param([name], marks=pytest.mark.full, id=name) for name in built_in() if name not in QUICK]
    return [pytest.param(list(QUICK), id="-".join(QUICK)), *rest]


@pytest.mark.parametrize("names", each_mechanism())
def test_a_run_compiles_one_graph_whose_only_unknown_is_the_number_of_tokens(names):
    for name, found in zip(names, run_apart(f"describe({names})"), strict=True):
        assert found["graphs"] == graphs_of(name), name
        assert len(found["unknowns"]) <= 1, (name, found["unknowns"])
        assert len(found["formulas"]) <= MOST_FORMULAS, (name, found["formulas"])


def test_pictures_without_black_pixels_compile_one_graph_however_many_are_lit():
    for found in run_apart("describe_pictures(['softmax', 'linear'])"):
        assert found["graphs"] == 1
        assert found["shapes"] > 2


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "linear", "sinkhorn"])
def test_an_encoder_and_decoder_compile_one_graph_each_for_batches_of_any_width(name):
    assert run_apart(f"describe_writer({name!r})") == [{"graphs": 2}]


@pytest.mark.parametrize(
    "name, graphs",
    [pytest.param("softmax", 1, marks=pytest.mark.full), ("s4d", 2)],  # s4d: for one chunk of tokens, and for several
)
def test_a_speaker_compiles_for_batches_of_any_width_with_the_number_of_places_unknown(name, graphs):
    assert run_apart(f"describe_speaker({name!r})") == [{"graphs": graphs, "unknowns": 1}]


@pytest.mark.parametrize(
    "spec",
    [
        "transformer_xl(memory=40, segment=32)",
        pytest.param("compressive_transformer(memory=40, compressed=20, segment=32)", marks=pytest.mark.full),
    ],
)
def test_a_language_model_compiles_one_graph_for_all_segments_of_all_layers(spec):
    assert run_apart(f"describe_reader({spec!r})") == [{"graphs": 1}]
