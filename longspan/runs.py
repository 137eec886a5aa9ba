"""One cell of the arena: (task, mechanism, pattern, protocol, tier, seed) goes in, a card comes out.

    card = run(Cell("listops", "performer(features=64)", tier="smoke"))
    model = load("out/cards/listops/....json")

A cell that is finished is answered from its card; one that was interrupted goes on where it was.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import shutil
import time
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from safetensors.torch import load_file
from torch import nn
from torch.overrides import TorchFunctionMode

from longspan import attentions, datasets, fairness, tasks
from longspan.attentions import Mechanism, Pattern
from longspan.backbones.slots import Slots, filled
from longspan.core import audit, environment, meter
from longspan.core.atomic import storage_errors, write_json
from longspan.core.environment import choose_device
from longspan.core.errors import (
    CorruptFile,
    LongspanError,
    PluginError,
    RunFailed,
    UnsupportedPattern,
    UsageError,
)
from longspan.core.lock import only_one
from longspan.core.seeding import seed_everything
from longspan.datasets.base import Splits
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.tasks import Protocol, Task
from longspan.training.display import Logs, progress_bar
from longspan.training.loop import Progress, Trained, save_weights, train

WORTH_COMPILING = 2_000  # steps from which a GPU run earns back the time torch.compile takes
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


@typing.runtime_checkable
class Compilable(typing.Protocol):
    """A backbone that knows which of its parts torch.compile should fuse."""

    def compile_parts(self) -> None: ...


@dataclass(frozen=True)
class Cell:
    """What is to be run, in the words of the command line."""

    task: str
    mechanism: str
    pattern: str | None = None
    protocol: str = "longspan"
    tier: str = "smoke"
    seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A cell with every name resolved and every setting known."""

    cell: Cell
    task: Task
    mechanism: Mechanism
    patterns: tuple[Pattern, ...]
    protocol: Protocol

    @classmethod
    def of(cls, cell: Cell) -> "Plan":
        task = tasks.get(cell.task)
        mechanism = attentions.get(cell.mechanism)
        patterns = task.patterns(cell.pattern)
        for pattern in patterns:
            if pattern not in mechanism.meta.patterns:
                raise UnsupportedPattern(
                    f"{mechanism} cannot run as {pattern}, which {task.name} needs; "
                    f"it supports: {', '.join(mechanism.meta.patterns)}."
                )
        if isinstance(cell.seed, bool) or cell.seed < 0:
            raise UsageError(f"A seed is an integer of at least 0, got {cell.seed}.")
        return cls(cell, task, mechanism, patterns, task.protocol(cell.protocol, cell.tier).override(cell.overrides))

    @property
    def pattern(self) -> str:
        """The patterns whose slots are replaced, in one word: "noncausal_self+causal_self"."""
        return "+".join(self.patterns)

    @property
    def slots(self) -> Slots:
        """What fills the slots of the network."""
        return Slots(self.mechanism, frozenset(self.patterns), self.task.others(self.protocol))

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the outcome; two runs with one identity are the same run."""
        return {
            "task": self.task.name,
            "task_version": self.task.meta.version,
            "mechanism": str(self.mechanism),
            "mechanism_sha256": source_hash(self.mechanism.cls),
            "pattern": self.pattern,
            "protocol": self.cell.protocol,
            "tier": self.cell.tier,
            "seed": self.cell.seed,
            "overrides": _plain(dict(self.cell.overrides)),
            "settings": _plain(asdict(self.protocol)),
        }

    @property
    def folder_name(self) -> str:
        digest = hashlib.sha256(cards.canonical(self.identity)).hexdigest()[:12]
        return f"{self.task.name}-{self.cell.protocol}-{self.cell.tier}-seed{self.cell.seed}-{digest}"

    @property
    def title(self) -> str:
        return f"{self.task.name} {self.mechanism} seed {self.cell.seed}"

    def model(self) -> nn.Module:
        """The network with initial weights that the seed decides."""
        seed_everything(self.cell.seed)
        try:
            return self.task.model(self.slots, self.protocol)
        except Exception as error:
            if isinstance(error, LongspanError) or _from_longspan(self.mechanism):
                raise
            raise PluginError(f"{self.mechanism} could not be built ({_first_line(error)}); mend it.") from error


def run(
    cell: Cell,
    *,
    out: Path | str = "out",
    data: Path | str | None = None,
    device: str = "auto",
    precision: str = "auto",
    devices: int = 1,
    real: bool = False,
    weights: bool = True,
    progress: bool = True,
) -> cards.Card:
    """Train and score one cell and put its card into `out/cards`, with the selected weights beside it if wanted."""
    plan = Plan.of(cell)
    out = Path(out)
    device = choose_device(device)
    precision = choose_precision(precision, device)
    store = Store(out / "cards")
    folder = out / "runs" / plan.folder_name
    data = None if data is None else Path(data)
    variant = _variant(plan, data, real)
    if (finished := _finished(store, plan, device, precision, variant)) is not None:
        _tidy(folder)
        return finished
    recipe = plan.protocol.recipe
    if devices < 1 or recipe.batch_size // recipe.accumulate % devices:
        parts = f" in {recipe.accumulate} parts" if recipe.accumulate > 1 else ""
        raise UsageError(
            f"A batch of {recipe.batch_size}{parts} cannot be shared equally by {devices} devices; "
            "choose a number of devices that divides it."
        )
    splits = plan.task.splits(plan.protocol, data, real=real)
    with contextlib.ExitStack() as alone:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            alone.enter_context(only_one(folder / "lock", f"the run {plan.title}"))
        if (
            finished := _finished(store, plan, device, precision, splits.variant)
        ) is not None:  # by whoever held the lock
            return finished
        write_json(folder / "cell.json", {"cell": _plain(asdict(cell)), "steps": recipe.steps})
        fabric = make_fabric(device, precision, devices)
        arguments = (folder, store, device, precision, devices, weights, progress)
        if devices == 1:
            card = _train_cell(fabric, plan, splits, *arguments)
        else:
            card = fabric.launch(functools.partial(_train_in_each, cell=cell, data=data, arguments=arguments))
        _tidy(folder)
    if card["status"] == "fail":
        raise RunFailed(f"{plan.title} failed: {card['reason']}")
    return card


def choose_precision(asked: str, device: str) -> str:
    if asked == "auto":
        return "bf16" if device == "cuda" else "fp32"
    if asked not in PRECISIONS:
        raise UsageError(f"A precision is auto, {' or '.join(PRECISIONS)}, got {asked!r}.")
    return asked


def load(card: Path | str, *, attention: str | None = None) -> nn.Module:
    """The trained model behind a card, in evaluation mode on the CPU.

    `attention` says where a plug-in of yours lies now, when it is not in the current folder: "path/mine.py:Mine".
    """
    card = Path(card)
    record = cards.read(card, "run")
    if "weights" not in record["files"]:
        raise UsageError(f"The card {card.name} has no weights beside it; run its cell again to get them.")
    model = plan_of(record, attention=attention).model()
    weights = card.with_name(record["files"]["weights"])
    try:
        model.load_state_dict(load_file(weights))
    except (OSError, RuntimeError, ValueError) as error:
        raise CorruptFile(f"The weights {weights.name} do not fit {card.name}; run its cell again.") from error
    except Exception as error:  # safetensors has an error class of its own
        raise CorruptFile(f"The weights {weights.name} cannot be read ({error}); run the cell again.") from error
    return model.eval()


def plan_of(record: cards.Card, *, attention: str | None = None) -> Plan:
    """The plan by which the run of a card was made."""
    cell = Cell(
        record["task"],
        attention or record["mechanism"],
        record["pattern"],
        record["protocol"],
        record["tier"],
        record["seed"],
        {name: tuple(value) if isinstance(value, list) else value for name, value in record["overrides"].items()},
    )
    plan = Plan.of(cell)
    if (version := record["task_version"]) != plan.task.meta.version:
        raise UsageError(
            f"The card is of {plan.task.name} version {version}, this package has {plan.task.meta.version}; "
            f"install longspan {record['code']['version']}."
        )
    return plan


class Unfilled(TorchFunctionMode):
    """Leaves out the drawing of initial weights, which shapes without numbers have no use for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


@functools.cache
def count_parameters(task: str, mechanism: str, protocol: str, tier: str, pattern: str | None = None) -> dict[str, Any]:
    """Trainable numbers in all and by part of the network, of which only the shapes are made."""
    plan = Plan.of(Cell(task, mechanism, pattern, protocol, tier))
    try:
        with torch.device("meta"), Unfilled():
            return count(plan.model())
    except (NotImplementedError, RuntimeError):  # a mechanism that looks at the numbers it draws needs real ones
        return count(plan.model())


@dataclass(frozen=True)
class Unfinished:
    """A run that was started and has no card yet."""

    path: Path
    cell: Cell
    step: int
    steps: int
    bytes: int
    updated: datetime


def unfinished(out: Path | str = "out") -> list[Unfinished]:
    found = []
    for path in sorted((Path(out) / "runs").glob("*/cell.json")):
        folder = path.parent
        saved = sorted(folder.glob("checkpoint-*.pt"))
        record = json.loads(path.read_text())
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        step = int(saved[-1].stem.split("-")[1]) if saved else 0
        updated = datetime.fromtimestamp(max(file.stat().st_mtime for file in (path, *saved)), UTC)
        found.append(Unfinished(folder, Cell(**record["cell"]), step, record["steps"], size, updated))
    return found


def clean(out: Path | str = "out") -> list[Path]:
    """Remove unfinished runs and say which; cards, logs and data are not touched."""
    removed = []
    for one in unfinished(out):
        with only_one(one.path / "lock", f"the run {one.path.name}"):
            _tidy(one.path)
        removed.append(one.path)
    return removed


def make_fabric(device: str, precision: str, devices: int) -> Fabric:
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # it announces what is decided here on purpose
    several = DDPStrategy(start_method="spawn", find_unused_parameters=True)  # a mechanism need not use all it has
    strategy = "auto" if devices == 1 else several
    return Fabric(accelerator=device, devices=devices, strategy=strategy, precision=PRECISIONS[precision])  # type: ignore[arg-type]


def compile_long_runs(model: nn.Module, device: str, steps: int) -> None:
    """Let torch.compile fuse the network where that is earned back."""
    if device == "cuda" and steps >= WORTH_COMPILING and isinstance(model, Compilable):
        torch.compiler.reset()  # else the graphs of earlier cells use up what torch allows, and none is made
        model.compile_parts()


def _train_in_each(fabric: Fabric, *, cell: Cell, data: Path | None, arguments: tuple) -> cards.Card:
    """One of several processes: it imports the plug-in and maps the data itself, since neither travels well."""
    plan = Plan.of(cell)
    return _train_cell(fabric, plan, plan.task.splits(plan.protocol, data), *arguments)


def _train_cell(
    fabric: Fabric,
    plan: Plan,
    splits: Splits,
    folder: Path,
    store: Store,
    device: str,
    precision: str,
    devices: int,
    keep_weights: bool,
    shown: bool,
) -> cards.Card:
    """Train in this process (or in each of several) and write the card, whether it went well or not."""
    started = time.perf_counter()
    meter.reset_peak_memory(device)
    energy, neighbours = meter.EnergyMeter(device), meter.Neighbours(device)
    with audit.reading() as read:
        model = plan.model()
    parameters, slots = count(model), filled(model)
    compile_long_runs(model, device, plan.protocol.recipe.steps)
    logs = Logs(folder) if fabric.is_global_zero else None
    trained, reason, state = None, None, Progress()
    recipe = plan.protocol.recipe
    with progress_bar(plan.title, recipe.steps, plan.task.meta.score, shown and fabric.is_global_zero) as bar:

        def watch(now: Progress, steps: int) -> None:
            nonlocal state
            state = now
            if now.step % recipe.evaluate_every == 0:
                neighbours.look()
            if logs is not None:
                logs.update(now)
            if bar is not None:
                bar(now, steps)

        try:
            trained = train(
                plan.task, model, splits, plan.protocol, fabric=fabric, seed=plan.cell.seed, folder=folder, watch=watch
            )
            state = trained.progress
        except torch.OutOfMemoryError:
            rows = recipe.batch_size // recipe.accumulate
            reason = (
                f"out of memory on {device} at batch size {rows}; choose a smaller one with --set recipe.batch_size, "
                "or a larger recipe.accumulate"
            )
        except RunFailed as error:
            reason = str(error)
        except Exception as error:  # a plug-in may raise anything at all
            if isinstance(error, LongspanError) or _from_longspan(plan.mechanism):
                raise
            reason = _first_line(error)
        finally:
            if logs is not None:
                logs.close()
    card: cards.Card = _describe(plan, splits, parameters, slots, read, device, precision, devices) | _outcome(
        plan, splits, trained, state
    )
    card |= {
        "status": "ok" if trained else "fail",
        "reason": reason,
        "memory": {"peak_bytes": meter.peak_memory_bytes(device)},
        "energy": None if neighbours.seen else _whole_energy(energy, state),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    card["timing"]["shared"] = neighbours.seen  # by other work on the same GPU, so that the times say little
    card["timing"]["wall_seconds"] = round(max(state.total_seconds, time.perf_counter() - started), 3)
    if fabric.is_global_zero:
        card = cards.read(store.add(card, _files(folder, model if keep_weights else None, trained)))
    return card


def _whole_energy(energy: meter.EnergyMeter, state: Progress) -> dict[str, float] | None:
    """Joules of the whole run: a run that was interrupted has spent some that no one has counted."""
    joules = None if state.resumed else energy.joules()
    return None if joules is None else {"joules": joules}


def _describe(
    plan: Plan,
    splits: Splits,
    parameters: dict[str, Any],
    slots: dict[str, str],
    read: list[str],
    device: str,
    precision: str,
    devices: int,
) -> cards.Card:
    """The part of a card that is known before training."""
    cell = plan.cell
    baseline = count_parameters(cell.task, "softmax", cell.protocol, cell.tier, plan.pattern)["total"]
    if cell.overrides:
        softmax = Plan(cell, plan.task, attentions.get("softmax"), plan.patterns, plan.protocol)
        baseline = count(softmax.model())["total"]
    verdicts = fairness.judge(plan.mechanism.meta, cell.overrides, parameters["total"], baseline, read)
    identity = plan.identity
    settings = identity.pop("settings")
    source = identity.pop("mechanism_sha256")
    return identity | {
        "schema": cards.SCHEMA_VERSION,
        "kind": "run",
        "backbone": plan.task.meta.backbone,
        "slots": slots,
        "title": plan.mechanism.meta.title,
        "track": fairness.track(verdicts, cell.overrides),
        "rules": {name: asdict(verdict) for name, verdict in verdicts.items()},
        "fidelity": plan.mechanism.meta.fidelity,
        "settings": settings
        | {"device": device, "devices": devices, "precision": precision, "mechanism_sha256": source},
        "dataset": {
            "name": plan.task.dataset,
            "variant": splits.variant,
            "sha256": splits.sha256,
            "counts": splits.counts,
        },
        "code": environment.code_version(),
        "environment": environment.describe(),
        "parameters": {
            **parameters,
            "baseline": baseline,
            "ratio": round(parameters["total"] / baseline, 6),
            "within_rule": verdicts["parameters"].kept,
        },
    }


def _outcome(plan: Plan, splits: Splits, trained: Trained | None, state: Progress) -> cards.Card:
    """The part of a card that training decides."""
    speed = state.step / state.train_seconds if state.train_seconds else None
    outcome: cards.Card = {
        "curve": state.curve,
        "timing": {
            "wall_seconds": None,
            "steps_per_second": speed and round(speed, 4),
            "examples_per_second": speed and round(speed * plan.protocol.recipe.batch_size, 3),
            "training_seconds": round(state.train_seconds, 3),
            "resumed": state.resumed,
        },
        "selected_step": trained and trained.selected_step,
        "metrics": None,
        "score": None,
    }
    if trained is None:
        return outcome
    meta = plan.task.meta
    outcome["metrics"] = {
        name: {metric: {"value": value, "count": result.count} for metric, value in result.metrics.items()}
        for name, result in (("valid", trained.valid), ("test", trained.test))
    }
    outcome["score"] = {
        "name": meta.score,
        "split": "test",
        "value": trained.test.metrics[meta.score],
        "count": trained.test.count,
        "higher_is_better": meta.higher_is_better,
        "unit": meta.unit,
        "chance": plan.task.chance(splits.test),
    }
    return outcome


def _files(folder: Path, model: nn.Module | None, trained: Trained | None) -> dict[str, Path]:
    """What is kept beside the card: the log, the selected weights, and what they predicted for each test example."""
    files = {"log": folder / "log.csv"} if (folder / "log.csv").exists() else {}
    if trained is None:
        return files
    predictions, weights = folder / "predictions.npz", folder / "weights.safetensors"
    with storage_errors(predictions):
        np.savez_compressed(predictions, allow_pickle=False, **trained.test.predictions)
    files["predictions"] = predictions
    if model is not None:
        save_weights(model, weights)
        files["weights"] = weights
    return files


def _variant(plan: Plan, data: Path | None, real: bool) -> str | None:
    """The kind of data a run would find on disk; None where that is not known yet."""
    found = datasets.get(plan.task.dataset).status(plan.protocol.data, root=data)
    return found.variant if found.ready and not (real and found.variant == "standin") else None


def _finished(store: Store, plan: Plan, device: str, precision: str, variant: str | None) -> cards.Card | None:
    """The newest good card of this very cell: same settings and kind of data, same source of the mechanism, same kind
    of machine. Where no data are on disk any more, a card on real ones will do."""
    identity = plan.identity
    settings = identity.pop("settings") | {
        "device": device,
        "precision": precision,
        "mechanism_sha256": identity.pop("mechanism_sha256"),
    }
    for card in reversed(store.find(**{name: identity[name] for name in ("task", "mechanism", "seed")})):
        same = all(card[name] == value for name, value in identity.items())
        same &= card["dataset"]["variant"] == variant if variant else card["dataset"]["variant"] != "standin"
        if same and card["status"] == "ok" and all(card["settings"].get(n) == v for n, v in settings.items()):
            return card
    return None


def _tidy(folder: Path) -> None:
    """Drop what only an unfinished run needs; logs stay."""
    for name in ("checkpoint-*.pt", "weights.safetensors", "predictions.npz", "cell.json", ".*.part"):
        for path in folder.glob(name):
            path.unlink(missing_ok=True)
    if folder.exists() and not any(path.name != "lock" for path in folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


def count(model: nn.Module) -> dict[str, Any]:
    """Parameters in all, and by part: layers of a stack are one part."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = [word for word in name.split(".")[:-1] or [name] if not word.isdigit()]
        part = ".".join(words[:2])
        parts[part] = parts.get(part, 0) + parameter.numel()
    return {"total": sum(parts.values()), "parts": parts}


@functools.cache
def source_hash(cls: type) -> str:
    """Names the very code of a mechanism, so that a changed plug-in is a new run."""
    return hashlib.sha256(inspect.getsource(inspect.getmodule(cls) or cls).encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _from_longspan(mechanism: Mechanism) -> bool:
    return mechanism.cls.__module__.startswith("longspan.")


def _plain(value: Any) -> Any:
    """As JSON sees it: tuples are lists."""
    return json.loads(json.dumps(value))


def cells(
    names: list[str],
    mechanisms: list[str],
    *,
    pattern: str | None = None,
    protocol: str = "longspan",
    tier: str = "smoke",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
) -> Iterator[Cell]:
    """Every combination, task by task, so that a board fills column by column."""
    for task in names:
        for mechanism in mechanisms:
            for seed in range(seeds):
                yield Cell(task, mechanism, pattern, protocol, tier, seed, overrides or {})
