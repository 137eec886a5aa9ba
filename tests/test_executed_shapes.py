"""Executed once per combination of shapes, an annotation that lies is still found out."""

from typing import Literal

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests.executed_shapes import once

executed = once(typechecker=beartype.beartype)


@executed
def halve(x: Float[Tensor, "b n"], result: list) -> Float[Tensor, " n"]:
    return result[0]


def test_a_wrong_argument_is_found_after_right_ones():
    row = [torch.zeros(3)]
    halve(torch.zeros(2, 3), row)
    halve(torch.zeros(2, 3), row)
    for wrong in (torch.zeros(2, 3, 1), torch.zeros(2, 3, dtype=torch.long), "a word"):
        with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
            halve(wrong, row)


def test_a_wrong_result_of_arguments_that_were_seen_is_found_every_time():
    result = [torch.zeros(3)]
    halve(torch.zeros(2, 3), result)
    for wrong in (torch.zeros(4), torch.zeros(3, 1), torch.zeros(3).long(), torch.zeros(4)):
        result[0] = wrong
        with pytest.raises(jaxtyping.TypeCheckError):
            halve(torch.zeros(2, 3), result)


def test_a_function_runs_once_per_call():
    calls = []

    @executed
    def count(x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
        calls.append(x)
        return x.new_zeros(len(calls))

    for _ in range(3):  # a result of another shape each time
        count(torch.zeros(5))
    assert len(calls) == 3


def test_words_are_told_apart():
    @executed
    def choose(word: Literal["left", "right"]) -> str:
        return word

    choose("left")
    with pytest.raises(jaxtyping.TypeCheckError):
        choose("middle")
