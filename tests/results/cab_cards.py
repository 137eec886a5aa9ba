"""Cards of CAB's tasks for tests. Every number here is made up; none comes from a run."""

from longspan.published.index_constants import index_constants
from longspan.results.card import seal
from tests.results.factory import make_card

NS, CS, NC, CC = index_constants().patterns
ETT = ("etth1", "etth1_univariate", "etth2", "etth2_univariate", "ettm1", "ettm1_univariate")


def run(task, metrics, mechanism="softmax", *, pattern=CC, tier="full", variant="official", seed=0, **fields):
    """A run under `cab-2023`, scored by the first of its metrics."""
    card = make_card(
        mechanism, task, sealed=False, protocol="cab-2023", tier=tier, pattern=pattern, seed=seed, **fields
    )
    found = {name: {"value": value, "count": 500} for name, value in metrics.items()}
    card["dataset"]["variant"] = variant
    card["metrics"] = {"valid": found, "test": found}
    first = next(iter(metrics))
    meaning = {"higher_is_better": first == "rouge1", "unit": "plain", "chance": None}
    card["score"] |= {"name": first, "value": metrics[first]} | meaning
    return seal(card)


def crossed(mechanism, mcd, msd, *rouge, **how):
    """Both tasks of causal cross attention."""
    yield run("tts_transformer", {"mcd": mcd, "msd": msd}, mechanism, **how)
    yield run("summarization", dict(zip(("rouge1", "rouge2", "rougeL"), rouge, strict=True)), mechanism, **how)


def forecasts(errors, **how):
    """One run per error, for the first of the six settings."""
    pairs = zip(ETT, errors, strict=False)
    return [run(f"forecasting_{name}", {"mse": mse, "mae": mse / 2}, pattern=NC, **how) for name, mse in pairs]
