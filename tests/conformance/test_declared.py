"""A mechanism's own gradient, loss or block is checked against what it declares."""

import pytest

from tests.conformance.declared import (
    AnotherSurrogate,
    Auxiliary,
    Choosing,
    ChoosingBlindly,
    KeepsSecret,
    MixesWhatItCarries,
    NoSurrogate,
    OwnsBlock,
    OwnsTooMuch,
    Scaling,
    SilentAuxiliary,
    SkipsWhatItCarries,
    Surrogate,
    UndeclaredAuxiliary,
    WrongSurrogate,
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


@pytest.mark.parametrize("promise", DERIVATIVES)
def test_a_surrogate_with_a_backward_of_its_own_defines_nothing(promise):
    result = ask(WrongSurrogate, "NS", promise)
    assert result.status == "broken"
    assert "plain PyTorch" in result.detail


def test_a_surrogate_without_a_definition_is_refused_with_a_sentence():
    class Undefined(Plain):
        meta = Surrogate.meta

    assert "has no method surrogate" in ask(Undefined, "NS", "gradcheck").detail


def test_the_gradient_of_a_parameter_that_chooses_may_be_that_of_the_auxiliary_loss():
    assert ask(Choosing, "NS", "gradients").status == "kept"
    result = ask(ChoosingBlindly, "NS", "gradients")
    assert result.status == "broken"
    assert "no gradient reaches extra" in result.detail


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_auxiliary_loss_is_no_excuse_for_a_gradient_that_is_missing(dtype):
    assert ask(Choosing, "NS", "gradients", dtype=dtype).status == "kept"
    result = ask(Scaling, "NS", "gradients", dtype=dtype)
    assert result.status == "broken"
    assert "no gradient reaches extra" in result.detail


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


@pytest.mark.parametrize("pattern", ["CS", "NS"])
def test_what_is_carried_belongs_to_its_row(pattern):
    assert ask("transformer_xl(memory=9)", pattern, "carry").status == "kept"
    assert "rows" in ask(MixesWhatItCarries, pattern, "carry").detail
    assert "`in_segments`" in ask(SkipsWhatItCarries, pattern, "carry").detail


def test_what_is_carried_is_declared():
    assert ask(Plain, "CS", "carry").status == "not applicable"
    assert "without saying so" in ask(KeepsSecret, "CS", "carry").detail


def test_a_mechanism_that_owns_its_block_may_have_the_parameters_of_an_mlp():
    assert ask(OwnsBlock, "NS", "parameter overhead").status == "kept"
    assert ask(OwnsTooMuch, "NS", "parameter overhead").status == "broken"
