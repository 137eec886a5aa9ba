"""Which weights of a run are reported: those of its best evaluation, of its last, or the mean of the last few."""

import itertools

from torch import Tensor, nn

from longspan.tasks.base import Recipe, TaskMeta
from longspan.training.mean_of_last import MeanOfLast
from longspan.training.progress import Progress

Weights = dict[str, Tensor]


class Selection:
    """The weights chosen so far; `also` are those of the best evaluation up to the recipe's `also_at`."""

    def __init__(self, meta: TaskMeta, recipe: Recipe):
        self.metric, self.higher = meta.selection_metric, meta.selection_is_higher
        self.recipe = recipe
        self.best: Weights = {}
        self.also: Weights = {}
        self.mean = MeanOfLast(recipe)

    def update(self, progress: Progress, model: nn.Module) -> None:
        """Update the selection with the point just added to the learning curve and the weights behind it."""
        if self.is_better(progress):
            progress.best_step, progress.best_score = progress.step, progress.curve[-1][f"valid_{self.metric}"]
            if not self.mean.steps:
                self.best = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.mean.update(progress.step, model.state_dict())
        if progress.step == self.recipe.also_at and progress.step < self.recipe.steps:
            self.also, progress.also_step = self.best, progress.best_step

    def is_better(self, progress: Progress) -> bool:
        """Whether the point just added to the curve is the one to report so far."""
        if self.recipe.selection != "best" or progress.best_score is None:
            return True
        score = progress.curve[-1][f"valid_{self.metric}"]
        return score > progress.best_score if self.higher else score < progress.best_score

    def is_over(self, progress: Progress) -> bool:
        """Whether all steps are done, the run gave up, or `patience` evaluations in a row brought no improvement."""
        if progress.step >= self.recipe.steps or self.gave_up(progress):
            return True
        if self.recipe.patience is None or len(progress.curve) <= self.recipe.patience:
            return False
        sign = 1 if self.higher else -1
        scores = [sign * point[f"valid_{self.metric}"] for point in progress.curve]
        return len(scores) - 1 - scores.index(max(scores)) >= self.recipe.patience

    def gave_up(self, progress: Progress) -> bool:
        """Whether no two evaluations in a row had reached the score of `give_up_at` by its step, or by the second."""
        if self.recipe.give_up_at is None:
            return False
        step, score = self.recipe.give_up_at
        late = [place for place, point in enumerate(progress.curve) if place and point["step"] >= step]
        if not late:
            return False
        sign = 1 if self.higher else -1
        reached = [sign * point[f"valid_{self.metric}"] >= sign * score for point in progress.curve[: late[0] + 1]]
        return not any(one and other for one, other in itertools.pairwise(reached))

    def reported(self, model: nn.Module) -> Weights:
        """The weights that are scored in the end."""
        return self.mean.mean(model.state_dict()) if self.mean.steps else self.best
