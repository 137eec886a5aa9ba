"""Pathfinder: are the two discs ends of one dashed path? Pixels in a row, no second dimension (arXiv:2011.04006).

Under `longspan` black is a symbol like any other, and training pictures are drawn anew in every epoch, flipped and
rotated at random, so that they cannot be memorised. `lra-released` keeps the release's rule that black pixels are
padding and the sizes of each model's own file, `lra-paper` has the sizes of the appendix. The smoke tier has pictures
of 12 pixels a side with two short curves and nothing else, which a small network learns in seconds, partly from where
the discs lie. More in `pathfinder_rules.py`.
"""

from dataclasses import replace

from longspan.tasks import strong
from longspan.tasks.classification import encoder_task
from longspan.tasks.lra_models import released_models
from longspan.tasks.pathfinder_rules import DATA, LONGSPAN, MODELS, PAPER, RELEASED, SMOKE, PathfinderTask


class Pathfinder(PathfinderTask):
    meta = replace(encoder_task("Pathfinder"), version=2)
    protocols = {
        ("longspan", "smoke"): SMOKE,
        **LONGSPAN.tiers("longspan"),
        **PAPER.tiers("lra-paper"),
        **RELEASED.tiers("lra-released"),
        **strong.tiers(strong.PATHFINDER, DATA),
    }
    presets = {"lra-released": released_models(MODELS, block=64, cls=False), "strong": strong.PATHFINDER_MODELS}
