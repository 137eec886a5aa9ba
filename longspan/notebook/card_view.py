"""A card whose fields are attributes: card.score.value is card["score"]["value"]."""

from typing import Any

from longspan.core.errors import DataMissing
from longspan.notebook.frame import frame
from longspan.notebook.html_table import html_table
from longspan.notebook.measured_view import measured_points, times_drawn


class Fields(dict):
    """An object of JSON, by key and by attribute; a field hidden by a method of dict is found by key."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"This card has no field {name!r}; it has: {', '.join(self)}.") from None
        return Fields(value) if type(value) is dict else value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})


class CardView(Fields):
    """The record of one run, probe or measurement. It equals the plain dictionary that it was made from."""

    def __repr__(self) -> str:
        words = [self.get("task") or self.get("question") or self.get("procedure"), self.get("mechanism")]
        words += [self.get("pattern"), self.get("tier"), None if "seed" not in self else f"seed {self['seed']}"]
        return f"<{self['kind']} card: {' · '.join(str(word) for word in words if word)}{self._outcome()}>"

    def _outcome(self) -> str:
        if self["kind"] != "run":
            return ""
        if self["status"] != "ok":
            return f", failed: {self['reason']}"
        return f", {self['score']['name']} {self['score']['value']:.4g}"

    def _repr_html_(self) -> str:
        known = ("task", "question", "mechanism", "pattern", "protocol", "tier", "seed", "status", "reason", "created")
        facts = [(name, str(self[name])) for name in known if self.get(name) is not None]
        if score := self.get("score"):
            facts.append((f"{score['name']} ({score['split']})", f"{score['value']:.6g}"))
            facts += [("chance", f"{score['chance']:.6g}")] if score.get("chance") is not None else []
        if self["kind"] == "run":
            facts.append(("parameters", f"{self['parameters']['total'] or 0:,}"))
            facts.append(("seconds", f"{self['timing']['wall_seconds']:.1f}"))
        return html_table(("field", "value"), facts, title=f"{self['kind'].capitalize()} card")

    def to_pandas(self) -> Any:
        """The learning curve of a run, or the points of a measurement."""
        if self["kind"] == "measurement":
            return frame(measured_points([self]))
        return frame(self._curve())

    def plot(self) -> Any:
        """The learning curve of a run, or the times of a measurement by length."""
        if self["kind"] == "measurement":
            return times_drawn([self])
        from longspan.notebook.figure import lines

        curve = self._curve()
        name = (self.get("score") or {}).get("name", "loss")
        name = name if any(f"valid_{name}" in point for point in curve) else "loss"
        series = {
            part: points
            for part in ("train", "valid")
            if (points := [(point["step"], point[f"{part}_{name}"]) for point in curve if f"{part}_{name}" in point])
        }
        chance = (self.get("score") or {}).get("chance") if name != "loss" else None
        level = None if chance is None else ("chance", chance)
        title = f"{self['task']} · {self['mechanism']} · seed {self['seed']}"
        return lines(series, x="step", y=name, title=title, level=level)

    def _curve(self) -> list[dict[str, Any]]:
        if not self.get("curve"):
            raise DataMissing(f"This {self['kind']} card has no learning curve; only cards of runs have one.")
        return self["curve"]
