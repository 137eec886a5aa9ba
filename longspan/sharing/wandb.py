"""A finished run as a run of Weights & Biases: its settings, its learning curve, its score."""

from importlib import import_module
from pathlib import Path
from typing import Any

from longspan.core.errors import UsageError
from longspan.results import card as cards

CONFIG = (
    "task",
    "task_version",
    "mechanism",
    "pattern",
    "protocol",
    "tier",
    "seed",
    "backbone",
    "overrides",
    "settings",
)


def log(card: str | Path, project: str, *, wandb: Any = None) -> str:
    """Log a card; returns the name of the run there. Logged again, it is the same run.

    `wandb` is the library, or a stand-in for it in a test.
    """
    record = cards.read(Path(card), "run")
    wandb = wandb or _library()
    name = f"{record['task']} {record['mechanism']} seed {record['seed']}"
    config = {key: record[key] for key in CONFIG} | {"card": record["sha256"]}
    tags = [record["task"], record["tier"], record["protocol"]]
    run = wandb.init(project=project, id=record["sha256"][:32], name=name, config=config, tags=tags, resume="allow")
    try:
        for point in record["curve"] or ():
            run.log({key: value for key, value in point.items() if key != "step"}, step=int(point["step"]))
        run.summary["status"] = record["status"]
        if record["score"]:
            run.summary[f"test_{record['score']['name']}"] = record["score"]["value"]
        run.summary["steps_per_second"] = record["timing"]["steps_per_second"]
        run.summary["parameters"] = record["parameters"]["total"]
    finally:
        run.finish()
    return name


def _library() -> Any:
    try:
        return import_module("wandb")
    except ModuleNotFoundError:
        raise UsageError(
            "Weights & Biases needs wandb, which is not installed; run `pip install 'longspan[wandb]'`."
        ) from None
