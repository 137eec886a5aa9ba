"""Pathfinder with a class token, for the maps of figure 5 of Long Range Arena (arXiv:2011.04006).

The figure shows what a class token attends to, but the released configuration pools by mean and has none. This is
`pathfinder` under `longspan` with one and is on no board; under `lra-paper` `pathfinder` itself has a class token.

The smoke tier has three layers and twice the steps of `pathfinder`. It was chosen among ten recipes with seed 0: with
one layer a class token sees single pixels only, and with two and sinusoids softmax stayed at chance at every rate.
"""

from dataclasses import replace

from longspan.tasks.classification import encoder_task
from longspan.tasks.pathfinder_rules import LONGSPAN, SMOKE, PathfinderTask, with_class_token

SMOKE_CLS = with_class_token(
    replace(
        SMOKE,
        model=replace(SMOKE.model, layers=3),
        recipe=replace(SMOKE.recipe, steps=800, learning_rate=2e-3, warmup=80),
    )
)


class PathfinderCls(PathfinderTask):
    meta = encoder_task("Pathfinder, class token")
    protocols = {("longspan", "smoke"): SMOKE_CLS, **with_class_token(LONGSPAN).tiers("longspan")}
