"""The pages of tasks: what each demands, in the words of the catalogue, and what was run on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan import suites
from longspan.core.printable import shown
from longspan.report.groups import slug
from longspan.report.sample_panels import SamplePages, SampleSection
from longspan.report.task_samples import samples_of
from longspan.results.card import Card

LENGTHS = ("length", "past", "longest", "context", "block", "points", "side")  # of data, whatever a task calls it


@dataclass
class TaskPage:
    name: str
    title: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    samples: list[tuple[int, SampleSection]] = field(default_factory=list)  # with their place on the page of samples

    @property
    def page(self) -> str:
        return f"task/{slug(self.name)}.html"

    @property
    def lede(self) -> str:
        return shown((self.entry.get("about") or "").strip().partition("\n\n")[0].replace("\n", " "))

    @property
    def more(self) -> list[str]:
        """The other paragraphs of what the task says about itself."""
        parts = (self.entry.get("about") or "").strip().split("\n\n")[1:]
        return [shown(part.replace("\n", " ")) for part in parts]

    @property
    def patterns(self) -> list[str]:
        return list(dict.fromkeys(self.entry.get("slots", {}).values()))

    @property
    def examples(self) -> list[dict[str, Any]]:
        return samples_of(self.name) if self.entry else []

    @property
    def has_labels(self) -> bool:
        """Whether an example has one answer, a class."""
        return self.entry.get("score") == "accuracy" and self.patterns == ["noncausal_self"]

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """A line for every protocol and tier: how long, how large, how many steps."""
        return [_tier(rules, settings) for rules, settings in self.entry.get("settings", {}).items()]


def _tier(rules: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    data, model, recipe = (settings.get(part) or {} for part in ("data", "model", "recipe"))
    length = next((data[name] for name in LENGTHS if isinstance(data.get(name), int)), None)
    layers = model.get("layers") or model.get("encoder_layers")
    return {
        "rules": rules.replace("/", " · "),
        "length": length,
        "train": data.get("train"),
        "dim": model.get("dim"),
        "layers": layers,
        "steps": recipe.get("steps"),
        "batch": recipe.get("batch_size"),
    }


def task_pages(cards: Sequence[Card], catalogue: Mapping[str, Any], samples: SamplePages) -> dict[str, TaskPage]:
    """By name, in the order of their titles; also of tasks that only cards know."""
    found = {entry["name"]: TaskPage(entry["name"], entry["title"], entry) for entry in catalogue.get("tasks", ())}
    for card in cards:
        name = card["task"]
        found.setdefault(name, TaskPage(name, shown(suites.heading(name)))).cards.append(card)
    for place, section in enumerate(samples.sections, 1):
        found[section.task].samples.append((place, section))
    return dict(sorted(found.items(), key=lambda item: item[1].title.casefold()))
