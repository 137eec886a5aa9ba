"""The picture at the top of the README and the documentation, drawn from the committed cards: docs/overview.svg.

    python docs/make_overview.py            # write it
    python docs/make_overview.py --check    # exit 1 when it does not show what the cards have

Two of the three pictures of the site's first page, in the colours of the site: who scores well, and from which length
it pays off. Text stays text, so the file is small and searchable.
"""

import html
import io
import re
import sys
import textwrap
from pathlib import Path

from longspan import analysis
from longspan.core import atomic
from longspan.report import landing, paper_figure
from longspan.report.groups import board_groups
from longspan.report.look import BASELINE, looks
from longspan.report.marks import FigureView, PointsMark
from longspan.results.catalogue import SHIPPED, read

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "overview.svg"
CARDS = ROOT / "results" / "h200" / "cards"


def pictures() -> list[landing.Picture]:
    """Who scores well, and from which length it pays off, as on the site."""
    evidence = analysis.gather([CARDS])
    look = looks(card["mechanism"] for card in (*evidence.runs, *evidence.measurements))
    titles = {task["name"]: task["title"] for task in read(SHIPPED)["tasks"]}
    good = landing.who_is_good(board_groups(evidence.runs, ()), look, titles)
    pays = landing.from_which_length(analysis.answer("crossover", evidence), look)
    return [picture for picture in (good, pays) if picture]


def extremes(view: FigureView) -> list[tuple[float, float, str, bool]]:
    """The best and the worst mechanism except softmax of each task: position, title, whether it is the best."""
    points = [mark for mark in view.marks if isinstance(mark, PointsMark) and mark.group != BASELINE]
    spots = [(x, y, mark.name) for mark in points for x, y in zip(mark.x, mark.y, strict=True)]
    found = []
    for place in range(len(view.y.rows)):
        own = sorted(spot for spot in spots if round(spot[1]) == place)
        found += [(*spot, best) for spot, best in ((own[-1], True), (own[0], False)) if best or len(own) > 1]
    return found


def names(found: list[landing.Picture]) -> set[str]:
    """The text that the drawing must contain: every task, its best and worst, and every mechanism with a length."""
    views = [picture.figure.views[0] for picture in found]
    return {name for _, _, name, _ in extremes(views[0])} | {row for view in views for row in view.y.rows}


def draw(found: list[landing.Picture]) -> bytes:
    with paper_figure.canvas() as pyplot:
        pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "longspan", "font.size": 9})
        drawn, axes = pyplot.subplots(1, 2, figsize=(12.5, 6.6), layout="constrained", width_ratios=(1.1, 1))
        for place, picture in zip(axes, found, strict=True):
            view = picture.figure.views[0]
            paper_figure.draw_view(place, view)
            place.set_title(picture.question, loc="left", fontsize=11, fontweight="bold", pad=26)
            place.set_xlabel(textwrap.fill(place.get_xlabel(), 44))
            place.text(0, 1.025, subtitle(view), transform=place.transAxes, fontsize=8.5, color=paper_figure.QUIET)
        for x, y, name, best in extremes(found[0].figure.views[0]):
            how = {"fontsize": 8, "color": paper_figure.QUIET, "va": "center", "ha": "left" if best else "right"}
            beside = max(x, 0) if best else min(x, 0)  # never on top of softmax's marker
            axes[0].annotate(name, (beside, y), (6 if best else -6, 0), textcoords="offset points", **how)
        axes[0].margins(x=0.22)  # room for their names
        drawn.get_layout_engine().set(rect=(0, 0, 0.95, 1))  # the viewer's fonts may be wider
        stream = io.BytesIO()
        drawn.savefig(stream, format="svg", metadata={"Date": None}, facecolor="white")
        pyplot.close(drawn)
    return stream.getvalue()


def subtitle(view: FigureView) -> str:
    return (
        view.label
        if "self" in view.label
        else "own runs against softmax; the best and the worst of each task are named"
    )


def missing(svg: str, found: list[landing.Picture]) -> set[str]:
    written = {html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)}
    return names(found) - written


def main(arguments: list[str]) -> int:
    found = pictures()
    if "--check" in arguments:
        lacking = missing(FILE.read_text(encoding="utf-8"), found)
        if lacking:
            print(f"{FILE.name} lacks {', '.join(sorted(lacking))}; run python docs/make_overview.py.")
        return bool(lacking)
    atomic.write_bytes(FILE, draw(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
