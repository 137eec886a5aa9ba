"""Rows read in the order of their text: a mechanism's carry goes from step to step, and only there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import attentions, tasks
from longspan.core.errors import UsageError
from longspan.core.seeding import seed_everything
from longspan.runs.fabric import make_fabric
from longspan.training import checkpoint
from longspan.training.loop import train
from longspan.training.order import StreamOrder
from tests.training.ranks import TEXT, splits_of
from tests.training.small import train_small

TASK = tasks.get("lm")
SETTINGS = TEXT | {"model.layers": 2, "recipe.batch_size": 4, "recipe.order": "streams", "recipe.steps": 8}
RULES = TASK.protocol("longspan", "smoke").override(SETTINGS)


class Killed(Exception):
    """Stands for the end of the process."""


def run(folder, rules=RULES, spec="transformer_xl(memory=6, segment=4)", **rest):
    """The outcome of a training run, and its network."""
    seed_everything(0)
    model = TASK.model(attentions.get(spec), rules)
    fabric = make_fabric("cpu", "fp32", 1)
    done = train(TASK, model, splits_of(TASK, rules), rules, fabric=fabric, seed=0, folder=folder, **rest)
    return done, model


@given(st.integers(1, 40), st.integers(1, 8))
def test_every_lane_reads_its_share_row_after_row_and_all_shares_are_everything(count, lanes):
    if count < lanes:
        with pytest.raises(UsageError, match="smaller batch_size"):
            StreamOrder(count, lanes)
        return
    order = StreamOrder(count, lanes)
    read = np.stack([order.parts(step)[0] for step in range(count)])
    assert set(read.ravel()) == set(range(count))
    for lane in read.T:
        share = len(set(lane))
        assert all((lane[1:] - lane[:-1])[t] in (1, 1 - share) for t in range(count - 1))


def test_what_is_carried_changes_what_is_learned(tmp_path):
    stream, _ = run(tmp_path / "stream")
    forgetful, _ = run(tmp_path / "forgetful", spec="transformer_xl(memory=0, segment=4)")
    assert stream.progress.curve[-1]["train_loss"] != forgetful.progress.curve[-1]["train_loss"]


@pytest.mark.parametrize("step", [3, 6])
def test_a_killed_run_goes_on_with_what_it_carried(tmp_path, step):
    def watch(progress, steps):
        if progress.step == step:
            raise Killed

    whole, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "cut", watch=watch, save_every_seconds=-1.0)
    state = checkpoint.load(checkpoint.newest_first(tmp_path / "cut")[0])
    assert [sorted(layer) for layer in state["carry"][0]] == [["mask", "x"]] * 2
    assert not any("mask" in name or "carry" in name for name in state["model"])
    resumed, _ = run(tmp_path / "cut")
    assert resumed.progress.curve == whole.progress.curve
    assert resumed.test.metrics == whole.test.metrics


def test_parts_of_a_batch_carry_what_the_whole_does(tmp_path):
    _, whole = run(tmp_path / "whole")
    _, parted = run(tmp_path / "parted", RULES.override({"recipe.accumulate": 2}))
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parted.state_dict()[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_evaluation_begins_every_row_with_nothing(tmp_path):
    """So that contexts are the same as for other mechanisms, and no score depends on earlier rows."""
    _, model = run(tmp_path)
    feed = TASK.feed(splits_of(TASK, RULES).test, RULES, "cpu")
    with torch.no_grad():
        rows = np.arange(len(feed))
        together = TASK.evaluate(model.eval(), feed, rows, 3).predictions["nats"]
        alone = np.concatenate([TASK.evaluate(model, feed, rows[i : i + 1], 1).predictions["nats"] for i in rows])
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_a_lane_that_jumps_forgets():
    feed = TASK.feed(splits_of(TASK, RULES).train, RULES, "cpu")
    last = len(feed) - 1
    assert feed.follows(np.array([1, 0, 3]), np.array([0, last, 1])).tolist() == [True, False, False]


def test_a_task_whose_rows_are_no_text_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"which listops does not do"):
        train_small(tmp_path, order="streams")


def test_a_mechanism_that_carries_nothing_reads_streams_too(tmp_path):
    done, _ = run(tmp_path, replace(RULES), spec="softmax")
    assert np.isfinite(done.test.metrics["perplexity"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda carry: None,
        lambda carry: [],
        lambda carry: [*carry, *carry],  # with more parts
        lambda carry: [part[:1] for part in carry],  # with fewer layers
        lambda carry: [[{"x": layer["x"]} for layer in part] for part in carry],
        lambda carry: [[{n: t[:1] for n, t in layer.items()} for layer in part] for part in carry],
    ],
)
def test_a_checkpoint_that_lost_what_it_carried_is_set_aside(tmp_path, capsys, spoil):
    def watch(progress, steps):
        if progress.step == 3:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, watch=watch, save_every_seconds=-1.0)
    for path in checkpoint.newest_first(tmp_path):
        state = checkpoint.load(path)
        carry = spoil(state.pop("carry"))
        checkpoint.save(tmp_path, state["progress"]["step"], state | ({} if carry is None else {"carry": carry}))
    resumed, _ = run(tmp_path)
    assert "carries something else" in capsys.readouterr().err
    assert resumed.progress.resumed == 0
