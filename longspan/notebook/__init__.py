"""The commands in Python: what they return displays itself in a notebook and converts to a data frame.

    longspan.board("starter", tier="smoke")           # ranks; .rows, .to_pandas(), .plot()
    longspan.card("out/cards/listops/....json")       # one record; card.score.value, card.plot()
    longspan.advise("causal_self", 16384)             # the trade-off; .lede, .to_pandas(), .plot()

Reading never imports torch; `run` and `measure` do when they are called. Plots are figures of matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.core.errors import DataMissing, UsageError
from longspan.notebook.answer_view import AnswerView
from longspan.notebook.board_view import BoardView
from longspan.notebook.card_view import CardView
from longspan.notebook.measured_view import MeasuredView

__all__ = ["AnswerView", "BoardView", "CardView", "MeasuredView"]
__all__ += ["advise", "analyze", "board", "boards", "card", "cards", "measure", "report", "run"]

Folders = str | Path | Sequence[str | Path] | None


def run(
    task: str,
    mechanism: str,
    *,
    pattern: str | None = None,
    protocol: str = "longspan",
    tier: str = "smoke",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path = "out",
    **how: Any,
) -> CardView:
    """Train and score one cell; a finished one is answered from its card, an interrupted one goes on.

    `how` is passed on to `longspan.runs.run`: `device`, `precision`, `devices`, `data`, `real`, `progress`.

        card = longspan.run("listops", "performer(features=64)", tier="smoke")
        card.score.value
    """
    from longspan import api

    cell = {"pattern": pattern, "protocol": protocol, "tier": tier, "seed": seed, "overrides": overrides}
    return CardView(api.run(task, mechanism, **cell, out=out, **how))


def measure(
    *mechanisms: str,
    pattern: str | Sequence[str] = "noncausal_self",
    lengths: Sequence[int] | None = None,
    modes: Sequence[str] | None = None,
    device: str = "auto",
    out: str | Path = "out",
    again: bool = False,
    budget: float | None = None,
    **setup: Any,
) -> MeasuredView:
    """Time and memory of mechanisms alone at growing lengths; what was measured already is not measured again.

    `setup` is that of `longspan.efficiency.setup.Setup`: `dtype`, `variants`, `module`, `batch`, `heads`, `dim`.

        longspan.measure("softmax", "linear", lengths=[256, 1024]).plot()
    """
    from longspan.core import environment
    from longspan.efficiency import sweep
    from longspan.efficiency.setup import Setup

    if not mechanisms:
        raise UsageError("No mechanism was named to measure; name one, as in longspan.measure('softmax').")
    device = environment.choose_device(device)
    asked = {"lengths": lengths and tuple(lengths), "modes": modes and tuple(modes), **setup}
    pairs = sweep.pairs_of(mechanisms, [pattern] if isinstance(pattern, str) else pattern)
    done = sweep.measure(pairs, Setup.usual(device, **asked), device=device, out=out, again=again, budget=budget)
    return MeasuredView(done.cards, done.left)


# ------------------------------------------------------------------------------------------------------- what cards say


def card(path: str | Path) -> CardView:
    """One card, read as data only and checked; its fields are attributes too.

    card = longspan.card("out/cards/listops/....json")
    card.score.value, card.timing.steps_per_second
    """
    from longspan.results.card import read

    return CardView(read(Path(path)))


def cards(kind: str = "run", *, cards: Folders = None, out: str | Path = "out", **filters: Any) -> list[CardView]:
    """The newest card of every run (or probe, or measurement) whose fields equal the filters.

    longspan.cards(task="listops", tier="smoke")
    """
    from longspan.results.store import Store

    folders = _folders(cards, out)
    return [CardView(one) for folder in folders for one in Store(folder).find(kind=kind, **filters)]


def boards(suite: str, *, cards: Folders = None, out: str | Path = "out", **asked: str | None) -> list[BoardView]:
    """A board for every protocol, tier, pattern and kind of data that has cards of a suite or task.

    `asked` narrows them: `protocol`, `tier`, `pattern`, `data`; `published` and `metric` are those of the command.
    """
    from longspan.results import collect

    found = collect.cards_of(suite, _folders(cards, out))
    checked, _ = collect.checks_in(_given(cards), Path(out))
    return [BoardView(one) for one in collect.boards(found.cards, suite, **asked, conformance=checked)]


def board(suite: str, *, cards: Folders = None, out: str | Path = "out", **asked: str | None) -> BoardView:
    """The board of a suite or task, from the cards in `out` and in `results` unless other folders are named.

    Protocols, tiers, patterns and kinds of data never share a board: where several match, say which one is meant.

        longspan.board("starter", tier="smoke").to_pandas()
    """
    found = boards(suite, cards=cards, out=out, **asked)
    if not found:
        raise DataMissing(f"No cards of {suite}; create some with longspan.run, or longspan run {suite} -a softmax.")
    if len(found) > 1:
        known = "; ".join(dict.fromkeys(one.title for one in found))
        raise UsageError(
            f"{len(found)} boards of {suite} match ({known}); choose one by protocol, tier, pattern or data, or take "
            f"all with longspan.boards({suite!r})."
        )
    return found[0]


def advise(
    pattern: str,
    length: int,
    *,
    mode: str = "forward",
    exact_only: bool = False,
    memory_limit: float | None = None,
    device: str | None = None,
    every: bool = True,
    cards: Folders = None,
    out: str | Path = "out",
) -> AnswerView:
    """Which mechanism to use at a length: what each costs and scores, which are unbeaten, what is unknown.

    Answered from the cards in `out` and those that come with the package, or from `cards` alone.

    longspan.advise("causal_self", 16384, mode="train").to_pandas()
    """
    from longspan.analysis import gather
    from longspan.analysis.advise import advise as weigh
    from longspan.results.collect import pattern_name
    from longspan.results.shipped import shipped_cards

    limits: dict[str, Any] = {"exact_only": exact_only, "memory_limit": memory_limit, "device": device, "every": every}
    evidence = gather(_folders(cards, out), others=() if cards else shipped_cards())
    return AnswerView(weigh(evidence, pattern=pattern_name(pattern), length=length, mode=mode, **limits))


def analyze(question: str, *, shipped: bool = False, cards: Folders = None, out: str | Path = "out") -> AnswerView:
    """The answer that cards and published tables give to a question of `longspan analyze`.

    With `shipped`, the cards that come with the package are used too.

        longspan.analyze("crossover", shipped=True).to_pandas()
    """
    from longspan.analysis import answer, gather
    from longspan.results.shipped import shipped_cards

    return AnswerView(answer(question, gather(_folders(cards, out), others=shipped_cards() if shipped else ())))


def report(output: str | Path | None = None, *, cards: Folders = None, out: str | Path = "out") -> Path:
    """Build the site from the cards in `out` and those that come with the package, or from `cards` alone.

    Returns its first page, which opens from disk.

    longspan.report()
    """
    from longspan.analysis import gather
    from longspan.report.build import build
    from longspan.results import catalogue, collect
    from longspan.results.shipped import other_runs, shipped_cards

    folders = _folders(cards, out)
    found, shipped = collect.cards_in(folders), () if cards else shipped_cards()
    checked, unreadable = collect.checks_in(_given(cards), Path(out))
    told: dict[str, Any] = {"conformance": checked, "problems": [*found.problems, *unreadable]}
    told |= {"catalogue": catalogue.read(catalogue.SHIPPED), "evidence": gather(folders, others=shipped)}
    return build([*found.cards, *(other_runs(found.cards) if shipped else ())], output or Path(out) / "report", **told)


def _given(cards: Folders) -> list[Path] | None:
    return None if cards is None else [Path(one) for one in ([cards] if isinstance(cards, str | Path) else cards)]


def _folders(cards: Folders, out: str | Path) -> list[Path]:
    from longspan.results.collect import card_folders

    return card_folders(_given(cards), Path(out))
