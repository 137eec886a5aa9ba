"""How far a run is: everything in its state except for the weights."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """The state of a run except for the weights; saved with them."""

    step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    best_step: int | None = None
    best_score: float | None = None
    also_step: int | None = None  # selected among the evaluations up to the recipe's `also_at`, once that is reached
    train_sums: dict[str, float] = field(default_factory=dict)  # since the last evaluation
    train_count: int = 0
    valid_count: int = 0  # examples or tokens behind a validation score
    train_seconds: float = 0.0  # updates alone
    total_seconds: float = 0.0  # with evaluation and saving
    peak_bytes: int = 0  # peak memory, the maximum over all stretches
    resumed: int = 0
