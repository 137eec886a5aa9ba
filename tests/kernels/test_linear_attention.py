"""Linear attention: the reference against dense formulas, states against whole rows, the kernels against the reference,
and what the compiler says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step
from longspan.kernels.linear_attention.reference import chunked, recurrence
from longspan.kernels.linear_attention.shape import Shape
from longspan.kernels.packing import Layout
from tests.attentions.agreement import headwise
from tests.kernels.agreement import gradients
from tests.kernels.linear_attention_problems import draw, draw_ragged, offsets_of
from tests.kernels.memory import LargestTensor
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler


def dense(q, k, v, *, feature, causal, eps, floor=0.0, key_mask=None, angles=None):
    """With the dense matrix of weights."""
    if feature == "elu":
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    elif angles is not None:
        weights = q.relu() @ k.relu().mT * (angles[0][:, None, :, None] - angles[1][:, None, None, :]).cos()
    else:
        weights = q @ k.mT
    if key_mask is not None:
        weights = weights * key_mask[:, None, None]
    weights = weights.tril() if causal else weights
    return weights @ v / (weights.sum(dim=-1, keepdim=True) + eps).clamp(min=floor)


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["none", "elu", "cosine"]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_the_reference_is_the_dense_formula_in_outputs_and_gradients(n, m, feature, causal, masked):
    how = {"causal": causal, "masked": masked, "dtype": torch.float64, "c": 3, "e": 4}
    inputs, options = draw(n, n if causal else m, feature=feature, **how)
    y, expected = linear_attention(*inputs, **options), dense(*inputs, **options)
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-6)  # angles are float32
    for found, other in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, other, atol=1e-5, rtol=1e-5)


def test_half_precision_is_summed_in_single_precision_also_under_autocast():
    (q, k, v), options = draw(300, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = linear_attention(q, k, v, **options)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, linear_attention(q.float(), k.float(), v.float(), **options).bfloat16())


def decays(length, size, dtype=torch.float64):
    return (-size * torch.rand(2, 3, length, dtype=dtype)).requires_grad_()


def draw_features(length, *, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(2, 3, length, width, dtype=dtype, requires_grad=True) for width in (5, 5, 4)]


@pytest.mark.parametrize("decay", [None, 0.1, 5.0])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_chunks_agree_with_the_recurrence_in_outputs_states_and_gradients(length, decay):
    inputs, g = draw_features(length), None if decay is None else decays(length, decay)
    state = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    for start in (None, state):
        leaves = [x for x in (*inputs, g, start) if x is not None]
        found, expected = (form(*inputs, g, start) for form in (chunked, recurrence))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            torch.testing.assert_close(one, other)


def test_a_thousand_tokens_agree_in_single_precision():
    q, k, v = (x.detach() for x in draw_features(1000))
    fast, _ = chunked(q.float(), k.float(), v.float())
    # Sums of a thousand products, about a hundred in size, lose about three of float32's seven digits.
    torch.testing.assert_close(fast.double(), recurrence(q, k, v)[0], atol=1e-3, rtol=1e-4)


def test_a_sudden_loss_of_memory_leaves_later_decays_exact():
    inputs, g = [x.detach() for x in draw_features(80, dtype=torch.float32)], decays(80, 0.5, torch.float32).detach()
    g[:, :, 20] = -1e7
    exact, _ = recurrence(*(x.double() for x in inputs), g.double())
    torch.testing.assert_close(chunked(*inputs, g)[0].double(), exact, atol=1e-5, rtol=1e-5)


def test_everything_may_be_forgotten():
    inputs, g = draw_features(130), decays(130, 1.0).detach()
    g[:, :, 100] = -torch.inf
    fresh, _ = chunked(*(x[:, :, 100:] for x in inputs), g[:, :, 100:])
    whole, _ = chunked(*inputs, g)
    torch.testing.assert_close(whole[:, :, 100:], fresh)
    assert all(x.isfinite().all() for x in gradients(whole, inputs))


def test_no_tensor_holds_a_state_per_token():
    n, r, e = 2048, 64, 64
    q, k, v = (torch.randn(1, 1, n, r, requires_grad=True) for _ in range(3))
    with LargestTensor() as largest:
        chunked(q, k, v, -torch.rand(1, 1, n))[0].sum().backward()
    assert largest.numel <= n * r * e // 16


@pytest.mark.parametrize("fades", [False, True])
@pytest.mark.parametrize("how", [{"eps": 1e-6}, {"normalize": False}, {"feature": "elu", "floor": 0.5}], ids=str)
def test_segments_and_steps_continue_what_a_whole_row_gives(how, fades):
    q, k, v = (x.detach().abs() for x in draw_features(40))
    decay, mask = decays(40, 0.3).detach(), torch.rand(2, 40) < 0.8
    mask[:, 30:] = True

    def beside(part):
        return {"key_mask": mask[:, part], "decay": decay[:, :, part] if fades else None}

    def segment(part, state=None):
        tokens = (x[:, :, part] for x in (q, k, v))
        return linear_attention(*tokens, causal=True, initial_state=state, return_state=True, **beside(part), **how)

    whole, last = segment(slice(0, 40))
    first, state = segment(slice(0, 17))
    kinds = {name: value for name, value in how.items() if name in ("feature", "normalize")}
    torch.testing.assert_close(final_state(k[:, :, :17], v[:, :, :17], **beside(slice(0, 17)), **kinds), state)
    second, state = segment(slice(17, 30), state)
    rows = [first, second]
    for t in range(30, 40):
        token = (x[:, :, t] for x in (q, k, v))
        y, state = linear_attention_step(*token, state, decay=decay[:, :, t] if fades else None, **how)
        rows.append(y[:, :, None])
    torch.testing.assert_close(torch.cat(rows, dim=2), whole)
    torch.testing.assert_close(state, last)


def test_all_queries_can_read_a_state_that_earlier_keys_left():
    q, k, v = (x.detach().abs() for x in draw_features(9))
    y, state = linear_attention(q, k, v, return_state=True)
    torch.testing.assert_close(linear_attention_step(q[:, :, 3], None, None, state)[0], y[:, :, 3])
    earlier = final_state(k[:, :, :4], v[:, :, :4])
    torch.testing.assert_close(linear_attention(q, k[:, :, 4:], v[:, :, 4:], initial_state=earlier), y)


def test_a_decay_needs_the_causal_form():
    with pytest.raises(UsageError, match="got causal=False"):
        linear_attention(*draw_features(3), decay=decays(3, 1.0))


def loop(q, k, v, lengths, queries, feature, eps, causal):
    """For each row and head, with the dense matrix of weights."""
    phi = (lambda x: F.elu(x) + 1) if feature == "elu" else (lambda x: x)
    y = torch.zeros(len(q), *v.shape[1:], dtype=q.dtype)
    keys_at = queries_at = 0
    for m, n in zip(lengths, queries, strict=True):
        for head in range(q.shape[1]):
            mine = slice(queries_at, queries_at + n), head
            theirs = slice(keys_at, keys_at + m), head
            weights = phi(q[mine]) @ phi(k[theirs]).mT
            weights = weights.tril() if causal else weights
            y[mine] = weights @ v[theirs] / (weights.sum(dim=1, keepdim=True) + eps)
        keys_at, queries_at = keys_at + m, queries_at + n
    return y


@st.composite
def ragged_problems(draw):
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
    others = st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths)).filter(any)
    sizes = {"heads": draw(st.integers(1, 3)), "r": draw(st.integers(1, 5)), "e": draw(st.integers(1, 5))}
    queries = draw(st.none() | others)
    return lengths, queries, sizes, draw(st.sampled_from(["none", "elu"])), queries is None and draw(st.booleans())


@given(ragged_problems(), st.sampled_from([1e-6, 0.5]))
@settings(deadline=None, max_examples=60)
def test_ragged_rows_are_a_loop_over_rows_and_heads_in_outputs_and_gradients(problem, eps):
    lengths, queries, sizes, feature, causal = problem
    inputs = draw_ragged(lengths, **sizes, queries=queries, dtype=torch.float64, positive=feature == "none")
    rows = {"cu_seqlens": offsets_of(lengths), "max_seqlen": max(lengths)}
    if queries is not None:
        rows |= {"query_cu_seqlens": offsets_of(queries), "max_query_seqlen": max(queries)}
    y = linear_attention(*inputs, **rows, feature=feature, causal=causal, eps=eps)
    expected = loop(*inputs, lengths, queries or lengths, feature, eps, causal)
    torch.testing.assert_close(y, expected)
    for found, other in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, other)


def test_ragged_rows_never_see_one_another():
    q, k, v = (x.detach() for x in draw_ragged([5, 7, 3], 2, 4, 4))
    rows = {"cu_seqlens": offsets_of([5, 7, 3]), "max_seqlen": 7}
    before = linear_attention(q, k, v, **rows, feature="elu", eps=1e-6)
    for x in (q, k, v):
        x[5:12] = 1e4
    after = linear_attention(q, k, v, **rows, feature="elu", eps=1e-6)
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[12:], after[12:])


def test_a_ragged_row_without_keys_gives_zero():
    q, k, v = draw_ragged([0, 3], 2, 4, 4, queries=[2, 1])
    rows = {"cu_seqlens": offsets_of([0, 3]), "max_seqlen": 3}
    rows |= {"query_cu_seqlens": offsets_of([2, 1]), "max_query_seqlen": 2}
    y = linear_attention(q, k, v, **rows, feature="elu", eps=1e-6)
    assert not y[:2].any()
    assert y[2].any()


def test_ragged_segments_continue_one_another():
    q, k, v = (x.detach() for x in draw_ragged([6, 9], 2, 4, 4, dtype=torch.float64, positive=True))
    g = -torch.rand(15, 2, dtype=torch.float64)

    def segment(kept, state=None):
        rows = {"cu_seqlens": offsets_of([len(kept[0]), len(kept[1])]), "max_seqlen": max(map(len, kept))}
        at = torch.tensor([*kept[0], *kept[1]])
        tokens = (x[at] for x in (q, k, v))
        how = {"decay": g[at], "initial_state": state, "return_state": True, "causal": True}
        return at, *linear_attention(*tokens, **rows, **how)

    _, whole, last = segment((range(6), range(6, 15)))
    first, one, state = segment((range(2), range(6, 13)))
    second, other, state = segment((range(2, 6), range(13, 15)), state)
    torch.testing.assert_close(one, whole[first])
    torch.testing.assert_close(other, whole[second])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize(
    "rows, words",
    [
        ({"query_cu_seqlens": offsets_of([2]), "max_seqlen": 3}, "give both or neither"),
        ({"query_cu_seqlens": offsets_of([2]), "max_query_seqlen": 2, "max_seqlen": 3, "causal": True}, "same tokens"),
        ({}, "with max_seqlen"),
    ],
)
def test_ragged_rows_are_described_whole(rows, words):
    q, k, v = draw_ragged([3], 1, 4, 4, queries=[2])
    with pytest.raises(UsageError, match=words):
        linear_attention(q, k, v, cu_seqlens=offsets_of([3]), **rows)


@pytest.mark.parametrize("lengths", [[4, 9, 1], [9, 9]])
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_the_mechanism_on_ragged_rows_is_itself_on_padded_ones(lengths, pattern):
    layer = headwise("linear", pattern)
    layout = Layout.of_lengths(lengths)
    q, k, v = draw_ragged(lengths, layer.heads, layer.head_dim, layer.head_dim, dtype=torch.float64)
    padded = (layout.unpack(x).transpose(1, 2) for x in (q, k, v))
    expected = layout.pack(layer.attend(*padded, key_mask=layout.mask).transpose(1, 2))
    torch.testing.assert_close(layer.attend_packed(q, k, v, layout), expected)
    if pattern is Pattern.NONCAUSAL_SELF:
        first = layout.cu_seqlens[:-1].long()
        torch.testing.assert_close(layer.attend_first_packed(q[first], k, v, layout), expected[first])


@pytest.mark.parametrize(
    "problem, how, words",
    [
        ({"c": 200}, {}, "at most 128 wide"),
        ({"c": 100, "feature": "cosine"}, {}, "at most 128 wide"),
        ({"dtype": torch.float64}, {}, "float32 or all in bfloat16"),
        ({"causal": True}, {"decay": torch.zeros(2, 2, 3)}, "neither decay nor"),
        ({}, {"return_state": True}, "neither decay nor initial and final states"),
    ],
)
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(problem, how, words):
    inputs, options = draw(3, **problem)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        linear_attention(*inputs, **options, **how, impl="triton")


def test_operations_count_sums_and_readings_in_both_passes():
    q, k, v = (2, 3, 10, 8), (2, 3, 20, 8), (2, 3, 20, 4)
    beside, how = [*[None] * 5, 0, 0], (False, 1e-6, 0.0)
    forward = formulas()[torch.ops.longspan.linear_attention]
    backward = formulas()[torch.ops.longspan.linear_attention_backward]
    assert forward(q, k, v, *beside, "elu", *how) == 2 * 6 * 30 * 8 * 5
    assert forward(q, k, v, *beside, "cosine", *how) == 2 * 6 * 30 * 16 * 5
    assert backward(v, None, (), (), q, k, v, *beside, "elu", *how) == 2 * 2 * 6 * 30 * 8 * 5


def build(name, dtype, width, feature, *, causal, ragged):
    from longspan.kernels.linear_attention import triton as kernels

    kernel = getattr(kernels, name)
    sample = torch.empty(4, 8, 1024, width, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    how = {"feature": feature, "causal": causal, "eps": 1e-6, "floor": 0.0, "signed": False}
    (shape,) = Shape.slices(sample, sample, 4 if ragged else None, **how)
    constants = shape.constants(backward="backward" in name) | shape.flags
    constants |= {"MASKED": not ragged, "GIVEN": False, "SIGNED": False}
    constants |= dict.fromkeys(("q_angles", "k_angles"), None) if feature != "cosine" else {}
    constants |= {"mask": None, "share": 0} if ragged else {"cu_seqlens": None}
    single = ("sums", "dsums", "d", "dd", "q_angles", "k_angles")
    kinds = dict.fromkeys(single, "*fp32") | {"mask": "*u8", "eps": "fp32", "floor": "fp32", "cu_seqlens": "*i32"}
    kinds |= dict.fromkeys(("heads", "n", "share"), "i32")
    return compiled(kernel, constants, kinds, otherwise=f"*{dtype}", multiples=f"n|share|{STRIDES}")


NAMES = ["_sum_keys", "_read", "_backward_queries", "_backward_keys"]


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("feature, limit_kib", [("elu", 112), ("cosine", 160)])
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles_for_a_large_gpu_within_its_shared_memory(name, feature, limit_kib):
    built = build(name, "bf16", 64, feature, causal=True, ragged=False)
    assert built.metadata.shared <= limit_kib * 1024


@needs_compiler
@pytest.mark.parametrize("dtype, width, limit_kib", [("bf16", 64, 88), ("bf16", 128, 160), ("fp32", 64, 88)])
@pytest.mark.parametrize("name", NAMES)
def test_for_ragged_rows_it_compiles_within_less_shared_memory(name, dtype, width, limit_kib):
    built = build(name, dtype, width, "elu", causal=False, ragged=True)
    assert built.metadata.shared <= limit_kib * 1024
