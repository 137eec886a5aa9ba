"""Cards and weights to and from others: a repository of the Hugging Face Hub, a project of Weights & Biases.

    push("out/cards/listops/....json", "me/listops-linear")      # the card, its files, and a page that describes it
    path = pull("me/listops-linear")                             # checked, then placed among the cards of `out`
    log("out/cards/listops/....json", project="arena")           # settings, learning curve and score

Each needs its extra, `longspan[hub]` or `longspan[wandb]`, and the account that its own library is logged in to.
"""

from longspan.sharing.hub import pull, push
from longspan.sharing.wandb import log

__all__ = ["log", "pull", "push"]
