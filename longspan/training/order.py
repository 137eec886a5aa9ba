"""Which rows a step sees, from the seed alone, so that a run resumed at any step sees the rows it would have seen."""

from typing import Protocol

import numpy as np

from longspan.core.errors import UsageError
from longspan.core.seeding import derive
from longspan.tasks.base import Feed, Recipe


class Order(Protocol):
    def parts(self, step: int) -> list[np.ndarray]:
        """The rows of a batch, split into the parts in which it is processed."""
        ...


def order_of(feed: Feed, recipe: Recipe, seed: int, processes: int) -> Order:
    """The order that a recipe asks for."""
    if recipe.order == "by_length":
        lengths = getattr(feed, "lengths", None)
        return LengthOrder(lengths, recipe, seed, processes, numbered=feed.numbers_epochs)
    if recipe.order == "streams":
        return StreamOrder(len(feed), recipe.batch_size, recipe.accumulate)
    how = {"drop_last": recipe.drop_last, "accumulate": recipe.accumulate, "numbered": feed.numbers_epochs}
    return ExampleOrder(len(feed), recipe.batch_size, seed, **how)


class ExampleOrder:
    """An endless stream of full shuffles, each drawn from (seed, epoch).

    With `drop_last` an epoch ends when fewer rows than a whole batch are left. `numbered` rows are row + epoch * count.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        accumulate: int = 1,
        numbered: bool = False,
    ):
        if drop_last and count < batch_size:
            raise UsageError(
                f"With drop_last an epoch has whole batches only, but {count} examples make none of {batch_size}; "
                "choose a smaller batch_size, or drop_last=False."
            )
        self.count, self.batch_size, self.seed, self.drop_last = count, batch_size, seed, drop_last
        self.accumulate, self.numbered = accumulate, numbered
        self._epoch, self._shuffle = -1, np.empty(0, np.int64)

    def parts(self, step: int) -> list[np.ndarray]:
        return np.split(self.rows(step), self.accumulate)

    def rows(self, step: int) -> np.ndarray:
        if self.drop_last:
            epoch, place = divmod(step, self.count // self.batch_size)
            return self._of_epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        first = step * self.batch_size
        places = np.arange(first, first + self.batch_size)
        return np.concatenate(
            [self._of_epoch(e)[places[places // self.count == e] % self.count] for e in self._epochs(places)]
        )

    def _epochs(self, places: np.ndarray) -> range:
        return range(int(places[0]) // self.count, int(places[-1]) // self.count + 1)

    def _of_epoch(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffle = np.random.default_rng(derive(self.seed, "epoch", epoch)).permutation(self.count)
            if self.numbered:
                self._shuffle += epoch * self.count
        return self._shuffle


class StreamOrder:
    """Every row of a batch is a lane that reads its own share of the text, row after row, and then begins again."""

    def __init__(self, count: int, batch_size: int, accumulate: int = 1):
        if count < batch_size:
            raise UsageError(
                f"Streams need a row of the text for every row of a batch, got {count} rows for {batch_size}; choose a "
                "smaller batch_size."
            )
        self.borders, self.accumulate = np.linspace(0, count, batch_size + 1).astype(np.int64), accumulate

    def parts(self, step: int) -> list[np.ndarray]:
        first, lengths = self.borders[:-1], np.diff(self.borders)
        return np.split(first + step % lengths, self.accumulate)


class LengthOrder:
    """Groups of rows of similar length, formed once from the seed, in an order drawn from (seed, epoch).

    A group is one part of a batch. The last group may be smaller, and so may the last batch of an epoch, which has the
    remaining groups; with `drop_last` both are dropped. `numbered` rows are row + epoch * count.
    """

    def __init__(
        self, lengths: np.ndarray | None, recipe: Recipe, seed: int, processes: int = 1, *, numbered: bool = False
    ):
        if lengths is None:
            raise UsageError("A recipe orders rows by length, but the feed of the task has no lengths; give it some.")
        size, self.accumulate, self.seed = recipe.batch_size // recipe.accumulate, recipe.accumulate, seed
        shuffled = np.random.default_rng(derive(seed, "ties")).permutation(len(lengths))
        longest = np.asarray(lengths).reshape(len(lengths), -1).max(axis=1)  # of a row with several texts
        rows = shuffled[np.argsort(longest[shuffled], kind="stable")]
        groups = [rows[first : first + size] for first in range(0, len(rows), size)]
        self.groups = [group for group in groups if len(group) == size or not recipe.drop_last]
        self.updates = len(self.groups) // self.accumulate if recipe.drop_last else -(-len(groups) // self.accumulate)
        if not self.updates:
            raise UsageError(
                f"With drop_last an epoch has whole batches only, but {len(rows)} examples make none of "
                f"{recipe.batch_size}; choose a smaller batch_size, or drop_last=False."
            )
        if len(self.groups[-1]) < processes:
            raise UsageError(
                f"The last group of rows of like length has {len(self.groups[-1])}, which {processes} devices cannot "
                "share; choose fewer devices, or drop_last=True."
            )
        self._numbers = len(lengths) if numbered else 0  # from one epoch to the next
        self._epoch, self._shuffle = -1, np.empty(0, np.int64)

    def parts(self, step: int) -> list[np.ndarray]:
        epoch, place = divmod(step, self.updates)
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffle = np.random.default_rng(derive(self.seed, "epoch", epoch)).permutation(len(self.groups))
        chosen = self._shuffle[place * self.accumulate : (place + 1) * self.accumulate]
        return [self.groups[group] + epoch * self._numbers for group in chosen]
