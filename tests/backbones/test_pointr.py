"""PoinTr: exact parameter counts, the same function as a plain reimplementation, and its own kinds of slots."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.parameters import count_shapes
from longspan.backbones.pointr import PoinTr, Sizes, grid
from longspan.backbones.slots import Slots, filled
from longspan.core.errors import UsageError
from longspan.kernels.point_cloud import farthest_points
from longspan.metrics.point_cloud import chamfer_l1
from tests.backbones.representatives import one_of_each_kind

NS, NC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS
TINY = Sizes(
    dim=16,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    mlp=24,
    whole=20,
    sample=24,
    proxies=12,
    queries=10,
    predicted=40,
    neighbours=5,
    geometry=3,
)


def pointr(mechanism="softmax", patterns=(NC,), sizes=TINY):
    return PoinTr(Slots(attentions.get(mechanism), frozenset(patterns)), sizes)


def scans(batch=2, points=40, seed=1):
    return (
        torch.rand(batch, points, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float() - 0.5
    )


# ----------------------------------------------------------------------------------------------------------- parameters

CAB = Sizes(qkv_bias="inexact", skip="near_origin", coarse="sampled")
UPSTREAM = dataclasses.replace(CAB, queries=224, sample=512, proxies=128)
COUNTS = [
    (CAB, "softmax", NC, 52_830_054),
    (CAB, "performer(features=64)", NC, 52_839_270),
    (CAB, "cosformer", NC, 52_839_270),
    (CAB, "abc(slots=64)", NC, 52_904_806),
    (UPSTREAM, "softmax", NC, 42_498_054),
    (UPSTREAM, "performer", NC, 42_507_270),
    (CAB, "performer", NS, 52_836_966),
    (dataclasses.replace(CAB, decoder_self="trial"), "performer", NS, 52_846_182),
    (Sizes(), "softmax", NC, 52_830_054),
    (Sizes(), "performer(features=64)", NC, 52_830_054),  # with one rule for all, all counts are equal
    (Sizes(), "abc(slots=64)", NC, 52_830_054 + 65_536),
    (Sizes(qkv_bias="all"), "softmax", NC, 52_830_054 + 22 * 3 * 384),
]


@pytest.mark.parametrize("sizes, mechanism, pattern, expected", COUNTS)
def test_parameters_are_the_published_ones_to_the_integer(sizes, mechanism, pattern, expected):
    assert count_shapes(lambda: pointr(mechanism, (pattern,), sizes))["total"] == expected


def test_each_part_has_its_share():
    with torch.device("meta"):
        model = pointr(sizes=CAB)
    parts = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    assert parts == {
        "grouper": 29_792,
        "position": 50_304,
        "embedding": 198_144,
        "encoder": 6 * 1_773_312,
        "summary": 1_445_888,
        "coarse": 12_070_400,
        "query": 1_052_672,
        "query_mlp": 2_495_872 - 1_052_672,
        "decoder": 8 * 2_955_648,
        "output_summary": 1_445_888,
        "reduce": 542_208,
        "folds": 266_502,
    }


def test_unused_maps_of_neighbours_count_and_are_not_trained():
    model = pointr()
    model.train()
    coarse, dense = model(scans())
    (coarse.square().sum() + dense.square().sum()).backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None}
    assert idle == {name for name, p in model.named_parameters() if not p.requires_grad}
    assert idle == {
        f"{part}.1.{branch}.{layer}.{kind}"
        for part, branches in (("encoder", ["geometry"]), ("decoder", ["geometry", "cross_geometry"]))
        for branch in branches
        for layer in ("neighbours", "join")
        for kind in ("weight", "bias")
    }


# --------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("coarse, count", [("sampled", 7_168), ("input", 5_632)])
def test_clouds_of_real_size_have_the_published_shapes(coarse, count):
    sizes = dataclasses.replace(
        Sizes(), coarse=coarse, dim=16, heads=2, encoder_layers=1, decoder_layers=1, mlp=16, whole=16, neighbours=4
    )
    with torch.no_grad():
        found = pointr("linear", (NS, NC), dataclasses.replace(sizes, decoder_self="trial")).eval()(scans(1, 2048))
    assert [tuple(cloud.shape) for cloud in found] == [(1, count, 3), (1, 16_384, 3)]


def test_a_sampled_coarse_cloud_repeats_a_point_once_there_are_no_more():
    x, sizes = scans(points=30), dataclasses.replace(TINY, coarse="sampled", queries=50, skip="near_origin")
    with torch.no_grad():
        coarse, _ = pointr(sizes=sizes).eval()(x)
        other, dense = pointr(sizes=dataclasses.replace(sizes, coarse="input")).eval()(x)
    known = coarse[:, 50:]
    assert known.shape == (2, 50, 3)
    chosen = farthest_points(x, 50, skip="near_origin")
    assert all(torch.equal(known[row], x[row, chosen[row]]) for row in range(2))
    assert torch.equal(known[:, 30:], x[:, :1].expand(-1, 20, -1))
    assert torch.equal(other[:, 50:], x)
    assert torch.equal(dense[:, -30:], x)


@pytest.mark.parametrize("side, points", [(1, [(-1, -1)]), (2, [(-1, -1), (1, -1), (-1, 1), (1, 1)])])
def test_the_grid_has_its_first_coordinate_fastest(side, points):
    assert grid(side).tolist() == [list(point) for point in points]


def test_patches_are_as_large_as_the_points_asked_for():
    assert [Sizes(queries=q).side for q in (224, 3_584, 14_336)] == [8, 2, 1]


# --------------------------------------------------------------------------------------------------------------- oracle


def oracle(model, points):
    """The clouds, implemented a second time from the specification: concatenations are built, sampling runs twice."""
    sizes, weights = model.sizes, model.state_dict()

    def linear(name, x):
        bias = weights.get(f"{name}.bias", 0)
        return x @ weights[f"{name}.weight"].T + bias

    def leaky(x):
        return torch.where(x > 0, x, 0.2 * x)

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def batch_norm(name, x):
        scale = (weights[f"{name}.running_var"] + 1e-5).sqrt()
        return (x - weights[f"{name}.running_mean"]) / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def normed_mlp(name, x):
        return linear(f"{name}.second", leaky(batch_norm(f"{name}.norm", linear(f"{name}.first", x))))

    def near(query, source, k):
        return torch.cdist(query, source, compute_mode="donot_use_mm_for_euclid_dist").topk(k, largest=False).indices

    def rows(x, index):
        return torch.stack([one[places] for one, places in zip(x, index, strict=True)])

    def pairs(target, source, index):
        found = rows(source, index)
        own = target[:, :, None].expand_as(found)
        return torch.cat([found - own, own], dim=-1)

    def edges(place, target, target_at, source, source_at):
        name = f"grouper.edges.{place}"
        y = linear(name, pairs(target, source, near(target_at, source_at, sizes.neighbours))).movedim(-1, 1)
        y = F.group_norm(y, 4, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"])
        return leaky(y).amax(dim=-1).mT

    def attend(name, x, context):
        q, k, v = linear(f"{name}.query", x), linear(f"{name}.key", context), linear(f"{name}.value", context)
        heads = []
        for part in torch.arange(sizes.dim).chunk(sizes.heads):
            scores = q[..., part] @ k[..., part].mT / math.sqrt(len(part))
            heads.append(scores.softmax(dim=-1) @ v[..., part])
        return linear(f"{name}.out", torch.cat(heads, dim=-1))

    def geometry(name, y, target, source, index):
        seen = leaky(linear(f"{name}.neighbours", pairs(target, source, index))).amax(dim=2)
        return linear(f"{name}.join", torch.cat([y, seen], dim=-1))

    def mlp(name, x):
        return x + linear(f"{name}.3", F.gelu(linear(f"{name}.1", norm(f"{name}.0", x))))

    f = linear("grouper.embedding", points)
    f = edges(0, f, points, f, points)
    chosen = farthest_points(points, sizes.sample)
    sample = rows(points, chosen)
    f = edges(1, rows(f, chosen), sample, f, points)
    f = edges(2, f, sample, f, sample)
    again = farthest_points(sample, sizes.proxies)
    proxies = rows(sample, again)
    x = normed_mlp("embedding", edges(3, rows(f, again), proxies, f, sample))
    for i in range(sizes.encoder_layers):
        name = f"encoder.{i}"
        x = x + normed_mlp("position", proxies)
        n = norm(f"{name}.norm", x)
        y = attend(f"{name}.attention", n, n)
        if i == 0:
            y = geometry(f"{name}.geometry", y, n, n, near(proxies, proxies, sizes.geometry))
        x = mlp(f"{name}.mlp", x + y)
    whole = normed_mlp("summary", x).amax(dim=1)
    centres = linear("coarse.2", linear("coarse.0", whole).relu()).unflatten(1, (sizes.queries, 3))
    q = torch.cat([whole[:, None].expand(-1, sizes.queries, -1), centres], dim=-1)
    q = linear("query_mlp.3", leaky(linear("query_mlp.1", leaky(linear("query", q)))))
    for i in range(sizes.decoder_layers):
        name = f"decoder.{i}"
        n = norm(f"{name}.norm", q)
        y = attend(f"{name}.attention", n, n)
        if i == 0:
            y = geometry(f"{name}.geometry", y, n, n, near(centres, centres, sizes.geometry))
        q = q + y
        n, m = norm(f"{name}.query_norm", q), norm(f"{name}.memory_norm", x)
        y = attend(f"{name}.cross", n, m)
        if i == 0:
            y = geometry(f"{name}.cross_geometry", y, n, m, near(centres, proxies, sizes.geometry))
        q = mlp(f"{name}.mlp", q + y)
    whole = normed_mlp("output_summary", q).amax(dim=1, keepdim=True).expand(-1, sizes.queries, -1)
    r = linear("reduce", torch.cat([whole, q, centres], dim=-1))
    dense = []
    for query in range(sizes.queries):
        for u, v in [(-1, -1), (1, -1), (-1, 1), (1, 1)]:
            point = torch.tensor([u, v], dtype=points.dtype).expand(len(points), -1)
            for i in range(2):
                h = torch.cat([point, r[:, query]], dim=-1)
                h = batch_norm(f"folds.{i}.first_norm", linear(f"folds.{i}.first", h)).relu()
                h = batch_norm(f"folds.{i}.second_norm", linear(f"folds.{i}.second", h)).relu()
                point = linear(f"folds.{i}.third", h)
            dense.append(point + centres[:, query])
    return torch.cat([centres, points], dim=1), torch.cat([torch.stack(dense, dim=1), points], dim=1)


@pytest.mark.parametrize("sizes", [TINY, dataclasses.replace(TINY, heads=4, proxies=24, decoder_layers=3)])
def test_the_network_is_a_plain_rewriting_of_the_specification(sizes):
    torch.manual_seed(0)
    model = pointr(sizes=sizes).double().eval()
    for parameter in model.parameters():  # the initial weights of a transformer are too small to matter
        nn.init.normal_(parameter, std=0.4)
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm1d)):
        nn.init.uniform_(norm.running_mean, -1, 1)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    x = scans().double()
    with torch.no_grad():
        for found, expected in zip(model(x), oracle(model, x), strict=True):
            torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------------------------------------------------- promises


@given(st.integers(0, 20))
@settings(deadline=None, max_examples=5)
def test_the_order_of_the_points_is_nothing_to_the_completed_ones(seed):
    torch.manual_seed(0)
    model, x = pointr().double().eval(), scans(1).double()
    order = torch.randperm(39, generator=torch.Generator().manual_seed(seed)) + 1
    order = torch.cat([torch.zeros(1, dtype=torch.long), order])  # sampling starts at the same point
    with torch.no_grad():
        (_, dense), (_, turned) = model(x), model(x[:, order])
    torch.testing.assert_close(turned[:, :40], dense[:, :40])
    assert torch.equal(turned[:, 40:], dense[:, 40:][:, order])


def test_a_moved_cloud_is_another_cloud():
    torch.manual_seed(0)
    model, x = pointr().eval(), scans(1)
    with torch.no_grad():
        assert not torch.allclose(model(x + 1)[1][:, :40], model(x)[1][:, :40] + 1, atol=1e-3)


def test_it_runs_without_any_attention_at_all():
    model = pointr("none", (NS, NC), dataclasses.replace(TINY, decoder_self="trial"))
    coarse, dense = model(scans())
    assert dense.isfinite().all()
    (coarse.square().sum() + dense.square().sum()).backward()
    assert model.encoder[0].mlp[1].weight.grad.abs().sum() > 0  # proxies still mix as neighbours and in the maximum
    assert not any("attention" in name or "cross." in name for name, _ in model.named_parameters())


def supporting(pattern):
    """Mechanisms for sequences; those for pictures only refuse other rows."""
    metas = {name: attentions.get(name).meta for name in attentions.names()}
    return [name for name, meta in metas.items() if pattern in meta.patterns and not meta.spatial]


@pytest.mark.parametrize("mechanism, pattern", one_of_each_kind((name, p) for p in (NC, NS) for name in supporting(p)))
def test_every_mechanism_fits_every_slot_of_its_patterns(mechanism, pattern):
    torch.manual_seed(0)
    sizes = dataclasses.replace(TINY, decoder_self="trial", qkv_bias="inexact")
    model, truth = pointr(mechanism, (pattern,), sizes), scans(points=60, seed=2)
    loss = sum(chamfer_l1(cloud, truth).mean() for cloud in model(scans()))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.grouper.embedding.weight.grad.abs().sum() > 0


def test_replacing_a_pattern_leaves_the_other_slots_alone():
    names = [f"encoder.{i}.attention" for i in range(2)]
    own = [f"decoder.{i}.attention" for i in range(2)]
    cross = [f"decoder.{i}.cross" for i in range(2)]
    for patterns, trial, replaced in [
        ((NC,), "softmax", cross),
        ((NS,), "softmax", names),
        ((NS,), "trial", names + own),
        ((NS, NC), "trial", names + own + cross),
    ]:
        found = filled(pointr("abc", patterns, dataclasses.replace(TINY, decoder_self=trial)))
        assert sorted(found) == sorted(names + own + cross)
        assert {name for name, what in found.items() if what.startswith("ABC")} == set(replaced)


@pytest.mark.parametrize(
    "rule, softmax, performer", [("none", False, False), ("inexact", False, True), ("all", True, True)]
)
def test_biases_of_queries_keys_and_values_follow_one_rule(rule, softmax, performer):
    model = pointr("performer", (NC,), dataclasses.replace(TINY, qkv_bias=rule))
    for layer in model.decoder:
        for slot, biased in ((layer.attention, softmax), (layer.cross, performer)):
            assert [m.bias is not None for m in (slot.query, slot.key, slot.value)] == [biased] * 3
            assert slot.out.bias is not None


def test_coordinates_are_not_rounded_under_autocast():
    torch.manual_seed(0)
    model, x = pointr().eval(), scans()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        coarse, dense = model(x)
    assert coarse.dtype == dense.dtype == torch.float32
    assert torch.equal(dense[:, 40:], x)
    assert not torch.equal(dense[:, :40], dense[:, :40].bfloat16().float())
    proxies, _ = model.encode(x, farthest_points(x, TINY.sample))
    assert all(any(torch.equal(p, q) for q in x[0]) for p in proxies[0])


def test_initial_weights_are_those_of_the_authors():
    torch.manual_seed(0)
    model = pointr("performer", (NC,), dataclasses.replace(TINY, dim=128, mlp=256, whole=256, qkv_bias="inexact"))
    for linear in (model.decoder[0].cross.query, model.encoder[0].mlp[1], model.encoder[0].geometry.join):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert (linear.bias == 0).all()
    xavier = math.sqrt(2 / (256 + 256))
    assert model.query_mlp[1].weight.std().item() == pytest.approx(xavier, rel=0.05)
    assert model.query_mlp[1].bias.abs().max() > 0  # torch's own
    assert model.output_summary.second.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 256), rel=0.05)
    assert model.reduce.weight.abs().max() <= 1 / math.sqrt(256 + 128 + 3)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"queries": 0}, "queries of at least 1, got 0"),
        ({"proxies": 30}, "proxies <= sample"),
        ({"neighbours": 25}, "neighbours and proxies <= sample"),
        ({"geometry": 11}, "geometry <= proxies and queries"),
        ({"attention_dropout": 1.0}, "a rate from 0 to below 1"),
    ],
)
def test_impossible_sizes_are_refused(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        dataclasses.replace(TINY, **wrong)
