"""A task: data, a backbone, a loss and a score, under frozen and named rules."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from longspan import datasets
from longspan.attentions import Pattern
from longspan.backbones.slots import AttentionFactory
from longspan.core.errors import UnknownName, UsageError, did_you_mean
from longspan.core.settings import override
from longspan.core.spec import Spec
from longspan.datasets.base import Split, Splits


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, and which of its checkpoints is reported.

    `batch_size` is the whole batch of an update; `accumulate` splits it into that many equal parts (gradient
    accumulation), which are combined by the rule of `parts`: "counts" as one batch, whose loss is a mean over
    everything counted in it; "mean" as the plain mean of the parts' means; "sum_over_samples" as the sum of the
    gradients of the parts' means, divided by the number of samples (`StepResult.count`) of all parts, which is
    fairseq's rule.

    `order` "shuffled" draws every batch from all rows; "by_length" sorts the rows once by `Feed.lengths`, ties at
    random, cuts them into groups of one part each, and shuffles the groups in every epoch, whose last update may have
    fewer of them. "streams" reads the rows of a text in order, each row of a batch in a share of its own, so that what
    a mechanism passes between segments is carried from step to step.

    `selection` says which weights are reported: those of the best evaluation on the validation split, of the last one,
    or the mean of those at the last `averaged` evaluations. `also_at` selects a second time among the evaluations up to
    that step, which is evaluated too, as a run that ended there would have done; it has no effect from the last step
    on. `give_up_at` ends a run that does not start to learn: (30000, 0.53) if no two validations in a row have reached
    0.53 by step 30,000.
    """

    steps: int
    batch_size: int
    learning_rate: float
    warmup: int
    schedule: Literal[
        "rsqrt", "cosine", "cosine_to_zero", "linear", "constant", "inverse_sqrt", "polynomial", "exponential"
    ] = "rsqrt"
    average: float = 0.0  # decay of the EMA of the weights, which is evaluated in their place; 0 is none
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    clip: float | None = None  # global gradient norm
    evaluate_every: int = 100
    evaluation_batch: int = 64
    selection: Literal["best", "last", "mean_of_last"] = "best"
    optimizer: Literal["adamw", "adam"] = "adamw"  # adam adds its decay to the gradient
    accumulate: int = 1  # parts of a batch, one forward and backward pass each
    label_smoothing: float = 0.0
    initial_rate: float = 0.0  # where the warm-up begins
    power: float = 1.0  # of the polynomial schedule
    decay_rate: float = 0.5  # of the exponential schedule, every `decay_every` steps
    decay_every: int = 0
    decay_after: int = 0  # how many decays are skipped at the start
    patience: int | None = None  # evaluations without a better validation score before training ends
    drop_last: bool = False  # an epoch has whole batches only; else a batch may span two epochs
    averaged: int = 5  # evaluations whose weights `mean_of_last` averages
    parts: Literal["counts", "mean", "sum_over_samples"] = "counts"  # how the parts of a batch are combined
    order: Literal["shuffled", "by_length", "streams"] = "shuffled"
    also_at: int | None = None  # a step up to which the best evaluation is selected and scored as well
    ssm_learning_rate: float | None = None  # of the dynamics of state-space models, same schedule; None caps it
    dt_learning_rate: float | None = None  # of their step sizes; None is that of the dynamics
    decay: Literal["all", "weights"] = "all"  # "weights" spares biases, norms, embeddings and positions
    warmup_power: float = 1.0  # exponent of the rise during the warm-up
    pretraining_steps: int = 0  # on masked tokens of the training rows, before the task itself
    pretraining_rate: float | None = None  # None is `learning_rate`
    pretraining_warmup: int | None = None  # None is `warmup`
    masked: float = 0.5  # the share of tokens that pretraining hides
    give_up_at: tuple[int, float] | None = None  # a step, and the validation score to reach by then
    initial_weights: str | None = None  # the card of a finished run, or its weights, from which training starts
    parallel: Literal["ddp", "fsdp", "context"] = "ddp"  # devices share rows; rows and weights; or the tokens of rows
    checkpoint_activations: bool = False  # layers are recomputed in the backward pass: less memory, more time

    def __post_init__(self):
        for name in ("steps", "batch_size", "evaluate_every", "evaluation_batch", "accumulate", "averaged"):
            if (number := getattr(self, name)) < 1:
                raise UsageError(f"A recipe needs {name} of at least 1, got {number}; give a positive number.")
        if self.warmup < 0 or not 0 <= self.average < 1:
            raise UsageError(
                f"A recipe needs warmup of at least 0 and average from 0 to below 1, "
                f"got warmup={self.warmup} and average={self.average}."
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"A batch of {self.batch_size} cannot be gone through in {self.accumulate} equal parts; "
                "choose accumulate so that it divides batch_size."
            )
        if self.pretraining_steps < 0 or not 0 < self.masked < 1 or (self.pretraining_warmup or 0) < 0:
            raise UsageError(
                "Pretraining needs steps and warm-up of at least 0 and a masked share between 0 and 1, got "
                f"pretraining_steps={self.pretraining_steps}, pretraining_warmup={self.pretraining_warmup} and "
                f"masked={self.masked}."
            )
        for name in ("ssm_learning_rate", "dt_learning_rate", "warmup_power", "pretraining_rate"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise UsageError(f"A recipe needs {name} above 0, got {number}; give a positive number.")
        if self.ssm_learning_rate is None and self.dt_learning_rate is not None:
            raise UsageError(
                f"dt_learning_rate={self.dt_learning_rate} parts the steps of a state space from its other dynamics; "
                "give ssm_learning_rate as well."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing is a share from 0 to below 1, got {self.label_smoothing}.")
        if self.schedule == "exponential" and self.decay_every < 1:
            raise UsageError(
                f"An exponential schedule needs decay_every of at least 1, got {self.decay_every}; "
                "say after how many steps the rate falls."
            )
        if self.decay_after < 0:
            raise UsageError(f"decay_after counts stairs from 0, got {self.decay_after}; give 0 or more.")
        if self.patience is not None and self.patience < 1:
            raise UsageError(f"patience counts evaluations from 1, got {self.patience}; None waits for ever.")
        if self.also_at is not None and self.also_at < 1:
            raise UsageError(f"also_at is a step from 1, got {self.also_at}; None selects once, from the whole run.")
        if self.give_up_at is not None and self.give_up_at[0] < 1:
            raise UsageError(f"give_up_at begins with a step from 1, got {self.give_up_at}; None never gives up.")
        open_ended = {name: getattr(self, name) for name in ("patience", "also_at", "give_up_at")}
        if self.selection == "mean_of_last" and any(value is not None for value in open_ended.values()):
            found = ", ".join(f"{name}={value}" for name, value in open_ended.items())
            raise UsageError(
                f"mean_of_last averages the last evaluations of a run whose end is known, got {found}; "
                "leave all at None."
            )

    def evaluates_at(self, step: int) -> bool:
        """Whether the validation split is scored after so many steps."""
        return step % self.evaluate_every == 0 or step in (self.steps, self.also_at)

    def evaluations(self, until: int | None = None) -> list[int]:
        """The steps after which the validation split is scored, up to `until` or the last one."""
        last = self.steps if until is None else until
        steps = {*range(self.evaluate_every, last + 1, self.evaluate_every), self.steps, self.also_at or self.steps}
        return sorted(step for step in steps if step <= last)


@dataclass(frozen=True)
class Protocol:
    """A complete set of rules: what data, what model, what recipe."""

    data: Any
    model: Any
    recipe: Recipe

    def lite(self) -> "Protocol":
        """The same data and model for a tenth of the steps, with the warm-up and the step decay scaled likewise.

        The peak learning rate stays the same; under `rsqrt`, where it is learning_rate / sqrt(warmup), `learning_rate`
        is scaled accordingly.
        """
        recipe = self.recipe
        warmup, rate = recipe.warmup // 10, recipe.learning_rate
        if recipe.schedule == "rsqrt":
            rate *= (max(1, warmup) / max(1, recipe.warmup)) ** 0.5
        shorter = dataclasses.replace(
            recipe,
            steps=recipe.steps // 10,
            warmup=warmup,
            learning_rate=rate,
            evaluate_every=max(1, min(recipe.evaluate_every, recipe.steps // 100)),
            decay_every=min(recipe.decay_every, max(1, recipe.decay_every // 10)),
            pretraining_steps=recipe.pretraining_steps // 10,
            pretraining_warmup=None if recipe.pretraining_warmup is None else recipe.pretraining_warmup // 10,
            give_up_at=recipe.give_up_at and (max(1, recipe.give_up_at[0] // 10), recipe.give_up_at[1]),
        )
        return dataclasses.replace(self, recipe=shorter)

    def tiers(self, name: str) -> dict[tuple[str, str], "Protocol"]:
        """The protocol under this name, in full and as a tenth."""
        return {(name, "lite"): self.lite(), (name, "full"): self}

    def override(self, changes: Mapping[str, Any]) -> "Protocol":
        """Typed changes by dotted name, as in {"recipe.steps": 500}; unknown names and wrong types are refused."""
        return override(self, changes)


@dataclass(frozen=True)
class Preset:
    """How a protocol runs one mechanism: in which form, and with which special settings.

    `mechanism` replaces the plain name, as in "lra_local(block=64)" for `local`; if patterns differ, there is one for
    each. `changes` apply to that name and to the forms it runs in, with any options: {"model.layers": 1}. `smoke`
    overrides them in the smoke tier.
    """

    mechanism: str | Mapping[Pattern, str]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    smoke: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def form(self, pattern: Pattern) -> str | None:
        """What runs in slots of this pattern; None for a pattern that has no form."""
        return self.mechanism if isinstance(self.mechanism, str) else self.mechanism.get(pattern)

    @property
    def forms(self) -> tuple[str, ...]:
        return (self.mechanism,) if isinstance(self.mechanism, str) else tuple(self.mechanism.values())


@dataclass(frozen=True)
class TaskMeta:
    """What a reader wants to know about a task.

    `slots` names the kinds of slots of the network with their patterns; the first is the one replaced by default.
    `unit` says how the score is shown: a fraction in percent, or the plain number. `selected_by` is the metric of
    `Task.validate` that selects the best checkpoint, if it is not the score, and `selected_higher` its direction, if it
    is not the score's.
    """

    title: str
    version: int
    paper: str
    score: str
    higher_is_better: bool
    backbone: str
    slots: dict[str, Pattern]
    unit: Literal["percent", "plain"] = "percent"
    selected_by: str = ""
    selected_higher: bool | None = None

    @property
    def selection_metric(self) -> str:
        """The validation metric by which checkpoints are compared."""
        return self.selected_by or self.score

    @property
    def selection_is_higher(self) -> bool:
        return self.higher_is_better if self.selected_higher is None else self.selected_higher


@dataclass(frozen=True)
class StepResult:
    """The result of one batch: the loss to minimise, and sums to average over batches (both stay on the device).

    `loss` is a mean over `count` examples or tokens; a count that only the device knows stays there. If a loss has
    parts with counts of their own (frames, phones, stop steps), `terms` has the mean and the count of each (an empty
    mean is 0), and `loss` is the plain sum of the means; `count` then counts samples.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    count: int | Tensor
    terms: Mapping[str, tuple[Tensor, int | Tensor]] = dataclasses.field(default_factory=dict)
    carry: Any = None  # what each layer carries to the rows that follow, if the batch had a `carry`


@dataclass(frozen=True)
class Evaluation:
    """Scores on a whole split with the number of examples (or tokens) behind them, and the prediction for each.

    `predictions` has an array `row`, which orders the shares of several processes. `counts` are those of metrics that
    are means over something else, such as tokens where scores are per example. `samples` are a few of the first rows
    for people to look at or listen to, kept beside the card (`results/samples.py` says in which form); with several
    processes, those of the first that has any.
    """

    metrics: dict[str, float]
    count: int
    predictions: dict[str, np.ndarray]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Task(ABC):
    """What is measured and by which rules; the one training loop does the rest."""

    meta: TaskMeta  # of the class, except for a task that was given another network
    protocols: ClassVar[dict[tuple[str, str], Protocol]]
    presets: ClassVar[Mapping[str, Mapping[str, Preset]]] = {}  # by protocol and plain name of a mechanism
    dataset: ClassVar[str]
    texts: ClassVar[int] = 1  # in one example
    streams: ClassVar[bool] = False  # rows are those of one text, and its batches have a field `carry`
    takes_network: ClassVar[bool] = False  # whether `model` builds `network` if there is one

    called: str = ""  # the target of a plug-in, as given to `tasks.get`
    network: type[nn.Module] | None = None  # in place of the task's own, as in `task@file.py:Network`

    @property
    def name(self) -> str:
        return self.called or type(self).__module__.rpartition(".")[2]

    def protocol(self, protocol: str, tier: str) -> Protocol:
        if (protocol, tier) in self.protocols:
            return self.protocols[protocol, tier]
        names = sorted({p for p, _ in self.protocols})
        if protocol not in names:
            raise UnknownName(f"{self.name} has no protocol {protocol!r}.{did_you_mean(protocol, names)}")
        tiers = sorted(t for p, t in self.protocols if p == protocol)
        raise UnknownName(f"{self.name} under {protocol} has no tier {tier!r}.{did_you_mean(tier, tiers)}")

    def runs_as(self, protocol: str, mechanism: str, patterns: Sequence[Pattern]) -> str:
        """The form in which a protocol runs a mechanism that was named without options."""
        preset = self.presets.get(protocol, {}).get(mechanism)
        forms = [mechanism if preset is None else preset.form(pattern) or mechanism for pattern in patterns]
        if any(form != forms[0] for form in forms):
            told = "; ".join(f"{form} as {pattern}" for form, pattern in zip(forms, patterns, strict=True))
            raise UsageError(
                f"{protocol} has other options for {mechanism} in each pattern of {self.name} ({told}); give them, or "
                "replace one pattern at a time."
            )
        return forms[0]

    def rules(self, protocol: str, tier: str, mechanism: str) -> Protocol:
        """The protocol with its changes for this mechanism, given by its plain name or in the form it runs in."""
        rules, target = self.protocol(protocol, tier), Spec.parse(mechanism).target
        for name, preset in self.presets.get(protocol, {}).items():
            if target in (name, *(Spec.parse(form).target for form in preset.forms)):
                full = self.protocols.get((protocol, "full"))
                if full is not None and tier == "lite" and rules == full.lite():  # a tenth of what the preset says
                    return full.override(preset.changes).lite()
                return rules.override({**preset.changes, **(preset.smoke if tier == "smoke" else {})})
        return rules

    def patterns(self, asked: str | None) -> tuple[Pattern, ...]:
        """The patterns whose slots the mechanism fills: those given, as in "NS+CS", or the task's first one."""
        patterns = tuple(dict.fromkeys(self.meta.slots.values()))
        if asked is None:
            return patterns[:1]
        wanted = [Pattern.parse(word.strip()) for word in asked.split("+")]
        for pattern in wanted:
            if pattern not in patterns:
                raise UsageError(f"{self.name} has no slot for {pattern}; its slots are {', '.join(patterns)}.")
        return tuple(pattern for pattern in Pattern if pattern in wanted)

    def others(self, protocol: Protocol) -> Mapping[Pattern, str]:
        """The mechanism in slots that are not replaced, by pattern; softmax where none is given."""
        return {}

    def splits(self, protocol: Protocol, root: Path | None = None, *, real: bool = False) -> Splits:
        """The data; generated where possible, else an error that says how to get it. `real` refuses stand-ins."""
        return datasets.get(self.dataset).load(protocol.data, root=root, real=real)

    @abstractmethod
    def longest(self, protocol: Protocol) -> int:
        """No example has more tokens than this."""

    @abstractmethod
    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        """The network, in which `attention(dim, heads, pattern, **shell)` fills every slot."""

    @abstractmethod
    def feed(self, split: Any, protocol: Protocol, device: Any) -> "Feed":
        """The split on the device, ready to give batches."""

    def made_up(self, protocol: Protocol, count: int) -> Any:
        """`count` rows, as long as the data allow, for a feed that is timed and thrown away: here texts with labels."""
        shape = (count, self.texts) if self.texts > 1 else (count,)
        length = self.longest(protocol)
        starts = np.arange(np.prod(shape), dtype=np.int64).reshape(shape) * length
        tokens = np.random.default_rng(0).integers(1, 10, starts.size * length, dtype=np.uint8)
        return Split(tokens, starts, starts + length, np.zeros(count, np.uint8))

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, *, smoothing: float = 0.0) -> StepResult:
        """The loss of a training batch, with the recipe's label smoothing."""

    def pretraining(self, protocol: Protocol) -> "Task":
        """The pretraining task before this one; its `around` wraps the network of this task."""
        raise UsageError(f"{self.name} has no stage of pretraining; leave recipe.pretraining_steps at 0.")

    def around(self, model: nn.Module) -> nn.Module:
        """The network of this stage, wrapped around that of the task it serves, whose weights it trains."""
        return model

    def tokens_of(self, batch: Any, rank: int, processes: int) -> Any:
        """A batch with the tokens of one process, where several share every row (`kernels/context_parallel.py`).

        A task that does not implement this cannot be trained with `recipe.parallel="context"`.
        """
        raise NotImplementedError

    def counts(self, batch: Any) -> Mapping[str, int | Tensor]:
        """The counts of the terms of a batch's loss, before its forward pass; needed where a loss has `terms`."""
        return {}

    @abstractmethod
    def evaluate(self, model: nn.Module, feed: "Feed", rows: np.ndarray, batch_size: int) -> Evaluation:
        """Scores over these rows of the feed, in this order: means, and what `derived` computes from them."""

    def validate(self, model: nn.Module, feed: "Feed", rows: np.ndarray, batch_size: int) -> Evaluation:
        """The evaluation of the validation split during training; a cheaper one where `evaluate` takes long."""
        return self.evaluate(model, feed, rows, batch_size)

    def passes(self, protocol: Protocol) -> tuple[float, float]:
        """Forward passes that `validate` and `evaluate` take per example, from which a dry run estimates their time."""
        return 1.0, 1.0

    def summary(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Scores computed from all predictions in the order of rows, such as means over categories or ratios of sums.

        The loop adds them to the metrics of an evaluation, whichever processes its predictions come from.
        """
        return {}

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """Scores that are not means, such as the perplexity exp(loss), from those that are."""
        return {}

    def user_object(self, model: nn.Module, protocol: Protocol, splits: Splits | None, device: Any) -> Any:
        """What `longspan.load(card)` returns: the network, or an object that does with it what a user wants.

        `splits` are the data of the run, or None if they are not available.
        """
        return model

    @abstractmethod
    def chance(self, split: Any) -> float | None:
        """The score of a guess that knows only how frequent each answer is in this split; None where undefined."""


class Feed(ABC):
    """A split that lives on the device and gives batches by row numbers.

    `lengths`, one number for each row, is needed if a recipe orders rows by length; other feeds may lack it.
    """

    lengths: np.ndarray
    numbers_epochs: bool = False  # rows are indexed by row + epoch * len, since epochs differ

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, rows: np.ndarray) -> Any: ...

    def follows(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Whether each row continues where the one before it ended; False if rows are not text."""
        return np.zeros(len(rows), bool)

    @abstractmethod
    def in_batches(self, rows: np.ndarray, size: int) -> Iterable[tuple[np.ndarray, Any]]:
        """These rows in batches, in whatever order is cheapest, each with the places of its rows."""
