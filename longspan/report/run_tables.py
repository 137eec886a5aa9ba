"""Tables of runs for a page, in Markdown: scores by seed, changed settings, boards, language models, differences."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from longspan import published, suites
from longspan.analysis import answer
from longspan.analysis.cards import Evidence
from longspan.analysis.finding import table
from longspan.core.errors import UsageError
from longspan.results.board import board
from longspan.results.board_notes import LEFT_CHANCE
from longspan.results.board_table import DASH, cell_text, mean_text, percent, plain, rate_text
from longspan.results.board_types import Board
from longspan.results.card import Card
from longspan.results.chance import is_above_chance
from longspan.results.parameter_rule import PARAMETER_RULE
from longspan.results.variant import REAL, data_of

PROTOCOLS = ("longspan", "lra-paper", "lra-released", "strong")
LEADERBOARDS = ("lra-v0", "lra-v1")


def scores(evidence: Evidence, task: str, tier: str) -> str:
    """Every mechanism that ran a task of Long Range Arena on real data, each seed with what it took."""
    rows = []
    for group in _groups(evidence, task, tier):
        good = [card for card in group if card["status"] == "ok"]
        minutes = [_minutes(card) for card in good]
        shared = any(card["timing"].get("shared") for card in good)
        speeds = [rate_text(card["timing"]["steps_per_second"]) for card in good]
        rows.append(
            (
                group[0]["mechanism"],
                group[0]["protocol"],
                _scores_text(group),
                _published(group[0]),
                ", ".join(minutes) + (" (shared)" if shared else ""),
                DASH if shared else ", ".join(speeds),
            )
        )
    heads = ("mechanism", "protocol", "accuracy", "published, v0 / v1", "minutes", "steps/s between evaluations")
    return table(heads, rows) if rows else ""


def _minutes(card: Card) -> str:
    """A dash for a run that shared its device, whose time says little."""
    seconds = None if card["timing"].get("shared") else card["timing"]["wall_seconds"]
    return DASH if seconds is None else f"{seconds / 60:.1f}"


def _scores_text(group: Sequence[Card]) -> str:
    """`35.20, 37.60: 36.40 ± 1.70`, with the caveats that apply."""
    good = [card for card in group if card["status"] == "ok"]
    if not good:
        return f"FAIL: {group[-1]['reason']}"
    values = [card["score"]["value"] for card in good]
    text = ", ".join(map(percent, values))
    if len(values) > 1:
        text += f": {percent(statistics.fmean(values))} ± {percent(statistics.stdev(values))}"
    if failed := len(group) - len(good):
        text += f" ({failed} failed)"
    left = [is_above_chance(one["value"], one["chance"], one["count"]) for one in (card["score"] for card in good)]
    if not all(one is not False for one in left):
        few = f"{sum(map(bool, left))} of {len(good)} {LEFT_CHANCE}"
        text += f" ({few if len(good) > 1 else 'not above chance'})"
    ratio = good[-1]["parameters"]["ratio"]
    if ratio is not None and ratio > PARAMETER_RULE and good[-1]["protocol"] != "strong":
        text += f" (free track: {100 * (ratio - 1):+.1f} % parameters)"
    return text


def _published(card: Card) -> str:
    """The score of the same attention in both tables of the arena, which stand beside the fixed track only."""
    column = card["task"].partition("_")[0]
    found = [published.load(name).counterpart(card["mechanism"]) for name in LEADERBOARDS]
    if card["track"] != "fixed" or None in found or column not in suites.get("lra").tasks:
        return DASH
    printed = (row.scores[column] for row in found if row is not None)
    return " / ".join(score if isinstance(score, str) else f"{score:.2f}" for score in printed)


def changed(evidence: Evidence, task: str, tier: str) -> str:
    """Runs with changed settings, below the unchanged run of the same mechanism."""
    own = [card for card in evidence.runs if _is(card, task, tier) and card["status"] == "ok"]
    tried = {(card["mechanism"], card["protocol"]) for card in own if card["overrides"]}
    rows = []
    for card in sorted(own, key=_changes_order):
        if (card["mechanism"], card["protocol"]) in tried:
            changes = ", ".join(f"{name}={value}" for name, value in card["overrides"].items()) or "nothing"
            at_end = (card["curve"] or [{}])[-1].get("train_accuracy")
            rows.append(
                (
                    card["mechanism"],
                    card["protocol"],
                    changes,
                    str(card["seed"]),
                    percent(card["score"]["value"]),
                    DASH if at_end is None else f"{100 * at_end:.1f}",
                    DASH if card["selected_step"] is None else f"{card['selected_step']:,}",
                )
            )
    heads = ("mechanism", "protocol", "changed", "seed", "test", "training accuracy at the end", "best step")
    return table(heads, rows) if rows else ""


def _changes_order(card: Card) -> tuple:
    return card["protocol"], card["mechanism"], bool(card["overrides"]), str(dict(card["overrides"])), card["seed"]


def board_table(evidence: Evidence, suite: str, protocol: str, tier: str) -> str:
    """The rows of a board on real data, without what was published: the fixed track, then the free one."""
    view = board(evidence.runs, suite, protocol, tier)
    tasks, averages = view.suite.columns, [average.name for average in view.suite.averages]
    rows = [
        (
            row.title if row.mechanism.partition("(")[0] == row.mechanism else f"{row.title} ({row.mechanism})",
            track,
            *(cell_text(view, row.cells[task], column=task) for task in tasks),
            *(mean_text(view, row.averages[name], name=name) for name in averages),
        )
        for track, own in (("fixed", view.rows), ("free", view.free), ("twin", view.fidelity))
        for row in own
    ]
    heads = ("mechanism", "track", *map(suites.heading, tasks), *(average.title for average in view.suite.averages))
    return "\n".join([table(heads, rows), *_lacking(view)]) if rows else ""


def _lacking(view: Board) -> list[str]:
    """A sentence if no row has an average."""
    first = view.suite.averages[0] if view.suite.averages else None
    rows = (*view.rows, *view.free)
    if first is None or any(row.averages[first.name].value is not None for row in rows):
        return []
    least = min((row.averages[first.name].missing for row in rows), key=len, default=())
    return ["", f"No {first.title} yet: the fullest row lacks {', '.join(least)}."] if least else []


def metrics(evidence: Evidence, task: str, tier: str, *names: str) -> str:
    """These metrics of the test set, whatever the data, beside the score of guessing."""
    if not names:
        raise UsageError(f"A table of metrics of {task} was asked for without one; name some of those on its cards.")
    cards = [card for card in evidence.runs if _is(card, task, tier, data=None) and not card["overrides"]]
    rows = []
    for card in sorted((card for card in cards if card["status"] == "ok"), key=lambda card: _order([card])):
        found, score = (card["metrics"] or {}).get("test", {}), card["score"]
        texts = [plain(found[name]["value"]) if name in found else DASH for name in names]
        chance = DASH if score["chance"] is None else plain(score["chance"])
        against = DASH if not score["chance"] else f"{100 * (score['value'] / score['chance'] - 1):+.0f} %"
        rows.append((card["mechanism"], data_of(card), *texts, f"{score['name']} {chance}", against))
    return table(("mechanism", "data", *names, "chance", "score against chance"), rows) if rows else ""


def language(evidence: Evidence, task: str, tier: str, *lengths: str) -> str:
    """Perplexities, also at other lengths than in training where a probe measured them, and what training took."""
    asked = {card["subject"]["card"]: card["results"]["points"] for card in evidence.asked("extrapolation")}
    rows = []
    for group in _groups(evidence, task, tier):
        for card in (one for one in group if one["status"] == "ok"):
            timing, points = card["timing"], {one["length"]: one for one in asked.get(card["sha256"], ())}
            found = [points.get(int(length), {}).get("perplexity") for length in lengths]
            rate, tokens = timing["examples_per_second"], card["settings"]["data"].get("length")
            speed = rate * tokens if rate and isinstance(tokens, int) and not timing.get("shared") else None
            peak = card["memory"]["peak_bytes"]
            rows.append(
                (
                    card["mechanism"],
                    f"{card['score']['value']:.1f}",
                    *(DASH if value is None else f"{value:.1f}" for value in found),
                    DASH if speed is None else f"{round(speed, -3):,.0f}",
                    DASH if peak is None else f"{peak / 2**30:.1f}",
                    _minutes(card),
                )
            )
    rows.sort(key=lambda row: float(row[1]))
    heads = ("mechanism", "test perplexity", *(f"at {int(length):,}" for length in lengths), "tokens/s in training")
    return table((*heads, "peak memory, GiB", "minutes"), rows) if rows else ""


def forecasting(evidence: Evidence, *tasks: str) -> str:
    """Errors of forecasts under `cab-2023`, mean and deviation over seeds, beside those shipped with CAB's code."""
    found = {task: {group[0]["mechanism"]: group for group in _groups(evidence, task, "full")} for task in tasks}
    rows = []
    for mechanism in dict.fromkeys(name for own in found.values() for name in own):
        row = [mechanism]
        for task in tasks:
            group = [card for card in found[task].get(mechanism, ()) if card["status"] == "ok"]
            row.append(str(len(group)))
            for metric in ("mse", "mae"):
                tested = [(card["metrics"] or {}).get("test", {}) for card in group]
                values = [found[metric]["value"] for found in tested if metric in found]
                row += [_error(values), _printed(task, metric, mechanism)]
        rows.append(tuple(row))
    heads = [head for task in tasks for head in (f"seeds, {task}", "MSE", "CAB", "MAE", "CAB")]
    return table(("mechanism", *heads), rows) if rows else ""


def _error(values: Sequence[float]) -> str:
    if not values:
        return DASH
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def _printed(task: str, metric: str, mechanism: str) -> str:
    rows = (table.counterpart(mechanism) for table in published.for_tasks([task], metric))
    row = next(filter(None, rows), None)
    score = None if row is None else row.scores[task]
    return f"{score:.3f}" if isinstance(score, float) else DASH


def differences(evidence: Evidence, *tasks: str) -> str:
    """Each mechanism against softmax on the same test examples of these tasks."""
    own = [card for card in evidence.runs if card["task"] in tasks]
    finding = answer("differences", replace(evidence, runs=own))
    kept = [i for i, column in enumerate(finding.columns) if column.title != "Pattern"]
    return table([finding.columns[i].title for i in kept], [[row[i] for i in kept] for row in finding.texts()])


# ------------------------------------------------------------------------------------------------------ runs in groups


def _is(card: Card, task: str, tier: str, data: str | None = REAL) -> bool:
    return (card["task"], card["tier"]) == (task, tier) and data in (None, data_of(card))


def _groups(evidence: Evidence, task: str, tier: str) -> list[list[Card]]:
    """The seeds of every mechanism and protocol on real data, nothing overridden."""
    groups: dict[Any, list[Card]] = defaultdict(list)
    for card in evidence.runs:
        if _is(card, task, tier) and not card["overrides"]:
            groups[card["protocol"], card["mechanism"], card["pattern"]].append(card)
    return sorted((sorted(own, key=lambda card: card["seed"]) for own in groups.values()), key=_order)


def _order(group: Iterable[Card]) -> tuple:
    """By protocol, softmax first, then the best."""
    cards = list(group)
    protocol, values = cards[0]["protocol"], [card["score"]["value"] for card in cards if card["score"]]
    sign = -1 if values and cards[0]["score"] and cards[0]["score"]["higher_is_better"] else 1
    place = PROTOCOLS.index(protocol) if protocol in PROTOCOLS else len(PROTOCOLS)
    best = sign * statistics.fmean(values) if values else float("inf")
    return place, protocol, cards[0]["mechanism"] != "softmax", best, cards[0]["mechanism"]
