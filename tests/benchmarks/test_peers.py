"""The race with other packages: what is absent is skipped, what fails is noted, and the report says both."""

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.peers.__main__ import main, table
from benchmarks.peers.packages import PEERS, Peer
from benchmarks.peers.race import Setup, missing, race, races
from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern

IDS = [peer.offers for peer in PEERS]
SMALL = Setup(batch=1, heads=2, width=8, dtype="float32", repeats=3, warmup=1, seconds=0.1)
TORCH = PEERS[0]


@pytest.mark.parametrize("peer", PEERS, ids=IDS)
def test_ours_can_do_what_the_package_does(peer):
    mechanism = attentions.get(peer.ours)
    assert {Pattern.parse(pattern) for pattern in peer.patterns} <= set(mechanism.meta.patterns)
    layer = mechanism(16, 2, Pattern.parse(peer.patterns[0]), max_length=64)
    assert peer.level == "layer" or isinstance(layer, HeadwiseAttention)


@pytest.mark.parametrize("peer", PEERS[1:], ids=IDS[1:])
def test_a_package_that_is_absent_is_passed_over_with_a_reason(peer, monkeypatch):
    for module in {peer.package.replace("-", "_"), "fla"}:
        monkeypatch.setitem(sys.modules, module, None)
    assert (missing(peer, "cuda") or "").startswith("not importable: ")


def test_kernels_for_a_gpu_are_passed_over_on_a_cpu():
    gpu = next(peer for peer in PEERS if peer.gpu)
    assert missing(gpu, "cpu") == "its kernels need a GPU"


@pytest.mark.parametrize("peer, pattern", [(peer, pattern) for peer in PEERS for pattern in peer.patterns])
def test_a_package_that_is_here_gives_the_shape_of_ours_and_can_be_trained(peer, pattern):
    reason = missing(peer, "cpu")
    if reason is not None:
        pytest.skip(f"{peer.name}: {reason}")
    torch.manual_seed(0)
    call = peer.build(64, 2, 1024, pattern == "CS")
    shape, count = ((1, 2, 1024, 32), 3) if peer.level == "core" else ((1, 1024, 64), 1)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(count)]
    y = call(*inputs)
    assert y.shape == shape
    for gradient in torch.autograd.grad(y.square().sum(), inputs):
        assert gradient.isfinite().all()


def test_the_windows_of_local_attention_are_ours_to_the_last_key():
    peer = next(peer for peer in PEERS if peer.package == "local-attention")
    if (reason := missing(peer, "cpu")) is not None:
        pytest.skip(f"{peer.name}: {reason}")
    q, k, v = (torch.randn(1, 2, 384, 32) for _ in range(3))
    for pattern in peer.patterns:
        ours = attentions.get(peer.ours)(64, 2, Pattern.parse(pattern), max_length=384)
        assert isinstance(ours, HeadwiseAttention)
        torch.testing.assert_close(peer.build(64, 2, 384, pattern == "CS")(q, k, v), ours.attend(q, k, v))


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_the_relative_attention_of_xlnet_is_that_of_our_transformer_xl(pattern):
    peer = next(peer for peer in PEERS if peer.offers == "XLNetRelativeAttention")
    if (reason := missing(peer, "cpu")) is not None:
        pytest.skip(f"{peer.name}: {reason}")
    theirs = peer.build(64, 2, 96, pattern == "CS")
    assert isinstance(theirs, torch.nn.Module)
    named = dict(theirs.named_parameters())
    ours = attentions.get(peer.ours)(64, 2, Pattern.parse(pattern), max_length=96, bias=False)
    pairs = {"query.weight": "q", "key.weight": "k", "value.weight": "v", "distance.weight": "r"}
    weights = {name: named[f"attention.{their}"].flatten(1).mT for name, their in pairs.items()}
    weights["out.weight"] = named["attention.o"].flatten(1)
    weights |= {"u": named["attention.r_w_bias"], "w": named["attention.r_r_bias"]}
    ours.load_state_dict(weights)
    x = torch.randn(2, 96, 64)
    torch.testing.assert_close(theirs(x), F.layer_norm(x + ours(x), (64,), eps=1e-12))


def test_a_package_that_fails_is_a_note_and_ours_is_timed_all_the_same():
    def build(dim, heads, length, causal):
        raise RuntimeError("no such luck\nand more")

    row = race(replace(TORCH, build=build), "NS", 16, "train", SMALL)
    assert row.theirs_ms.eager is None
    assert row.theirs_ms.note == "RuntimeError: no such luck"
    assert row.ours_ms.eager is not None
    assert row.ratio == {}


@pytest.mark.parametrize("wrong, words", [(lambda q, k, v: v[:, :, :1], "gave"), (lambda q, k, v: v / 0, "not finite")])
def test_a_wrong_answer_gets_no_time(wrong, words):
    row = race(replace(TORCH, build=lambda *sizes: wrong), "NS", 16, "forward", SMALL)
    assert row.theirs_ms.eager is None
    assert words in row.theirs_ms.note


def test_running_out_of_memory_is_said():
    def build(dim, heads, length, causal):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate everything")

    assert race(replace(TORCH, build=build), "NS", 16, "train", SMALL).theirs_ms.note == "out of memory"


def test_both_sides_have_the_same_inputs():
    seen = []

    class Watching(torch.nn.Module):
        def forward(self, q, k, v):
            seen.append(q.detach().clone())
            return v

    for _ in range(2):
        race(replace(TORCH, build=lambda *sizes: Watching()), "NS", 16, "forward", SMALL)
    assert all(torch.equal(seen[0], other) for other in seen)


def test_lengths_are_raced_one_after_the_other():
    peers = [TORCH, Peer("p", "q", "linear", "core", TORCH.build, patterns=("CS",))]
    order = [(n, peer.package, pattern) for peer, pattern, n, _ in races(peers, [8, 16], ["train"])]
    assert order == [(n, *what) for n in (8, 16) for what in (("torch", "NS"), ("torch", "CS"), ("p", "CS"))]


def test_the_report_says_where_what_and_how_long(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    path = tmp_path / "out" / "peers.json"
    small = ["--lengths", "8", "16", "--batch", "1", "--repeats", "3", "--seconds", "0.1"]
    small += ["--dtype", "float32", "--device", "cpu"]
    assert main([*small, "--only", "torch scaled", "linformer", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linformer LinformerSelfAttention: passed over, not importable")
    assert len(lines) == 1 + 2 * 2 * 2  # lengths, patterns, modes
    assert all("ratio" in line and "ms eager; softmax: " in line for line in lines[1:])
    found = json.loads(path.read_text())
    assert sorted(found) == ["environment", "rows", "setup", "skipped"]
    assert (found["setup"]["batch"], found["setup"]["heads"], found["setup"]["width"]) == (1, 8, 64)
    assert [skipped["package"] for skipped in found["skipped"]] == ["linformer"]
    assert [(row["length"], row["pattern"], row["mode"]) for row in found["rows"]] == [
        (n, pattern, mode) for n in (8, 16) for pattern in ("NS", "CS") for mode in ("forward", "train")
    ]
    for row in found["rows"]:
        theirs, ours = row["theirs_ms"]["eager"], row["ours_ms"]["eager"]
        assert row["ratio"] == {"eager": pytest.approx(theirs["median"] / ours["median"])}
        assert theirs["low"] <= theirs["median"] <= theirs["high"]
        assert row["theirs_ms"]["graph"] is None
    assert main(["--show", str(path)]) == 0
    shown = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["| package", "pattern", "mode", "8", "16 |"]
    assert [line[1:3] for line in shown[2:]] == [[p, m] for p in ("NS", "CS") for m in ("forward", "train")]


def test_a_table_has_the_time_of_ours_and_by_what_theirs_takes_longer():
    def side(eager, graph, note=""):
        named = {"eager": eager, "graph": graph}
        return {"note": note} | {clock: ms and {"median": ms} for clock, ms in named.items()}

    race = {"package": "p", "offers": "q", "pattern": "NS", "mode": "train"}
    rows = [
        race | {"length": 8, "ours_ms": side(2, 1.5), "theirs_ms": side(3, 30), "ratio": {"eager": 1.5, "graph": 20}},
        race | {"length": 2048, "ours_ms": side(2, 1.5), "theirs_ms": side(3, None), "ratio": {"eager": 1.5}},
        race | {"length": 4096, "ours_ms": side(2, 1), "theirs_ms": side(None, None, "out of memory"), "ratio": {}},
    ]
    assert table(rows).splitlines() == [
        "| package | pattern | mode | 8 | 2,048 | 4,096 |",
        "| --- | --- | --- | --- | --- | --- |",
        "| p q | NS | train | 1,500, 20 / 1.50 | 1,500, – / 1.50 | 1,000, out of memory |",
    ]


def test_a_name_that_no_package_has_is_refused_with_the_names_there_are(capsys):
    assert main(["--only", "nonsense", "--device", "cpu"]) == 2
    assert "performer-pytorch" in capsys.readouterr().err
