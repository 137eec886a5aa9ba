"""The code that trains a cell, as one hash: a checkpoint is resumed only where nothing behind its numbers has changed.

    training_source(plan)      # changes with the task, its network, the mechanisms in its slots, a kernel, the loop ...

A file counts if the training loop, the task, its network or a mechanism in its slots imports it, directly or through
others. So a run goes on after a commit that changes other mechanisms, docs or boards, and does not after an edit of one
of these files, committed or not. This is the source itself, unlike the identity of a mechanism's code
(`fingerprint.py`), which decides whether two cards may be compared.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from longspan.core import plugin_source
from longspan.runs.cell import RunPlan

PACKAGE = Path(__file__).parents[1]
ROOTS = ("longspan.runs.cell", "longspan.runs.fabric", "longspan.runs.initial", "longspan.training.loop")
TRAINING = {"core", "kernels", "attentions", "datasets", "metrics", "backbones", "sharing", "tasks", "training"}


def training_source(plan: RunPlan) -> str:
    """SHA-256 of all files, of this package and of plug-ins, that decide what the training of the cell computes."""
    mechanisms = map(plan.slots.at, {*plan.patterns, *plan.task.meta.slots.values()})
    classes = {*plan.task_classes, *(mechanism.cls for mechanism in mechanisms)}
    own = {text: cls.__module__ for cls in classes for text in plugin_source.sources(cls)}
    imported = [name for text, module in own.items() for name in plugin_source.imports(text, module)]
    texts = own.keys() | _texts([*ROOTS, *imported])
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(text).digest() for text in texts))).hexdigest()


def _texts(modules: Iterable[str]) -> set[bytes]:
    """What these modules and all that they import hold, as far as it is of this package and takes part in training."""
    found: dict[str, bytes] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found and (module := _read(name)) is not None:
            found[name], imported = module
            waiting += [name.rpartition(".")[0], *imported]
    return set(found.values())


@functools.cache  # read once, since that is the code that runs
def _read(module: str) -> tuple[bytes, tuple[str, ...]] | None:
    """The text of a module that takes part in training and what it imports; None for any other name."""
    path = _file_of(module)
    text = None if path is None else path.read_bytes()
    return None if text is None else (text, tuple(plugin_source.imports(text, module)))


def _file_of(module: str) -> Path | None:
    package, *parts = module.split(".")
    if package != "longspan" or not (module in ROOTS or (parts and parts[0] in TRAINING)):
        return None
    place = PACKAGE.joinpath(*parts)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)
