"""Build the report: a static site that opens from a folder, with no server and no network.

    build(Store("out/cards"), "out/report", catalogue=json.load(open("catalogue.json")))

The site is made in a folder beside the target and takes its place in one step, so a build that fails leaves the old
site as it was. Cards are untrusted: every template escapes, and data for scripts is JSON in which no tag can begin or
end.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from longspan.analysis import Evidence
from longspan.core import atomic, litter
from longspan.core.errors import UsageError
from longspan.report import docs_pages, pages, sample_panels
from longspan.results.alike import alike
from longspan.results.card import Card
from longspan.results.store import Problem, Store, newest

MARKER = ".longspan-report"  # a folder that has it may be replaced by a newer report
SCRIPTS = ("address", "theme", "tables", "filters", "scales", "labels", "drawing", "panel", "plot", "compare")


def build(
    cards: Iterable[Card] | Store,
    out: str | Path,
    catalogue: Mapping[str, Any] | None = None,
    conformance: Sequence[Mapping[str, Any]] | None = None,
    *,
    problems: Sequence[Problem] = (),
    evidence: Evidence | None = None,
) -> Path:
    """Write the site and return its index page. A store also contributes its measurements and its corrupt cards.

    `evidence` answers the questions and holds the measurements; without it they are answered from the runs and the
    published tables alone.
    """
    measurements: Sequence[Card] = ()
    folders: Mapping[str, Path] = evidence.folders if evidence else {}
    if isinstance(cards, Store):
        store, measurements = cards, cards.cards("measurement")
        entries = list(store.entries())
        cards = [card for _, card in entries if card["kind"] == "run"]
        folders = {card["sha256"]: path.parent for path, card in entries}
        problems = [*problems, *store.problems]
    out = Path(out).absolute()
    _refuse_foreign_folder(out)
    if catalogue is not None and catalogue.get("schema") != 1:
        raise UsageError(f"The catalogue has schema {catalogue.get('schema')!r}, this report reads schema 1.")
    cards = newest(cards)
    evidence = evidence or Evidence.of(cards, (), measurements)
    samples = sample_panels.collect(alike(cards)[0], folders)
    docs = docs_pages.found()
    content = pages.render(cards, evidence, catalogue or {}, conformance or (), problems, samples, docs)
    litter.sweep(out.parent)
    with atomic.folder_beside(out) as folder:
        for name, text in content.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        for name, media in samples.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(media)
        for name, picture in docs_pages.pictures(docs).items() if docs else ():
            (folder / "docs" / name).write_bytes(picture)
        _write_assets(folder / "assets")
        (folder / MARKER).write_text("This folder is replaced whenever the report is built.\n", encoding="utf-8")
    return out / "index.html"


def _refuse_foreign_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"The report needs a folder, but {out} is a file.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise UsageError(f"{out} holds files that are no report; choose an empty or new folder.")


def _write_assets(folder: Path) -> None:
    folder.mkdir()
    for name in ("site.css", "clouds.js"):
        (folder / name).write_text(asset(name), encoding="utf-8")
    (folder / "site.js").write_text(script(), encoding="utf-8")


def script() -> str:
    """The scripts of the site as one file."""
    return "\n".join(asset(f"{name}.js") for name in SCRIPTS)


def asset(name: str) -> str:
    """The text of a file of the site."""
    return resources.files("longspan.report").joinpath("assets", name).read_text(encoding="utf-8")
