"""A gradient, a loss or a block of a mechanism's own is held to what it declares."""

import pytest

from tests.conformance.declared import (
    AnotherSurrogate,
    Auxiliary,
    NoSurrogate,
    OwnsBlock,
    OwnsTooMuch,
    SilentAuxiliary,
    Surrogate,
    UndeclaredAuxiliary,
)
from tests.conformance.one_promise import ask
from tests.conformance.right import Plain

DERIVATIVES = ("gradcheck", "derivative at length")


@pytest.mark.parametrize("promise", DERIVATIVES)
def test_a_surrogate_gradient_is_compared_with_its_own_definition(promise):
    assert ask(Surrogate, "NS", promise).status == "kept"
    result = ask(AnotherSurrogate, "NS", promise)
    assert result.status == "broken"
    assert "its own definition" in result.detail


def test_a_surrogate_gradient_that_is_the_true_one_is_no_surrogate():
    result = ask(NoSurrogate, "NC", "gradcheck")
    assert result.status == "broken"
    assert "derivatives themselves" in result.detail


def test_a_surrogate_without_a_definition_is_refused_with_a_sentence():
    class Undefined(Plain):
        meta = Surrogate.meta

    assert "has no method surrogate" in ask(Undefined, "NS", "gradcheck").detail


def test_an_auxiliary_loss_is_a_finite_number_with_a_gradient():
    result = ask(Auxiliary, "NS", "auxiliary loss")
    assert result.status == "kept"
    assert "gradient for extra" in result.detail


@pytest.mark.parametrize(
    "flawed, words", [(SilentAuxiliary, "adds nothing"), (UndeclaredAuxiliary, "without saying so")]
)
def test_an_auxiliary_loss_is_there_if_and_only_if_it_is_declared(flawed, words):
    result = ask(flawed, "NS", "auxiliary loss")
    assert result.status == "broken"
    assert words in result.detail


def test_a_mechanism_that_owns_its_block_may_have_the_parameters_of_an_mlp():
    assert ask(OwnsBlock, "NS", "parameter overhead").status == "kept"
    assert ask(OwnsTooMuch, "NS", "parameter overhead").status == "broken"
