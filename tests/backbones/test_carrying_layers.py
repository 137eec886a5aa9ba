"""What a mechanism carries goes from layer to layer of an encoder, whichever way its rows are computed."""

from dataclasses import replace

import pytest
import torch

from longspan import attentions, tasks
from longspan.backbones.encoder_classifier import EncoderClassifier


def tokens(n, rows=2):
    return torch.randint(20, (rows, n), generator=torch.Generator().manual_seed(n))


def encoder(pooling, spec="luna(slots=3)"):
    rules = tasks.get("listops").protocol("longspan", "smoke")
    sizes = replace(rules.model, dim=16, heads=2, layers=3, mlp=16, dropout=0.0, attention_dropout=0.0, pooling=pooling)
    torch.manual_seed(0)
    return EncoderClassifier(attentions.get(spec), sizes, vocabulary=20, classes=4, length=12).double().eval()


def test_an_encoder_passes_the_packed_sequence_from_layer_to_layer():
    model = encoder("mean")
    x, carry = model._embed(tokens(9)) + model.positions[:9], None
    for block in model.blocks:
        y, carry = block.attention.carried(block.attention_norm(x), carry=carry)
        x = x + y
        x = x + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(model.encode(tokens(9)), model.norm(x).mean(dim=1))
    model(tokens(9)).sum().backward()
    assert model.blocks[0].attention.p.grad.any()
    assert model.blocks[1].attention.p.grad is None  # its place is taken by what the first layer packed


@pytest.mark.parametrize("pooling", ["mean", "cls", "first"])
def test_packed_rows_carry_what_each_row_carries_alone(pooling):
    model, rows = encoder(pooling), tokens(9, rows=3)
    lengths = [9, 4, 6]
    together = model.encode(rows, lengths)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(together[i], model.encode(rows[i : i + 1, :length])[0])


@pytest.mark.parametrize("pooling", ["cls", "first"])
def test_the_last_block_reads_what_was_carried_where_only_its_first_row_is_computed(pooling):
    model = encoder(pooling)
    early = model.encode(tokens(9), [9, 5])
    model.whole = True
    torch.testing.assert_close(model.encode(tokens(9), [9, 5]), early)
