"""Pathfinder with a class token, for the maps of figure 5 of Long Range Arena (arXiv:2011.04006).

The figure shows what a class token attends to, but the released configuration pools by mean and has none. This is
`pathfinder` under `longspan` with one and is on no board; under `lra-paper` `pathfinder` itself has a class token.
"""

from longspan.tasks.classification import encoder_task
from longspan.tasks.pathfinder_rules import LONGSPAN, SMOKE, PathfinderTask, with_class_token


class PathfinderCls(PathfinderTask):
    meta = encoder_task("Pathfinder, class token")
    protocols = {("longspan", "smoke"): with_class_token(SMOKE), **with_class_token(LONGSPAN).tiers("longspan")}
