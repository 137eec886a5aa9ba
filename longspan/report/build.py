"""Build the report: a static site that opens from a folder, with no server and no network.

    build(Store("out/cards"), "out/report", catalogue=json.load(open("catalogue.json")))

The site is made in a folder beside the target and takes its place in one step, so a build that fails leaves the old
site as it was. Cards are untrusted: every template escapes, and data for scripts is JSON in which no tag can begin or
end.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from longspan import analysis, suites
from longspan import published as papers
from longspan.analysis import Evidence, efficiency_table, lra_efficiency
from longspan.core import atomic
from longspan.core.environment import installed
from longspan.core.errors import LongspanError, UsageError
from longspan.report import lab, matrix, plots, printed, questions
from longspan.report.plots import Look
from longspan.results import board_table, collect, render
from longspan.results.board import RULES, STANDIN_NOTE, Board, BoardCell, Row, board, device_of, shown, suites_of
from longspan.results.card import Card
from longspan.results.store import Problem, Store, newest

MARKER = ".longspan-report"  # a folder that has it may be replaced by a newer report
ASSETS = ("site.css", "site.js")
TIERS = ("full", "lite", "smoke")


class ReportError(LongspanError):
    """The report cannot be built on this machine."""


@dataclass(frozen=True)
class Group:
    """Cards that may be compared: one protocol, one tier, one kind of data, one suite."""

    protocol: str
    tier: str
    standin: bool
    board: Board
    cards: tuple[Card, ...]

    @property
    def anchor(self) -> str:
        return slug("-".join([self.board.suite.name, self.protocol, self.tier, *["standin"] * self.standin]))


@dataclass
class Mechanism:
    """One page: what the catalogue says about a mechanism, and what was measured of it."""

    name: str
    title: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    conformance: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def page(self) -> str:
        return f"mechanism/{slug(self.name)}.html"


def build(
    cards: Iterable[Card] | Store,
    out: str | Path,
    catalogue: Mapping[str, Any] | None = None,
    conformance: Sequence[Mapping[str, Any]] | None = None,
    *,
    problems: Sequence[Problem] = (),
    evidence: Evidence | None = None,
) -> Path:
    """Write the site and return its index page. A store brings its measurements and its corrupt cards along.

    `evidence` answers the page of questions and holds the measurements; without it only the runs and the papers speak.
    """
    measurements: Sequence[Card] = ()
    if isinstance(cards, Store):
        store, measurements, cards = cards, cards.cards("measurement"), cards.cards()
        problems = [*problems, *store.problems]
    out = Path(out).absolute()
    _refuse_foreign_folder(out)
    if catalogue is not None and catalogue.get("schema") != 1:
        raise UsageError(f"The catalogue has schema {catalogue.get('schema')!r}, this report reads schema 1.")
    cards = newest(cards)
    evidence = evidence or Evidence(runs=cards, measurements=measurements)
    pages = _pages(cards, evidence, catalogue or {}, conformance or (), problems)
    with atomic.storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
        try:
            folder.chmod(0o755)
            for name, text in pages.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
            _write_assets(folder / "assets")
            (folder / MARKER).write_text("This folder is replaced whenever the report is built.\n", encoding="utf-8")
            atomic.replace_folder(folder, out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return out / "index.html"


def _refuse_foreign_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"The report needs a folder, but {out} is a file.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise UsageError(f"{out} holds files that are no report; choose an empty or new folder.")


def _write_assets(folder: Path) -> None:
    source = plotly_source()
    folder.mkdir()
    (folder / "plotly.min.js").write_text(source, encoding="utf-8")
    for name in ASSETS:
        (folder / name).write_text(asset(name), encoding="utf-8")


def plotly_source() -> str:
    """The whole of plotly.js, so that a page needs no network."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise ReportError("The report draws with plotly, which is not installed; run `pip install plotly`.") from None
    return get_plotlyjs()


def asset(name: str) -> str:
    """The text of a file of the site."""
    return resources.files("longspan.report").joinpath("assets", name).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ contents


def _pages(
    cards: list[Card],
    evidence: Evidence,
    catalogue: Mapping[str, Any],
    conformance: Sequence[Mapping[str, Any]],
    problems: Sequence[Problem],
) -> dict[str, str]:
    """Every page of the site by its path."""
    findings = analysis.answers(evidence)
    measured = evidence.measurements
    mechanisms = _mechanisms(cards, measured, catalogue, conformance)
    groups = _groups(cards)
    others = [*questions.mechanisms(findings), *(card["mechanism"] for card in measured)]
    look = plots.looks((card["mechanism"] for card in cards), then=others)
    site = {
        "version": installed("longspan") or "",
        "cards": cards,
        "read": len(cards) + len(evidence.probes) + len(evidence.measurements),
        "groups": groups,
        "mechanisms": mechanisms,
        "page_of": {name: mechanism.page for name, mechanism in mechanisms.items()},
        "problems": [
            {"name": shown(at.path.name), "sentence": shown(at.sentence.removeprefix(f"{at.path.name}: "))}
            for at in problems
        ],
        "failures": [card for card in cards if card["status"] == "fail"],
        "task_titles": {task["name"]: task["title"] for task in catalogue.get("tasks", ())},
        "look": look,
        "rules": RULES,
    }
    env = environment(site)
    items = [{"finding": one, "panels": lab.panels(one, look)} for one in findings]
    declared = {name: mechanism.entry["patterns"] for name, mechanism in mechanisms.items() if mechanism.entry}
    pages = {
        "index.html": env.get_template("index.html").render(
            root="", provenance=_provenance(groups), facts=_facts(cards)
        ),
        "curves.html": env.get_template("curves.html").render(root="", figures=_curve_figures(groups, look)),
        "questions.html": env.get_template("questions.html").render(
            root="", findings=[item for item in items if item["finding"].question not in analysis.LAB]
        ),
        "cost.html": env.get_template("cost.html").render(root="", figures=_cost_figures(groups, look)),
        "mechanisms.html": env.get_template("mechanisms.html").render(root="", families=_families(mechanisms)),
        "efficiency.html": env.get_template("efficiency.html").render(
            root="",
            tables=lra_efficiency.tables(measured),
            findings=[item for item in items if item["finding"].question in analysis.LAB],
        ),
        "conformance.html": env.get_template("conformance.html").render(
            root="", matrix=matrix.matrix(conformance, declared), pattern_codes=matrix.CODES
        ),
        "published.html": env.get_template("published.html").render(
            root="",
            leaderboards=[printed.leaderboard(name) for name in reversed(papers.names())],
            later=[printed.leaderboard(name) for name in papers.names("later")],
            measured=[printed.measurements(name) for name in papers.names("measured")],
        ),
        "problems.html": env.get_template("problems.html").render(root=""),
    }
    template = env.get_template("mechanism.html")
    for mechanism in mechanisms.values():
        pages[mechanism.page] = template.render(
            root="../",
            mechanism=mechanism,
            conformance=_conformance_table(mechanism.conformance),
            fairness=_fairness_table(mechanism.cards),
            figures=_own_figures(mechanism, groups, look),
        )
    return pages


def base_name(mechanism: str) -> str:
    """`performer(features=64)` is `performer`; a plug-in keeps its path."""
    return shown(mechanism.split("(", 1)[0].strip() or mechanism)


def options_of(mechanism: str) -> str:
    """What tells a row from its plain title: `features=64`, or the path of a plug-in."""
    if ":" in mechanism.split("(", 1)[0]:
        return shown(mechanism)
    return shown(mechanism.partition("(")[2].removesuffix(")"))


def slug(text: str) -> str:
    """A file name that is safe everywhere and different for different texts."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:60]
    return plain if plain and plain == text else f"{plain or 'page'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _mechanisms(
    cards: list[Card], measured: Sequence[Card], catalogue: Mapping, conformance: Sequence[Mapping]
) -> dict[str, Mechanism]:
    found = {e["name"]: Mechanism(e["name"], e["title"], entry=e) for e in catalogue.get("attentions", ())}
    for card in cards:
        name = base_name(card["mechanism"])
        found.setdefault(name, Mechanism(name, shown(card["title"]))).cards.append(card)
    for card in measured:
        name = base_name(card["mechanism"])
        found.setdefault(name, Mechanism(name, shown(card["title"])))
    for verdict in conformance:
        name = base_name(verdict["mechanism"])
        found.setdefault(name, Mechanism(name, name)).conformance.append(verdict)
    return dict(sorted(found.items(), key=lambda item: item[1].title.casefold()))


def _families(mechanisms: Mapping[str, Mechanism]) -> dict[str, list[Mechanism]]:
    families: dict[str, list[Mechanism]] = defaultdict(list)
    for mechanism in mechanisms.values():
        twin = mechanism.entry.get("fidelity")
        family = "Bug-compatible twins" if twin else mechanism.entry.get("family") or "Not in the catalogue"
        families[family].append(mechanism)
    last = ("Bug-compatible twins", "Not in the catalogue")
    return dict(sorted(families.items(), key=lambda item: (item[0] in last, item[0].casefold())))


def _groups(cards: list[Card]) -> list[Group]:
    keyed: dict[tuple[str, str, bool], list[Card]] = defaultdict(list)
    for card in cards:
        keyed[card["protocol"], card["tier"], card["dataset"]["variant"] == "standin"].append(card)

    def order(key: tuple[str, str, bool]) -> tuple:
        protocol, tier, standin = key
        return standin, TIERS.index(tier) if tier in TIERS else len(TIERS), protocol != "longspan", protocol, tier

    groups = []
    for key in sorted(keyed, key=order):
        protocol, tier, standin = key
        official = tier == "full" and not standin
        for suite in _suites_for(keyed[key], official):
            own = tuple(card for card in keyed[key] if card["task"] in suite.tasks)
            table = collect.published_name(suite, None) if official else None
            view = board(own, suite, protocol, tier, standin=standin, published=table)
            groups.append(Group(protocol, tier, standin, view, own))
    return groups


def _suites_for(cards: Sequence[Card], official: bool) -> list[suites.Suite]:
    """Suites that show every task once. Full runs on real data stand beside published rows, however few they are."""
    tasks, chosen = {card["task"] for card in cards}, []
    for suite in suites.SUITES.values():
        if official and tasks & set(suite.tasks) and collect.published_name(suite, None):
            chosen.append(suite)
            tasks = tasks - set(suite.tasks)
    return [*chosen, *(_suite_for(alike) for alike in suites_of(sorted(tasks), cards))]


def _suite_for(alike: suites.Suite) -> suites.Suite:
    """The smallest suite that has all the tasks and is at least half filled by them, else just their list."""
    fitting = [
        suite
        for suite in suites.SUITES.values()
        if set(alike.tasks) <= set(suite.tasks)
        and 2 * len(alike.tasks) >= len(suite.tasks)
        and suite.metric == alike.metric
    ]
    return min(fitting, key=lambda suite: len(suite.tasks)) if fitting else alike


def _provenance(groups: list[Group]) -> list[dict[str, Any]]:
    """What was run on what: a line for every task, data set, machine and version of the code."""
    counted: Counter[tuple] = Counter()
    latest: dict[tuple, str] = {}
    for group in groups:
        for card in group.cards:
            code = card["code"]
            commit = (code["commit"] or "")[:10] + (" + changes" if code["dirty"] else "")
            data = card["dataset"]
            key = (
                card["task"],
                f"{card['protocol']} · {card['tier']}",
                data["variant"],
                data["sha256"][:10],
                f"{data['counts']['train']:,} / {data['counts']['valid']:,} / {data['counts']['test']:,}",
                f"{device_of(card)}, {shown(str(card['settings']['precision']))}",
                f"{shown(code['version'])} {shown(commit)}".strip(),
                shown(str(card["environment"].get("torch", ""))),
            )
            counted[key] += 1
            latest[key] = max(latest.get(key, ""), card["created"])
    names = ("task", "rules", "variant", "hash", "counts", "device", "code", "torch")
    return [
        {**dict(zip(names, key, strict=True)), "runs": runs, "latest": latest[key][:10]}
        for key, runs in counted.items()
    ]


def _curve_figures(groups: list[Group], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    figures = []
    for group in groups:
        for task in group.board.suite.tasks:
            of_task = [card for card in group.cards if card["task"] == task and not card["overrides"]]
            for pattern in sorted({card["pattern"] for card in of_task}):
                own = [card for card in of_task if card["pattern"] == pattern]
                if figure := plots.learning(own, look):
                    figures.append({"task": task, "group": group, "pattern": pattern, "figure": figure})
    return figures


def _cost_figures(groups: list[Group], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    return [
        {"task": task, "group": group, "figure": figure}
        for group in groups
        for task in (None, *group.board.suite.tasks)
        if (figure := plots.tradeoff(group.board, task, look))
    ]


def _own_figures(mechanism: Mechanism, groups: list[Group], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    """Its learning curves with softmax as the yardstick, on every task it was run on."""
    names = {card["mechanism"] for card in mechanism.cards} | {plots.REFERENCE}
    own_groups = [
        replace(group, cards=tuple(card for card in group.cards if card["mechanism"] in names)) for group in groups
    ]
    own = {(card["task"], card["protocol"], card["tier"]) for card in mechanism.cards}
    return [
        item
        for item in _curve_figures(own_groups, look)
        if (item["task"], item["group"].protocol, item["group"].tier) in own
    ]


def _facts(cards: list[Card]) -> list[tuple[int, str, str]]:
    return [
        (len(cards), "run", "runs"),
        (len({base_name(card["mechanism"]) for card in cards}), "mechanism", "mechanisms"),
        (len({card["task"] for card in cards}), "task", "tasks"),
        (len({card["seed"] for card in cards}), "seed", "seeds"),
        (len({device_of(card) for card in cards}), "machine", "machines"),
    ]


def _conformance_table(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Promises down, patterns (and devices) across."""
    columns = [
        {
            "pattern": verdict["pattern"],
            "where": f"{verdict['device']}, {verdict['dtype']}, {verdict['profile']}",
            "ok": verdict["ok"],
            "by_promise": {promise["promise"]: promise for promise in verdict["promises"]},
        }
        for verdict in verdicts
    ]
    promises = list(dict.fromkeys(name for column in columns for name in column["by_promise"]))
    return {"columns": columns, "promises": promises}


@dataclass(frozen=True)
class RuleVerdict:
    """Whether a run kept one rule of the benchmark, and what was found."""

    rule: str
    kept: bool
    finding: str


def verdicts_on(card: Card) -> list[RuleVerdict]:
    """The verdicts on a run; none for an older card. No schema knows the field, so a stranger's may hold anything."""
    given = card.get("rules")
    return [
        RuleVerdict(shown(rule), verdict["kept"], shown(str(verdict.get("finding") or "")))
        for rule, verdict in (given.items() if isinstance(given, dict) else ())
        if isinstance(verdict, dict) and isinstance(verdict.get("kept"), bool)
    ]


def _fairness_table(cards: Sequence[Card]) -> dict[str, Any]:
    """Runs down, rules across; seeds that were judged alike share a line. Older cards are counted as silent."""
    names = ("task", "mechanism", "protocol", "tier")
    lines: dict[tuple, dict[str, Any]] = {}
    judged = [(card, verdicts) for card in cards if (verdicts := verdicts_on(card))]
    for card, verdicts in judged:
        key = (*(card[name] for name in names), tuple(verdicts))
        start = {name: card[name] for name in names}
        line = lines.setdefault(key, start | {"seeds": [], "verdicts": {one.rule: one for one in verdicts}})
        line["seeds"].append(card["seed"])
    rules = list(dict.fromkeys(one.rule for _, verdicts in judged for one in verdicts))
    return {"rules": rules, "rows": list(lines.values()), "silent": len(cards) - len(judged)}


# ----------------------------------------------------------------------------------------------------------- templates


def environment(site: Mapping[str, Any]):
    """The templates, with what all of them may use."""
    import jinja2
    from markupsafe import Markup

    env = jinja2.Environment(
        loader=jinja2.PackageLoader("longspan.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals["site"] = site
    env.globals["paper_link"] = paper_link
    env.globals["base_name"] = base_name
    env.globals["task_title"] = lambda name: site["task_titles"].get(name, suites.heading(name))
    env.globals["look_of"] = lambda mechanism: site["look"][shown(mechanism)]
    env.globals["device_of"] = device_of
    env.globals["score_of"] = _score_of
    env.globals["cell_hint"] = _cell_hint
    env.globals["has_spread"] = _has_spread
    env.globals["score_text"] = render.score_text
    env.globals["deviation_text"] = board_table.deviation_text
    env.globals["difference_text"] = board_table.difference_text
    env.globals["score_words"] = _score_words
    env.globals["several_patterns"] = _several_patterns
    env.globals["meter"] = _meter
    env.globals["seeds"] = render.seeds_text
    env.globals["board_notes"] = _board_notes
    env.globals["board_spread"] = board_table.spread_text
    env.globals["free_title"], env.globals["free_note"] = board_table.FREE_TITLE, board_table.FREE_NOTE
    env.globals["verdicts_on"] = verdicts_on
    env.globals["speed_text"] = efficiency_table.speed_text
    env.globals["memory_text"] = efficiency_table.memory_text
    env.globals["length_text"] = efficiency_table.length_text
    env.globals["speed_notes"] = efficiency_table.footnotes
    env.globals["speed_hint"] = _speed_hint
    env.globals["spread_text"] = printed.spread_text
    env.filters["shown"] = lambda value: shown(str(value))
    env.filters["percent"] = render.percent
    env.filters["amount"] = render.count_text
    env.filters["rate"] = render.rate_text
    env.filters["power"] = lambda cost: str(cost).replace("^2", "²").replace("^3", "³")
    env.filters["options"] = options_of
    env.filters["script_json"] = lambda value: Markup(script_json(value))
    return env


def _score_of(card: Card) -> str:
    score = card["score"]
    return (render.percent if score.get("unit", "percent") == "percent" else render.plain)(score["value"])


def _cell_hint(view: Board, cell: BoardCell) -> str:
    """What a pointer resting on a score learns."""
    words = [f"{cell.seeds} seed{'' if cell.seeds == 1 else 's'}"]
    if cell.interval:
        low, high = (render.score_text(view, end) for end in cell.interval)
        words.append(f"95 % interval {low} to {high}")
    words.append(f"{cell.count:,} test examples")
    if cell.chance is not None:
        words.append(f"chance {render.score_text(view, cell.chance)}")
    return ", ".join(words)


def _score_words(view: Board) -> str:
    """What the numbers of a board are."""
    unit = " in percent" if view.suite.unit == "percent" else "" if view.suite.higher_is_better else ", lower is better"
    return f"test {view.suite.metric}{unit}, mean over seeds"


def _several_patterns(view: Board) -> bool:
    return len({row.pattern for row in (*view.rows, *view.fidelity, *view.free)}) > 1


def _has_spread(rows: Iterable[Row]) -> bool:
    """Whether any score has a spread, so that all must leave room for one."""
    return any(cell.std is not None for row in rows for cell in row.cells.values())


def _meter(view: Board, rows: Iterable[Row], task: str, cell: BoardCell) -> int:
    """How far a score goes from chance to the best of its column in the same table, in percent.

    Where chance is not known, from 0, or from the worst of the column where lower is better.
    """
    sign = 1 if view.suite.higher_is_better else -1
    values = [sign * value for row in rows if (value := row.cells[task].value) is not None]
    unknown = 0.0 if view.suite.higher_is_better else min(values, default=0.0)
    floor = unknown if cell.chance is None else sign * cell.chance
    span = max(values, default=floor) - floor
    reach = sign * (cell.value or 0.0) - floor
    return round(100 * min(max(reach / span, 0.0), 1.0)) if span > 0 else 0


def _board_notes(view: Board) -> list[str]:
    """What stands below a board: printed errors, its own notes, what `vs` means. The page says the rules once."""
    flags = [f"{board_table.PRINTED_ERROR} {flag}" for flag in (view.paper.flags if view.paper else ())]
    own = (note for note in view.notes if note != STANDIN_NOTE)
    return [*flags, *own, *board_table.difference_notes(view)]


def _speed_hint(cell: lra_efficiency.SpeedCell) -> str:
    """What a pointer resting on a speed learns."""
    words = [cell.doubts[0], cell.reason or ""]
    if cell.quartiles:
        words.append("half of the steps at {} to {} per second".format(*map(render.rate_text, cell.quartiles)))
    if cell.compute_steps_per_second is not None:
        words.append(f"compute alone {render.rate_text(cell.compute_steps_per_second)} steps/s")
    if cell.examples_per_second is not None:
        words.append(f"{render.rate_text(cell.examples_per_second)} examples/s")
    return ", ".join(word for word in words if word)


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no character in it can begin or end a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def paper_link(paper: str) -> str | None:
    """Where a paper can be read: arXiv numbers and web addresses become links, anything else stays text."""
    if number := re.fullmatch(r"arXiv:(\d{4}\.\d{4,5})(v\d+)?", paper):
        return f"https://arxiv.org/abs/{number[1]}"
    return paper if re.fullmatch(r"https?://[^\s\"'<>]+", paper) else None
