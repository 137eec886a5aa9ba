"""Eager calls take turns; a graph capture is prepared, made and undone in the order that CUDA requires.

There is no GPU here, so a stand-in for `torch.cuda` records its calls.
"""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from longspan.efficiency import variants
from longspan.efficiency.variants import WARM_UPS, captured, eager


def test_eager_calls_take_turns_one_at_a_time():
    seen = []
    runner = eager([lambda: seen.append("a"), lambda: seen.append("b")])
    for _ in range(3):
        runner.run()
    assert (seen, runner.calls) == (["a", "b", "a"], 1)


@pytest.fixture
def cuda(monkeypatch):
    log = []

    @contextlib.contextmanager
    def inside(name):
        log.append(f"enter {name}")
        try:
            yield
        finally:
            log.append(f"leave {name}")

    def stream(name):
        return SimpleNamespace(name=name, wait_stream=lambda other: log.append(f"{name} waits for {other.name}"))

    main, side = stream("main"), stream("side")
    generator = SimpleNamespace(clone_state=lambda: "state", graphsafe_set_state=lambda s: log.append(f"restore {s}"))
    fake = SimpleNamespace(
        Stream=lambda: side,
        current_stream=lambda: main,
        stream=lambda which: inside(which.name),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: log.append("replay")),
        graph=lambda graph: inside("recording"),
        default_generators=[generator],
        current_device=lambda: 0,
        get_sync_debug_mode=lambda: 0,
        set_sync_debug_mode=lambda mode: log.append(f"waiting is {mode}"),
    )
    monkeypatch.setattr(variants, "torch", SimpleNamespace(cuda=fake))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    return log


def test_a_recording_holds_every_call_once_after_warm_ups_on_a_stream_of_their_own(cuda):
    runner = captured([lambda: cuda.append("first"), lambda: cuda.append("second")])
    assert cuda == [
        *("side waits for main", "enter side", *["first"] * WARM_UPS),
        *("waiting is error", "first", "waiting is 0", "leave side", "main waits for side"),
        *("enter recording", "first", "second", "leave recording"),
    ]
    assert runner.calls == 2
    runner.run()
    assert cuda[-1] == "replay"


def test_a_call_that_waits_for_the_device_is_found_before_anything_is_recorded(cuda):
    def waits():
        if cuda[-1] == "waiting is error":
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        captured([waits])
    assert "enter recording" not in cuda
    assert cuda[-3:] == ["waiting is 0", "leave side", "main waits for side"]  # else it frees what is still in use


def test_a_recording_that_fails_leaves_the_random_numbers_as_they_were(cuda):
    def fails():
        if "enter recording" in cuda:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        captured([fails])
    assert cuda[-2:] == ["leave recording", "restore state"]
