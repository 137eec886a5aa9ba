"""The picture that the README and the documentation open with, drawn from the committed cards: docs/overview.svg.

    python docs/make_overview.py            # write it
    python docs/make_overview.py --check    # exit 1 where it does not name what the cards have

Two of the three pictures of the site's first page, in the colours of the site: who is good, and from which length on it
pays. Text stays text, so that the file is small and can be searched.
"""

import html
import io
import re
import sys
from pathlib import Path

from longspan import analysis
from longspan.core import atomic
from longspan.report import landing, paper_figure
from longspan.report.groups import board_groups
from longspan.report.look import looks
from longspan.report.marks import FigureView, PointsMark
from longspan.results.catalogue import SHIPPED, read

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "overview.svg"
CARDS = ROOT / "results" / "h200" / "cards"


def pictures() -> list[landing.Picture]:
    """Who is good, and from which length it pays, as the site has them."""
    evidence = analysis.gather([CARDS])
    look = looks(card["mechanism"] for card in (*evidence.runs, *evidence.measurements))
    titles = {task["name"]: task["title"] for task in read(SHIPPED)["tasks"]}
    good = landing.who_is_good(board_groups(evidence.runs, ()), look, titles)
    pays = landing.from_which_length(analysis.answer("crossover", evidence), look)
    return [picture for picture in (good, pays) if picture]


def names(found: list[landing.Picture]) -> set[str]:
    """What must be written in the drawing: every task, and every mechanism."""
    views = [picture.figure.views[0] for picture in found]
    points = {mark.name for view in views for mark in view.marks if isinstance(mark, PointsMark)}
    return points | {row for view in views for row in view.y.rows}


def draw(found: list[landing.Picture]) -> bytes:
    with paper_figure.canvas() as pyplot:
        pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "longspan", "font.size": 9})
        drawn, axes = pyplot.subplots(1, 2, figsize=(11.5, 5.2), layout="constrained", width_ratios=(1, 1.1))
        for place, picture in zip(axes, found, strict=True):
            view = picture.figure.views[0]
            paper_figure.draw_view(place, view)
            place.set_title(picture.question, loc="left", fontsize=11, fontweight="bold", pad=26)
            place.text(0, 1.025, subtitle(view), transform=place.transAxes, fontsize=8.5, color=paper_figure.QUIET)
        drawn.get_layout_engine().set(rect=(0, 0, 0.95, 1))  # text is drawn in the fonts of whoever looks, some wider
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].legend(handles, labels, loc="upper center", bbox_to_anchor=(0.4, -0.13), ncols=4, frameon=False)
        stream = io.BytesIO()
        drawn.savefig(stream, format="svg", metadata={"Date": None}, facecolor="white")
        pyplot.close(drawn)
    return stream.getvalue()


def subtitle(view: FigureView) -> str:
    return view.label if "self" in view.label else "own runs, each task against softmax"


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
