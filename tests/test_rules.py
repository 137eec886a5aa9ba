"""The rules of Long Range Arena, and the track a run is on."""

import dataclasses

import pytest

from longspan import attentions, rules
from longspan.runs import Cell, run

META = attentions.get("softmax").meta
PRETRAINED = """
import torch
from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

class Mine(HeadwiseAttention):
    meta = AttentionMeta(title="Mine", paper="none", family="toy", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.query.weight.data += torch.load({path!r}).sum()

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return v
"""


def judged(*, overrides=None, parameters=100, baseline=100, read=(), **meta):
    overrides = overrides or {}
    verdicts = rules.judge(dataclasses.replace(META, **meta), overrides, parameters, baseline, read)
    return [name for name, verdict in verdicts.items() if not verdict.kept], rules.track(verdicts, overrides)


@pytest.mark.parametrize(
    "case, broken, track",
    [
        ({}, [], "fixed"),
        ({"parameters": 110}, [], "fixed"),
        ({"parameters": 111}, ["parameters"], "free"),
        ({"read": ["weights.bin"]}, ["no pretraining"], "free"),
        ({"spatial": True}, ["no spatial information"], "free"),
        ({"overrides": {"model.dim": 64}}, ["frozen sizes"], "free"),
        ({"overrides": {"recipe.steps": 5}}, [], "free"),  # no rule is broken, but it is no longer the protocol
        ({"overrides": {"model.input_mode": "continuous"}}, ["frozen sizes"], "free"),
    ],
)
def test_a_run_is_on_the_fixed_track_when_every_rule_is_kept_and_nothing_is_changed(case, broken, track):
    assert judged(**case) == (broken, track)


SMALL = {"data.train": 64, "data.valid": 32, "data.test": 32, "recipe.steps": 2, "recipe.evaluate_every": 2}


def test_weights_that_come_from_a_file_are_found_out(tmp_path):
    import torch

    torch.save(torch.ones(3), tmp_path / "pretrained.pt")
    plugin = tmp_path / "mine.py"
    plugin.write_text(PRETRAINED.format(path=str(tmp_path / "pretrained.pt")))
    card = run(Cell("listops", f"{plugin}:Mine", overrides=SMALL), out=tmp_path / "out", progress=False)
    assert card["rules"]["no pretraining"] == {
        "kept": False,
        "finding": "opened while the network was built: pretrained.pt",
    }
    assert card["track"] == "free"


def test_the_verdicts_are_on_every_card(tmp_path):
    card = run(Cell("listops", "linformer", overrides=SMALL), out=tmp_path, progress=False)
    assert set(card["rules"]) == {"parameters", "no pretraining", "no spatial information", "frozen sizes"}
    assert card["rules"]["no pretraining"]["kept"]
    assert card["rules"]["parameters"]["kept"] is card["parameters"]["within_rule"] is False
