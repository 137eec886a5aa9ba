"""The gate compares with the highest precision available, and gives its reason in a sentence when it refuses."""

import math

import pytest
import torch

from longspan.efficiency.gate import TOLERANCE, agreement, disagreement, relative_error
from longspan.efficiency.setup import Setup


class Told:
    """A workload whose output is off by a fixed share in each precision; None raises."""

    device = "cpu"

    def __init__(self, errors, *, dtype="float32", length=8):
        self.setup, self.length = Setup(lengths=(length,), dtype=dtype), length
        self.errors, self.asked = errors, []

    def sample(self, dtype=None):
        self.asked.append(dtype)
        error = self.errors.get(dtype)
        if error is None:
            raise torch.OutOfMemoryError("no room")
        return torch.ones(3, dtype=dtype or torch.float32) * (1 + error)


def test_double_precision_is_the_reference_where_it_fits_and_single_the_next_best():
    exact, single = {None: 0.1, torch.float64: 0.0}, {None: 0.2, torch.float32: 0.0}
    assert agreement(Told(exact, dtype="bfloat16")) == pytest.approx(0.1)
    assert agreement(Told(single, dtype="bfloat16")) == pytest.approx(0.2)
    long = Told(exact | single, dtype="bfloat16", length=8192)
    assert agreement(long) == pytest.approx(0.2)
    assert long.asked == [None, torch.float32]


def test_without_anything_finer_only_what_is_not_finite_is_wrong():
    assert agreement(Told({None: 0.5})) is None
    assert agreement(Told({None: math.inf})) == math.inf
    assert agreement(Told({None: 0.0, torch.float32: 0.9}, length=8192)) is None  # float32 is no reference for itself


def test_an_output_that_cannot_be_computed_at_all_is_no_disagreement_but_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        agreement(Told({torch.float64: 0.0}))


def test_errors_are_relative_and_nothing_is_infinitely_far_from_nothing():
    zero = torch.zeros(3)
    assert relative_error(zero, zero) == 0
    assert relative_error(torch.ones(3), torch.ones(4)) == math.inf
    assert relative_error(torch.tensor([math.nan]), torch.ones(1)) == math.inf
    assert relative_error(torch.tensor([300.0]), torch.tensor([100.0])) == relative_error(
        torch.tensor([3.0]), torch.tensor([1.0])
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_precision_has_its_tolerance_and_a_sentence_beyond_it(dtype):
    limit = TOLERANCE[dtype]
    assert disagreement(None, dtype) is disagreement(limit, dtype) is None
    assert dtype in (disagreement(1.01 * limit, dtype) or "")
    assert "not finite" in (disagreement(math.inf, dtype) or "")
