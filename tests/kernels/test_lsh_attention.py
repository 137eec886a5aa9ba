"""LSH attention: the fast paths and the dense matrix agree, the hash is an argmax, and all kernels compile."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.lsh_attention import lsh_attention
from longspan.kernels.lsh_attention.hash import cross_polytope_hash, hash_factors
from tests.kernels.sm90 import compiled, needs_compiler


def tensors(n, rounds, buckets, seed, b=2, h=2, c=3, e=4):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, c), (b, h, n, c), (b, h, n, e))
    leaves = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    mask = torch.rand(b, n, generator=generator) < 0.7
    return leaves, torch.randint(buckets, (b, h, rounds, n), generator=generator), mask


def assert_agree(attention, leaves, *rest, **options):
    found, expected = (attention(*leaves, *rest, **options, impl=impl) for impl in ("auto", "reference"))
    close = {"rtol": 1e-11, "atol": 1e-11}  # no intermediate may be in single precision
    torch.testing.assert_close(found, expected, **close)
    w = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, **close)


@given(
    n=st.integers(1, 70),
    rounds=st.integers(1, 3),
    buckets=st.sampled_from([1, 2, 5, 40]),
    left=st.integers(0, 80),
    right=st.integers(0, 80),
    scale=st.sampled_from([1.0, 0.3]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_a_window_within_the_bucket_agrees_with_the_reference(n, rounds, buckets, left, right, scale, seed):
    (z, _, v), numbers, _ = tensors(n, rounds, buckets, seed)
    assert_agree(lsh_attention, (z, v), numbers, left=left, right=right, scale=scale)


@pytest.mark.parametrize("n", [63, 1000])
@pytest.mark.parametrize("left, right", [(127, 0), (64, 64), (3, 1)])
def test_long_rows_agree_with_the_reference(n, left, right):
    (z, _, v), numbers, _ = tensors(n, 2, 4, seed=0, b=1, h=1)
    assert_agree(lsh_attention, (z, v), numbers, left=left, right=right)


def test_rounds_whose_logits_lie_far_apart_are_merged_without_overflow():
    """One round would underflow next to the other; a plain exponential would overflow."""
    (z, _, v), numbers, _ = tensors(30, 3, 4, seed=0)
    z, v = 300 * z.detach(), v.detach()
    found = lsh_attention(z.float(), v.float(), numbers, left=5, right=5)
    expected = lsh_attention(z, v, numbers, left=5, right=5, impl="reference")
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)  # logits of 1000 in single precision


def test_a_token_alone_in_its_buckets_gives_its_own_value():
    (z, _, v), numbers, _ = tensors(9, 2, 1, seed=0)
    numbers[..., 4] = 1
    y = lsh_attention(z, v, numbers, left=9, right=9)
    assert torch.equal(y[:, :, 4], v[:, :, 4])
    assert not torch.isclose(y[:, :, :4], v[:, :, :4]).any()


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, c, dropout, words", [(torch.float64, 4, 0.0, "float32 or half"),
    (torch.float32, 200, 0.0, "at most 128 wide"), (torch.float32, 4, 0.1, "no dropout")])  # fmt: skip
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(dtype, c, dropout, words):
    z, numbers = torch.zeros(1, 1, 3, c, dtype=dtype), torch.zeros(1, 1, 2, 3, dtype=torch.long)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        lsh_attention(z, z, numbers, left=1, right=1, dropout=dropout, impl="triton")


def test_operations_count_the_window_in_every_round():
    z, v, order = (2, 3, 100, 8), (2, 3, 100, 4), (2, 3, 5, 100)
    forward, backward = (
        formulas()[torch.ops.longspan.lsh_attention],
        formulas()[torch.ops.longspan.lsh_attention_backward],
    )
    assert forward(z, v, order, order, 10, 6, 1.0) == 2 * (6 * 5 * 100) * 16 * (8 + 4)
    assert forward(z, v, order, order, 99, 99, 1.0) == 2 * (6 * 5 * 100) * 99 * (8 + 4)
    assert backward(v, v, order, z, v, order, order, 10, 6, 1.0) == 2 * (6 * 5 * 100) * 16 * (3 * 8 + 2 * 4)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_hash_is_the_argmax_of_directions_and_opposites(n, one, other, seed):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randint(-2, 3, (n, 2, one + other), generator=generator).double()  # so that many are equal
    offset = torch.randint(-2, 3, (2, one + other), generator=generator).double()
    first, second = (u + offset).split([one, other], dim=-1)
    first, second = (torch.cat([part, -part], dim=-1).argmax(dim=-1) for part in (first, second))
    assert torch.equal(cross_polytope_hash(u, (2 * one, 2 * other), offset), 2 * other * first + second)


@pytest.mark.parametrize("buckets", [0, 5, 130])
def test_impossible_numbers_of_buckets_are_refused(buckets):
    with pytest.raises(UsageError, match=f"got buckets={buckets}"):
        hash_factors(buckets)


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("dtype, half, words", [(torch.float64, 4, "takes float32"), (torch.float32, 5_000, "4096")])
def test_what_the_hash_kernel_cannot_do_is_refused_with_a_sentence(dtype, half, words):
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        cross_polytope_hash(torch.zeros(1, 1, half, dtype=dtype), (2 * half,), impl="triton")


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["forward", "delta", "backward"])
@pytest.mark.parametrize("c", [64, 128])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, kind, c):
    from longspan.kernels.lsh_attention import triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(1, 1, 1, c, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[kind])
    constants = kernels.launch(kernels.FORWARD if name == "forward" else kernels.BACKWARD, sample, sample, 128)
    constants |= {"FIRST": False, "LAST": True}
    kinds = dict.fromkeys(("lse", "delta", "mean", "z_sums", "v_sums"), "*fp32")
    kinds |= {"order": "*i64", "bucket": "*i16", "scale": "fp32"}
    kinds |= dict.fromkeys(("heads", "n", "rounds", "turn", "left", "right"), "i32")
    built = compiled(kernel, constants, kinds, otherwise=f"*{kind}", multiples="")
    assert built.metadata.shared <= 96 * 1024


@needs_compiler
@pytest.mark.parametrize("factors", [(16, 32), (128,)])
def test_the_hash_compiles_for_a_large_gpu(factors):
    from longspan.kernels.lsh_attention import triton as kernels

    kernel, half = kernels.cross_polytope_hash, sum(factors) // 2
    T, H = kernels.hashed_rows(half)
    constants = {"half": half, "one": factors[0], "other": (*factors, 0)[1], "T": T, "H": H, "OFFSET": True}
    kinds = {"found": "*i64", "rows": "i32", "m": "i32"}
    assert compiled(kernel, constants, kinds, otherwise="*fp32").asm["ptx"]
