"""A mechanism's carry goes from segment to segment of a language model; without a carry, networks are unchanged."""

import pytest
import torch
import torch.nn.functional as F

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.backbones.gpt2 import GPT2, GPT2Sizes

SIZES = GPT2Sizes(dim=16, heads=2, layers=2, mlp=16, attention_dropout=0.0)


def language_model(spec="transformer_xl(memory=5, segment=4)"):
    torch.manual_seed(0)
    return GPT2(attentions.get(spec), SIZES, vocabulary=20, length=30).double().eval()


def tokens(n, rows=2):
    return torch.randint(20, (rows, n), generator=torch.Generator().manual_seed(n))


def one_after_the_other(model, row, target):
    """The loss of a row that goes through all layers segment by segment."""
    x, carry, parts = model._embed(row, 0), [None, None], []
    for first in range(0, row.shape[1], 4):
        part, real = x[:, first : first + 4], target[:, first : first + 4] >= 0
        for i, block in enumerate(model.blocks):
            y, carry[i] = block.attention.carried(block.attention_norm(part), carry=carry[i], mask=real)
            part, carry[i] = block._rest(part, y), carry[i].detached()
        parts.append(part)
    logits = model._logits(model.norm(torch.cat(parts, dim=1)))
    return F.cross_entropy(logits.mT, target, ignore_index=-1, reduction="none")


@pytest.mark.parametrize("n", [3, 8, 11])
@pytest.mark.parametrize("real", [2, 5, 11])
@pytest.mark.parametrize(
    "spec",
    ["transformer_xl(memory=5, segment=4)", "compressive_transformer(memory=3, compressed=2, ratio=2, segment=4)"],
)
def test_a_row_in_segments_is_what_its_segments_give_one_after_the_other(spec, real, n):
    model, row = language_model(spec).train(), tokens(n)
    target = row.roll(-1, 1)
    target[1, real:] = -1

    def learned(loss):
        model.zero_grad()
        with collecting(model) as layers:
            nats = loss()
            (nats.sum() + auxiliary_loss(layers)).backward()
        return nats, {name: parameter.grad for name, parameter in model.named_parameters()}

    expected = learned(lambda: one_after_the_other(model, row, target))
    torch.testing.assert_close(learned(lambda: model(row, target)), expected)


def test_a_segment_as_long_as_the_row_is_plain_attention():
    whole, parted = language_model("transformer_xl(segment=0)"), language_model("transformer_xl(segment=30)")
    assert whole.segment is None
    torch.testing.assert_close(parted(tokens(11)), whole(tokens(11)))


def test_the_past_reaches_a_later_segment_but_no_gradient_comes_back():
    model, row = language_model(), tokens(8)
    other = row.clone()
    other[:, 1] = (row[:, 1] + 1) % 20
    assert not torch.allclose(model(row)[:, 4:], model(other)[:, 4:])
    x = model._embed(row, 0).detach().requires_grad_()
    y, _ = model._through(x, [None, None])
    (gradient,) = torch.autograd.grad(y[:, 4:].square().sum(), x)
    assert not gradient[:, :4].any()
    assert gradient[:, 4:].any()


@pytest.mark.parametrize("prefix", [0, 3, 4, 6, 8])
def test_decoding_step_by_step_reads_the_same_segments(prefix):
    model, row = language_model(), tokens(11)
    expected = model(row)
    y, state = model.prefill(row[:, :prefix])
    torch.testing.assert_close(y, expected[:, :prefix])
    for t in range(prefix, 11):
        y, state = model.step(row[:, t], state)
        torch.testing.assert_close(y, expected[:, t])
    assert state.select(torch.tensor([1])).nbytes * 2 == state.nbytes


def test_rows_go_on_after_what_the_rows_before_left():
    model, row = language_model(), tokens(12)
    target = torch.zeros_like(row)
    _, carry = model(row[:, :8], target[:, :8], [None, None])
    whole, _ = model(row, target, [None, None])
    model.positions = model.positions.roll(-8, 0)  # so that the second half has the positions it has in the whole row
    after, _ = model(row[:, 8:], target[:, 8:], carry)
    torch.testing.assert_close(after, whole[:, 8:])


def test_the_padding_of_a_row_is_not_carried_on():
    model, row = language_model(), tokens(8)
    target = torch.zeros_like(row)
    target[1, 5:] = -1
    _, carry = model(row, target, [None, None])
    _, alone = model(row[1:, :5], target[1:, :5], [None, None])
    for found, expected in zip(carry, alone, strict=True):
        torch.testing.assert_close(found.x[1][found.mask[1]], expected.x[0][expected.mask[0]])


def test_nothing_carried_is_saved_with_the_weights():
    model = language_model()
    before = set(model.state_dict())
    model(tokens(9), tokens(9), [None, None])
    assert set(model.state_dict()) == before


@pytest.mark.parametrize("name", ["listops", "mlm", "summarization"])
def test_encoders_compute_as_before_where_nothing_is_carried(name):
    task = tasks.get(name)
    rules = task.protocol("longspan", "smoke")
    model = task.model(attentions.get("softmax"), rules).eval()
    feed = task.feed(task.made_up(rules, 2), rules, "cpu")
    assert torch.isfinite(task.loss(model, feed.batch(torch.arange(2).numpy())).loss)
    assert Pattern.NONCAUSAL_SELF in task.meta.slots.values()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("real, n", [(9, 11), (8, 12)])  # segments with padding, and one of only padding
@pytest.mark.parametrize("spec", ["sac(edges=3)", "compressive_transformer(memory=3, compressed=2, segment=4)"])
def test_the_padding_of_a_row_is_not_in_the_auxiliary_loss(spec, real, n, streams):
    model, row = language_model(spec).train(), tokens(n)
    target = torch.zeros_like(row)
    target[:, real:] = -1

    def term(row, target):
        with collecting(model) as layers:
            model(row, target, *([[None, None]] if streams else []))
            return auxiliary_loss(layers)

    expected = term(row[:, :real], target[:, :real])
    assert expected > 0
    torch.testing.assert_close(term(row, target), expected)
