"""`lra-released` is what was released: an encoder written here from its description trains to the same numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from longspan import datasets, tasks
from longspan.datasets.base import Split
from longspan.runs import Cell, RunPlan, count_baseline, count_parameters
from longspan.tasks.lra_models import MODELS
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate

LRA = ("listops", "text_1k", "text_4k", "retrieval", "image", "pathfinder", "pathx")

# ------------------------------------------------------------------------------------ the encoder, written once more


def sinusoid(length: int, dim: int) -> Tensor:
    places = torch.arange(length, dtype=torch.float64)
    angles = [places * math.exp(-math.log(10_000.0) * i / dim) for i in range(0, dim, 2)]
    return torch.stack([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)


def norm(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * scale + bias


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(x: Tensor, real: Tensor, w: dict[str, Tensor], name: str, heads: int) -> Tensor:
    """Every pair with a padded token gets -1e10 added, next to which the score is lost in single precision."""
    q, k, v = ((x @ w[f"{name}.{part}.weight"].T).unflatten(-1, (heads, -1)) for part in ("query", "key", "value"))
    scores = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(q.shape[-1])
    both = real[:, None, :, None] & real[:, None, None, :]
    lowered = -1e10 + (scores - scores.detach())  # the bias is added, so the score keeps its derivative
    p = torch.where(both, scores, lowered).softmax(dim=-1)
    return torch.einsum("bhij,bjhc->bihc", p, v).flatten(-2) @ w[f"{name}.out.weight"].T


def encode(w: dict[str, Tensor], pixels: Tensor, layers: int, heads: int) -> Tensor:
    """The logits of images given as rows of intensities."""
    real = pixels > 0
    x = w["embedding.weight"][pixels] + sinusoid(pixels.shape[1], w["embedding.weight"].shape[1])
    for layer in range(layers):
        block = f"blocks.{layer}"
        h = norm(x, w[f"{block}.attention_norm.weight"], w[f"{block}.attention_norm.bias"])
        x = x + attend(h, real, w, f"{block}.attention", heads)
        h = norm(x, w[f"{block}.mlp_norm.weight"], w[f"{block}.mlp_norm.bias"])
        h = gelu(h @ w[f"{block}.mlp.0.weight"].T + w[f"{block}.mlp.0.bias"])
        x = x + h @ w[f"{block}.mlp.3.weight"].T + w[f"{block}.mlp.3.bias"]
    pooled = norm(x, w["norm.weight"], w["norm.bias"]).mean(dim=1)  # black pixels are part of the mean
    hidden = (pooled @ w["head.0.weight"].T + w["head.0.bias"]).clamp(min=0)
    return hidden @ w["head.2.weight"].T + w["head.2.bias"]


def rate(step: int, base: float, warmup: int, steps: int) -> float:
    return base * min(1.0, step / warmup) * 0.5 * (1 + math.cos(math.pi * (max(0, (step - warmup) / steps) % 1)))


class Adam:
    """As in Flax: bias correction, beta2 = 0.98, eps = 1e-9 outside the root; no weight decay here."""

    def __init__(self, w: dict[str, Tensor]):
        self.m = {name: torch.zeros_like(value) for name, value in w.items()}
        self.v = {name: torch.zeros_like(value) for name, value in w.items()}

    def update(self, w: dict[str, Tensor], gradients: dict[str, Tensor], lr: float, count: int) -> dict[str, Tensor]:
        new = {}
        for name, g in gradients.items():
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.98 * self.v[name] + 0.02 * g**2
            m, v = self.m[name] / (1 - 0.9**count), self.v[name] / (1 - 0.98**count)
            new[name] = (w[name].detach() - lr * m / (v.sqrt() + 1e-9)).requires_grad_()
        return new


# ------------------------------------------------------------------------------------------------- five steps of both

IMAGES = 4
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def pathfinder_images(plan: RunPlan) -> Split:
    samples = datasets.get("pathfinder").samples(plan.protocol.data, IMAGES)
    pixels = np.concatenate([np.asarray(sample.content).ravel() for sample in samples])
    edges = np.arange(IMAGES + 1, dtype=np.int64) * 1_024
    return Split.of_rows(pixels, edges, np.array([sample.label for sample in samples], np.uint8))


@pytest.mark.parametrize(
    "layers, warmup",  # the warm-up as released, and a short one, so that five steps move the weights
    [(1, 2), pytest.param(4, 2, marks=pytest.mark.full), pytest.param(4, 312, marks=pytest.mark.full)],
)
def test_softmax_on_pathfinder_trains_as_an_independent_encoder_in_float64(layers, warmup):
    changes = NO_DROPOUT | {"recipe.warmup": warmup, "model.layers": layers}
    plan = RunPlan.of(Cell("pathfinder", "softmax", None, "lra-released", "full", overrides=changes))
    split, recipe, sizes = pathfinder_images(plan), plan.protocol.recipe, plan.protocol.model
    assert 0.5 < (split.tokens == 0).mean() < 0.9  # the rule is about black pixels
    model, feed = plan.model().train(), plan.task.feed(split, plan.protocol, "cpu")
    w = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    optimizer, adam = make_optimizer(model, recipe), Adam(w)
    for step in range(5):
        rows = np.array([step, step + 1]) % IMAGES
        batch = feed.batch(rows)
        set_learning_rate(optimizer, learning_rate(recipe, step))
        loss = plan.task.loss(model, batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        pixels = torch.tensor(split.tokens.reshape(IMAGES, -1)[rows]).long()
        logits = encode(w, pixels, layers, heads=4)
        expected = F.cross_entropy(logits, torch.tensor(split.labels[rows]).long())
        gradients = dict(zip(w, torch.autograd.grad(expected, list(w.values())), strict=True))
        w = adam.update(w, gradients, rate(step, 1e-3, warmup, 62_400), step + 1)
        assert loss.item() == pytest.approx(expected.item(), rel=0, abs=1e-4)
    assert (sizes.heads, sizes.dim, sizes.inner, sizes.mlp) == (4, 32, 16, 32)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach().double(), w[name].detach(), rtol=0, atol=1e-4, msg=name)


# ------------------------------------------------------------------------------------------ which form, which sizes


def plan_of(task: str, mechanism: str, tier: str = "full", **overrides) -> RunPlan:
    return RunPlan.of(Cell(task, mechanism, None, "lra-released", tier, overrides=overrides))


@pytest.mark.parametrize("task", LRA)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_arena_runs_as_its_twin(task, model):
    plan = plan_of(task, model)
    assert plan.mechanism.meta.fidelity
    assert str(plan.mechanism).partition("(")[0] == f"lra_{model}"
    assert plan.identity["mechanism"] == str(plan.mechanism)  # as written on the card
    again = plan_of(task, str(plan.mechanism))  # as a card names the mechanism
    assert (again.mechanism, again.protocol) == (plan.mechanism, plan.protocol)


@pytest.mark.parametrize(
    "task, model, expected",
    [
        ("listops", "performer", "lra_performer(features=2)"),
        ("text_4k", "performer", "lra_performer"),
        ("listops", "local", "lra_local"),
        ("image", "local", "lra_local(block=64)"),
        ("pathfinder", "sinkhorn", "lra_sinkhorn(block=64)"),
        ("retrieval", "sparse_transformer", "lra_sparse_transformer(cls=False)"),
        ("pathfinder", "sparse_transformer", "lra_sparse_transformer(cls=False)"),
        ("image", "sparse_transformer", "lra_sparse_transformer"),
        ("image", "local(shape=blocks)", 'local(shape="blocks")'),  # a mechanism with explicit options runs unchanged
        ("image", "nystromformer", "nystromformer"),  # so does one that the arena does not have
    ],
)
def test_the_form_has_the_options_of_the_release(task, model, expected):
    assert str(plan_of(task, model).mechanism) == expected


def test_other_protocols_run_the_mechanism_itself():
    for protocol in ("longspan", "lra-paper"):
        assert str(RunPlan.of(Cell("image", "local", None, protocol, "full")).mechanism) == "local"


SIZES = {  # layers, heads, emb, qkv, mlp, dropout: spec/lra.md 4.2 and 4.3
    ("image", "softmax"): (1, 8, 128, 64, 128, 0.3),
    ("image", "local"): (1, 2, 128, 64, 128, 0.3),
    ("image", "sparse_transformer"): (1, 8, 128, 64, 128, 0.3),
    ("image", "longformer"): (4, 4, 128, 64, 128, 0.3),
    ("image", "linformer"): (1, 8, 128, 64, 128, 0.3),
    ("image", "reformer"): (4, 8, 64, 32, 64, 0.3),
    ("image", "sinkhorn"): (1, 1, 32, 32, 64, 0.1),
    ("image", "synthesizer"): (1, 8, 128, 64, 128, 0.3),
    ("image", "bigbird"): (1, 1, 128, 64, 128, 0.3),
    ("image", "linear"): (1, 8, 128, 64, 128, 0.3),
    ("image", "performer"): (1, 8, 128, 64, 128, 0.3),
    ("pathfinder", "softmax"): (4, 4, 32, 16, 32, 0.2),
    ("pathfinder", "local"): (2, 4, 64, 32, 64, 0.1),
    ("pathfinder", "sparse_transformer"): (1, 8, 32, 16, 32, 0.2),
    ("pathfinder", "longformer"): (2, 2, 32, 16, 32, 0.1),
    ("pathfinder", "linformer"): (1, 2, 32, 16, 32, 0.2),
    ("pathfinder", "reformer"): (2, 8, 64, 32, 64, 0.2),
    ("pathfinder", "sinkhorn"): (2, 4, 32, 16, 64, 0.2),
    ("pathfinder", "synthesizer"): (2, 4, 64, 32, 64, 0.2),
    ("pathfinder", "bigbird"): (4, 2, 64, 32, 64, 0.2),
    ("pathfinder", "linear"): (1, 2, 128, 64, 128, 0.2),
    ("pathfinder", "performer"): (1, 8, 128, 64, 128, 0.2),
    ("pathfinder", "nystromformer"): (4, 4, 32, 16, 32, 0.2),  # not in the arena: the Transformer's sizes
}
MEAN_ON_IMAGE = {"local", "longformer", "sinkhorn"}


@pytest.mark.parametrize("task, model", SIZES)
@pytest.mark.parametrize("tier", ["lite", "full"])
def test_every_model_has_the_sizes_of_its_own_file(task, model, tier):
    plan = plan_of(task, model, tier)
    sizes = plan.protocol.model
    assert (sizes.layers, sizes.heads, sizes.dim, sizes.inner, sizes.mlp, sizes.dropout) == SIZES[task, model]
    assert sizes.attention_dropout == {"image": 0.2, "pathfinder": 0.1}[task]
    assert sizes.pooling == ("mean" if task == "pathfinder" or model in MEAN_ON_IMAGE else "cls")
    assert sizes.head_layers == (1 if model == "sinkhorn" else 2)
    assert plan.protocol.recipe.weight_decay == (0.7 if (task, model) == ("image", "sinkhorn") else 0.0)
    assert plan.identity["settings"]["model"]["layers"] == sizes.layers  # the card has the resolved sizes


def test_an_override_comes_after_the_sizes_of_the_model():
    assert plan_of("pathfinder", "linear", **{"model.layers": 2}).protocol.model.layers == 2


def test_published_linear_on_pathfinder_is_one_layer_of_128():
    plan = plan_of("pathfinder", "linear")
    attention, mlp, norms = 4 * 128 * 64, 2 * 128 * 128 + 256, 3 * 2 * 128
    head = 128 * 128 + 128 + 128 * 2 + 2
    total = 256 * 128 + attention + mlp + norms + head
    assert count_parameters("pathfinder", "linear", "lra-released", "full")["total"] == total
    assert count_baseline(plan) == total  # softmax in the same network, not in the Transformer's


@pytest.mark.parametrize("task", ["listops", "text_1k", "retrieval", "image", "pathfinder"])
@pytest.mark.parametrize("model", MODELS)
def test_every_twin_answers_in_a_network_of_its_sizes(task, model):
    plan = plan_of(task, model)
    small = {"model.dim": 16, "model.inner": 8, "model.heads": 1, "model.mlp": 8, "model.layers": 1}
    rules = plan.protocol.override(small)
    network = plan.task.model(plan.slots, rules).eval()
    tokens = torch.randint(0, 17, (2, 1_024 if plan.task.pixels else 120))
    with torch.no_grad():
        assert network(tokens).isfinite().all()


def test_symbols_keep_their_ids_where_padding_is_computed():
    for name in ("text_1k", "retrieval"):
        task = tasks.get(name)
        assert task.shift(task.protocol("lra-released", "full")) == 1
    pixels = tasks.get("pathfinder")
    assert pixels.shift(pixels.protocol("lra-released", "full")) == 0  # black is padding
