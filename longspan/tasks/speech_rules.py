"""The recipes of the speech tasks: fairseq's as CAB ran it, and ours.

The rate rises from 0 for 4,000 updates and then falls with the inverse square root of their number, whatever the length
of the run: the first 20,000 updates of a run of 200,000 are a run of 20,000, and `also_at` scores them as such.
"""

from dataclasses import replace

from longspan.tasks.base import Protocol, Recipe

CAB_RECIPE = Recipe(
    steps=200_000,
    batch_size=48,
    accumulate=8,
    learning_rate=5e-4,
    warmup=4_000,
    schedule="inverse_sqrt",
    weight_decay=0.0,
    betas=(0.9, 0.999),
    eps=1e-8,
    clip=5.0,
    evaluate_every=255,  # an epoch
    evaluation_batch=6,
    parts="sum_over_samples",
    order="by_length",
    also_at=20_000,
)


LONGSPAN_RECIPE = replace(CAB_RECIPE, steps=20_000, parts="mean", evaluate_every=500, evaluation_batch=16, also_at=None)
# Parts of 24 clips, each captured by its width, since 6 short ones do not fill a GPU.
LITE_RECIPE = replace(LONGSPAN_RECIPE, steps=2_000, warmup=400, accumulate=2, evaluate_every=250)
CAB_LITE_RECIPE = replace(CAB_RECIPE, steps=1_000, warmup=100, also_at=None)
SMOKE_RECIPE = replace(
    LONGSPAN_RECIPE,
    steps=240,
    batch_size=8,
    accumulate=2,
    learning_rate=2e-3,
    warmup=20,
    evaluate_every=80,
    evaluation_batch=8,
)


def speech_protocols(
    cab: Protocol, longspan: Protocol, smoke: Protocol, *, lite: Recipe = LITE_RECIPE
) -> dict[tuple[str, str], Protocol]:
    """All tiers of both protocols; lite has the network and the data of full, and minutes instead of hours."""
    quirks = {name: getattr(cab.model, name) for name in ("pads", "together", "heard") if hasattr(cab.model, name)}
    cab_smoke = Protocol(
        data=smoke.data,
        model=replace(smoke.model, **quirks),
        recipe=replace(smoke.recipe, parts=cab.recipe.parts),
    )
    return {
        ("longspan", "smoke"): smoke,
        ("cab-2023", "smoke"): cab_smoke,
        ("longspan", "lite"): replace(longspan, recipe=lite),
        ("longspan", "full"): longspan,
        ("cab-2023", "lite"): replace(cab, recipe=CAB_LITE_RECIPE),
        ("cab-2023", "full"): cab,
    }
