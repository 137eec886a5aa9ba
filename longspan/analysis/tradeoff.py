"""What does accuracy cost? Score against speed and memory, figure 3 of Long Range Arena, and its Pareto front.

The paper's figure can be redrawn from its Tables 1 and 2, ours are drawn from measurement cards and boards. On the
front are the points that no other point beats in both price and score.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from longspan import published, suites
from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.analysis.lra_efficiency import PROCEDURE
from longspan.analysis.run_costs import cost_groups
from longspan.core.printable import shown
from longspan.results.alike import row_mechanism
from longspan.results.board import board
from longspan.results.card import Card
from longspan.results.variant import data_of

LENGTH = 4000  # tokens at which speed and memory are read; the paper does not say which it took
GB = 10**9
COLUMNS = (
    Column("From"),
    Column("Mechanism"),
    Column("Score", "percent", "average over the tasks of the suite"),
    Column("Steps/s", "number", "training steps per second"),
    Column("Memory, GB", "number", "peak in training, per device"),
    Column("Best for its speed", "text", "nothing is both faster and better"),
    Column("Best for its memory", "text", "nothing is both smaller and better"),
)


@dataclass(frozen=True)
class Point:
    title: str
    mechanism: str
    score: float  # a fraction
    speed: float  # training steps per second
    memory_gb: float | None


@dataclass(frozen=True)
class Panel:
    """Points that may be compared: one machine, one set of scores, one length."""

    label: str
    length: int
    points: tuple[Point, ...]
    by_speed: tuple[int, ...]  # the front, as places in `points`
    by_memory: tuple[int, ...]

    @classmethod
    def of(cls, label: str, length: int, points: Sequence[Point]) -> "Panel":
        by_speed = front([(point.speed, point.score) for point in points], cheaper_is_less=False)
        sized = [i for i, point in enumerate(points) if point.memory_gb is not None]
        pairs = [(points[i].memory_gb or 0.0, points[i].score) for i in sized]
        by_memory = [sized[i] for i in front(pairs, cheaper_is_less=True)]
        return cls(label, length, tuple(points), tuple(by_speed), tuple(by_memory))


def answer(evidence: Evidence, length: int = LENGTH) -> Finding:
    panels, notes = _own(evidence, length)
    papers = [_published(table, length) for table in published.names()]
    panels += [panel for panel in papers if panel.points]
    rows = [
        (panel.label, point.title, point.score, point.speed, point.memory_gb, *_best(panel, place))
        for panel in panels
        for place, point in enumerate(panel.points)
    ]
    notes += [_verdict(panel) for panel in papers if panel.points]
    notes.append(
        f"Speed and memory are those of training at {length:,} tokens, which is where the paper's figure most likely "
        "has them from; Sparse Trans. and Longformer were not timed by its authors."
    )
    return Finding(
        "tradeoff",
        "What accuracy costs",
        "Score against training speed and memory; the dotted line joins what nothing else beats in both.",
        COLUMNS,
        tuple(rows),
        tuple(notes),
        tuple(panels),
    )


def front(points: Sequence[tuple[float, float]], *, cheaper_is_less: bool, higher_is_better: bool = True) -> list[int]:
    """Indices of the Pareto-optimal (price, score) points, in order of price.

    >>> front([(1, 0.3), (2, 0.5), (3, 0.4)], cheaper_is_less=True)
    [0, 1]
    """
    price_sign = 1 if cheaper_is_less else -1
    score_sign = -1 if higher_is_better else 1
    order = sorted(range(len(points)), key=lambda i: (price_sign * points[i][0], score_sign * points[i][1]))
    best, chosen = None, []
    for index in order:
        score = score_sign * points[index][1]
        if best is None or score < best:
            best = score
            chosen.append(index)
    return sorted(chosen, key=lambda i: points[i][0])


def _best(panel: Panel, place: int) -> tuple[bool, bool | None]:
    sized = panel.points[place].memory_gb is not None
    return place in panel.by_speed, place in panel.by_memory if sized else None


def _published(table: str, length: int) -> Panel:
    """The paper's models with the averages of one of its leaderboards, recomputed from the printed scores."""
    scores, costs = published.load(table), published.measured("lra-training-speed")
    speed, memory = costs.column("training speed", length), costs.column("memory per device", length)
    if speed is None or memory is None:
        return Panel.of(f"published ({table})", length, [])
    points = [
        Point(row.title, row.mechanism or row.title, average / 100, row.value(speed.name), row.value(memory.name))
        for row in costs.rows
        if (average := scores.row(row.title).average()) is not None
    ]
    return Panel.of(f"published ({table})", length, points)


def _verdict(panel: Panel) -> str:
    names = [panel.points[place].title for place in panel.by_speed]
    return (
        f"By the printed numbers of {panel.label.removeprefix('published ').strip('()')} the front of speed and score "
        f"holds {', '.join(names)}; the paper's text names BigBird and Performer."
    )


# ------------------------------------------------------------------------------------------------------------ our cards


def _own(evidence: Evidence, length: int) -> tuple[list[Panel], list[str]]:
    """A panel for every machine and every group of runs that share measured mechanisms."""
    costs = _costs(evidence.measurements, length)
    scores = _scores(evidence.runs)
    panels = []
    for machine, cards in costs.items():
        for rules, averages in scores.items():
            points = [
                Point(name_of(card), mechanism, averages[mechanism], speed, memory)
                for mechanism, (card, speed, memory) in cards.items()
                if mechanism in averages
            ]
            if points:
                panels.append(Panel.of(f"{rules}, on {machine}", length, points))
    if panels:
        return panels, []
    for label, tokens, found in cost_groups(evidence.runs):
        points = [
            Point(name_of(one.card), shown(row_mechanism(one.card)), one.score, one.speed, one.memory_gb)
            for one in found
        ]
        panels.append(Panel.of(label, tokens, points))
    if panels:
        return panels, [
            "Own points have the speed and memory of the runs that gave their scores, and the mean of the tasks that "
            "all of them have: they compare with one another, not with the paper's (see longspan measure lra)."
        ]
    if costs:
        return [], ["Own mechanisms were timed, but none has a score on every task of a suite yet."]
    if scores:
        return [], [f"Own runs have scores, but nothing was timed at {length:,} tokens; see longspan measure lra."]
    return [], []


def _costs(cards: Sequence[Card], length: int) -> dict[str, dict[str, tuple[Card, float, float | None]]]:
    """Speed and memory by machine and mechanism, of training at one length."""
    found: dict[str, dict[str, tuple[Card, float, float | None]]] = defaultdict(dict)
    for card in cards:
        if card["procedure"] != PROCEDURE:
            continue
        machine = _machine(card)
        for point in card["points"]:
            if (point["length"], point["mode"], point["status"]) != (length, "train", "ok"):
                continue
            speed = point["steps_per_second"] or point["compute_steps_per_second"]
            if speed:
                memory = None if point["peak_bytes"] is None else point["peak_bytes"] / GB
                found[machine][card["mechanism"]] = (card, speed, memory)
    return dict(found)


def _machine(card: Card) -> str:
    """The device of a measurement in words, with the other settings that its numbers depend on."""
    settings, found = card["settings"], card["environment"]
    device = settings.get("device", "")
    name = found.get("gpu") if str(device).startswith("cuda") else found.get("cpu")
    words = [name or device, settings.get("precision"), "compiled" if settings.get("compile") else None]
    return shown(", ".join(str(word) for word in words if word))


def _scores(runs: Sequence[Card]) -> dict[str, dict[str, float]]:
    """The first average of the largest suite that is complete for some mechanism, by rules and mechanism."""
    groups = {(card["protocol"], card["tier"], card["pattern"], data_of(card)) for card in runs}
    found: dict[str, dict[str, float]] = {}
    for protocol, tier, pattern, data in sorted(groups):
        for name in sorted(suites.names(), key=lambda name: -len(suites.get(name).tasks)):
            suite = suites.get(name)
            if not suite.averages:
                continue
            view = board(runs, suite, protocol, tier, pattern, data=data)
            means = {row.mechanism: row.averages[suite.averages[0].name].value for row in view.rows}
            complete = {mechanism: value for mechanism, value in means.items() if value is not None}
            if complete:
                found[view.title] = complete
                break
    return found
