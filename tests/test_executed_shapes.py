"""Checked once per combination of shapes, a wrong annotation is still detected."""

from typing import Literal

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests.executed_shapes import has_named_axes_only, once

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

    for _ in range(3):  # a different shape each time
        count(torch.zeros(5))
    assert len(calls) == 3


def test_words_are_told_apart():
    @executed
    def choose(word: Literal["left", "right"]) -> str:
        return word

    choose("left")
    with pytest.raises(jaxtyping.TypeCheckError):
        choose("middle")


def test_other_sizes_are_looked_at_where_other_ones_are_equal():
    @executed
    def product(a: Float[Tensor, "n m"], b: Float[Tensor, "m r"]) -> Float[Tensor, "n r"]:
        return a.new_zeros(a.shape[0], 7)

    product(torch.zeros(2, 3), torch.zeros(3, 7))
    product(torch.zeros(4, 5), torch.zeros(5, 7))  # the same equalities with other sizes
    for a, b in (((4, 5), (4, 7)), ((4, 5), (5, 8)), ((4, 4), (5, 7))):
        with pytest.raises(jaxtyping.TypeCheckError):
            product(torch.zeros(a), torch.zeros(b))


@pytest.mark.parametrize("axes", ["b 3", "b n=3", "b n+1 n", "b #n n"])
def test_an_axis_with_a_number_is_looked_at_for_every_size(axes):
    def take(x):
        return x

    take.__annotations__ = {"x": Float[Tensor, axes] | None, "return": Float[Tensor, axes]}
    assert not has_named_axes_only(take)


def test_names_are_all_that_an_axis_without_numbers_is():
    def take(x: Float[Tensor, "*b h2 n"] | None, word: Literal["3"], y: list[Float[Tensor, "... _"]]):
        return x

    assert has_named_axes_only(take)
