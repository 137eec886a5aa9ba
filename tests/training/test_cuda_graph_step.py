"""A recorded update equals the update: the same numbers for any shapes in any order."""

import contextlib
import dataclasses
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.training.cuda_graph_step import MOST_SHAPES, Captured, copy_of, shape_of, tensors_in


@dataclasses.dataclass(frozen=True)
class Piece:
    tokens: torch.Tensor
    length: int
    weights: torch.Tensor | None = None


class Rerun:
    """Stands in for a graph: recomputes from the recorded inputs into the recorded outputs."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def stage(self):
        return contextlib.nullcontext()

    def record(self, compute):
        self.recorded += 1
        outcome = torch.zeros(())

        def replay():
            self.replayed += 1
            outcome.copy_(compute())

        return replay, outcome


class Refuses(Rerun):
    def record(self, compute):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def total(pieces):
    return sum((piece.tokens.sum() * piece.length for piece in pieces), torch.zeros(()))


def some(size, length=1):
    return [Piece(torch.randn(size), length, None if size % 2 else torch.ones(2))]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=20))
@settings(deadline=None)
def test_every_call_gives_what_the_update_gives(shapes):
    recorder = Rerun()
    update = Captured(total, recorder)
    for size, length in shapes:
        batches = some(size, length)
        assert torch.equal(update(batches), total(batches))
    assert recorder.recorded == sum(shapes.count(shape) > 1 for shape in set(shapes))
    assert recorder.replayed == len(shapes) - len(set(shapes))


def test_what_is_given_is_left_alone():
    update = Captured(total, Rerun())
    first, second, third = some(3), some(3), some(3)
    for batches in (first, second, third):
        kept = copy_of(batches)
        update(batches)
        assert all(map(torch.equal, tensors_in(batches), tensors_in(kept)))


def test_an_update_that_cannot_be_recorded_runs_as_it_is_and_says_so_once():
    update = Captured(total, Refuses())
    update(some(3))
    batches = some(3)
    with pytest.warns(UserWarning, match="not permitted"):
        outcome = update(batches)
    assert torch.equal(outcome, total(batches))
    batches = some(3)
    assert torch.equal(update(batches), total(batches))


def test_too_many_shapes_are_not_recorded():
    recorder = Rerun()
    update = Captured(total, recorder)
    for _ in range(2):
        for size in range(1, 3 * MOST_SHAPES):
            update(some(size))
    assert recorder.recorded == MOST_SHAPES


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


@pytest.mark.parametrize(
    "batch",
    [{"x": torch.ones(2), "n": 3}, Pair(torch.ones(2), 3), [torch.ones(2), (3,)]],
    ids=["dict", "named", "list"],
)
def test_batches_may_be_nested_in_any_plain_way(batch):
    recorder = Rerun()
    update = Captured(lambda batches: next(tensors_in(batches)).sum(), recorder)
    for _ in range(3):
        assert update([batch]) == 2
    assert recorder.replayed == 2
    assert type(copy_of(batch)) is type(batch)


def test_batches_of_other_things_are_never_recorded():
    recorder = Rerun()
    update = Captured(lambda batches: len(batches[0]), recorder)
    for _ in range(3):
        assert update([{1, 2}]) == 2
    assert recorder.recorded == 0


def test_a_shape_is_sizes_kinds_and_plain_values():
    assert shape_of(some(3)) == shape_of(some(3))
    assert shape_of(some(3)) != shape_of(some(3, length=2))
    assert shape_of(some(3)) != shape_of([*some(3), *some(3)])
    assert shape_of([torch.zeros(2)]) != shape_of([torch.zeros(2, dtype=torch.int64)])
