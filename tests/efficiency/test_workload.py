"""The work that is timed: its inputs, what it leaves behind, and what it keeps in memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.decoding import DecodeWorkload
from longspan.efficiency.memory import memory_of
from longspan.efficiency.setup import Setup
from longspan.efficiency.workload import MOST_SETS, ModuleWorkload, TimedBlock, sets_needed

SETUP = Setup(lengths=(12,), dtype="float32", batch=2, heads=2, dim=4)


def workload(name="linear", pattern=Pattern.NONCAUSAL_SELF, length=12, **change):
    return ModuleWorkload(attentions.get(name), pattern, Setup(**{**vars(SETUP), **change}), length, "cpu")


@pytest.mark.parametrize(
    "name, pattern, module, shapes",
    [
        ("linear", Pattern.NONCAUSAL_SELF, "core", [(2, 2, 12, 4)] * 3),
        ("linear", Pattern.NONCAUSAL_CROSS, "core", [(2, 2, 12, 4)] * 3),
        ("linear", Pattern.CAUSAL_SELF, "layer", [(2, 12, 8)]),
        ("linear", Pattern.CAUSAL_CROSS, "layer", [(2, 12, 8)] * 2),
        ("fnet", Pattern.NONCAUSAL_SELF, "core", [(2, 12, 8)]),
        ("linear", Pattern.NONCAUSAL_CROSS, "block", [(2, 12, 8)] * 2),
    ],
)
def test_a_core_gets_queries_keys_and_values_and_anything_else_gets_tokens(name, pattern, module, shapes):
    made = workload(name, pattern, module=module)
    assert [tuple(x.shape) for x in made.sets[0]] == shapes
    assert isinstance(made.module, TimedBlock) == (module == "block")


def test_the_core_of_a_layer_is_its_attend_and_nothing_around_it():
    made = workload("softmax")
    q, k, v = made.sets[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(made.work("forward").calls[0](), expected)


def test_sets_of_inputs_are_all_different_and_a_call_has_one_of_its_own():
    made = workload()
    assert len(made.sets) == MOST_SETS == len(made.work("forward").calls) == len(made.work("train").calls)
    outputs = [call() for call in made.work("forward").calls]
    assert all(not torch.equal(outputs[0], other) for other in outputs[1:])


@given(st.integers(0, 2**34))
def test_sets_together_are_twice_what_a_cache_holds_but_not_too_many(nbytes):
    count = sets_needed(nbytes, "cpu")
    assert 1 <= count <= MOST_SETS
    assert count == MOST_SETS or count * nbytes >= 2 * 32 * 2**20


@pytest.mark.parametrize("name", ["linear", "s4d", "linformer", "none"])
def test_a_training_call_keeps_no_gradient(name):
    made = workload(name)
    for call in made.work("train").calls[:2]:
        assert call() is None
    assert all(parameter.grad is None for parameter in made.module.parameters())
    assert all(x.grad is None and not x.requires_grad for inputs in made.sets for x in inputs)


def test_a_training_call_asks_for_the_gradients_of_inputs_and_of_parameters_that_take_part(monkeypatch):
    asked = {}

    def grad(y, wanted, dy, allow_unused):
        found = true_grad(y, wanted, dy, allow_unused=allow_unused)
        asked["given"] = [one is not None for one in found]
        return found

    true_grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", grad)
    workload("linear").work("train").calls[0]()
    assert asked["given"] == [True] * 3 + [False] * 8  # q, k, v, and none of the four projections
    workload("linear", module="layer").work("train").calls[0]()
    assert all(asked["given"])


def test_only_what_takes_part_in_a_call_is_held():
    core, layer = workload("linear"), workload("linear", module="layer")
    assert sum(x.nbytes for x in core.work("forward").held) == sum(x.nbytes for x in core.sets[0])
    weights = sum(p.nbytes for p in layer.module.parameters())
    assert sum(x.nbytes for x in layer.work("forward").held) == weights + layer.sets[0][0].nbytes


def test_a_sample_is_the_first_row_and_finer_weights_are_a_copy():
    made = workload("linformer", module="layer")
    fine = made.sample(torch.float64)
    assert (fine.shape[0], fine.dtype) == (1, torch.float64)
    torch.testing.assert_close(made.sample().double(), fine)
    torch.testing.assert_close(made.work("forward").calls[0]()[:1], made.sample())
    assert all(parameter.dtype == torch.float32 for parameter in made.module.parameters())


def test_bfloat16_means_inputs_of_it_and_weights_of_single_precision():
    made = workload("linformer", dtype="bfloat16", module="layer")
    assert made.sets[0][0].dtype == made.work("forward").calls[0]().dtype == torch.bfloat16
    assert {p.dtype for p in made.module.parameters()} == {torch.float32}
    made.work("train").calls[0]()


def test_what_a_forward_pass_keeps_is_its_activations_and_not_what_was_there_before():
    weights, x = torch.ones(10, 10, requires_grad=True), torch.ones(5, 10)

    def forward():
        return (x @ weights).exp()  # saves x, the weights and its own result

    found = memory_of(lambda: forward().sum().backward(), "cpu", held=[x, weights], forward=forward)
    assert found.activations == 5 * 10 * 4
    assert found.reserved is None
    assert found.allocated > (100 + 50) * 4 + found.activations


# ------------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("name", ["softmax", "linear", "s4d", "local"])
def test_a_step_is_the_token_after_the_context(name):
    made = DecodeWorkload(attentions.get(name), Pattern.CAUSAL_SELF, SETUP, 12, "cpu")
    tokens, token = made.row
    with torch.no_grad():
        whole = made.layer(torch.cat([tokens, token[:, None]], dim=1))[:, -1]
    torch.testing.assert_close(made.sample(), whole)
    torch.testing.assert_close(made.sample(torch.float64), whole.double())


def test_every_step_begins_at_the_same_state_which_no_step_changes():
    made = DecodeWorkload(attentions.get("softmax"), Pattern.CAUSAL_SELF, SETUP, 12, "cpu")
    work = made.work()
    for _ in range(2):
        for call in work.calls:
            call()
    assert {state.k.shape[2] for _, state in made.sets} == {12}
    assert len({state.k.data_ptr() for _, state in made.sets}) == len(made.sets) == MOST_SETS
    assert work.state_bytes == made.sets[0][1].nbytes
