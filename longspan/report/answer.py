"""One answered question as files of its own: a page that stands alone, and the figure as PDF and PNG for a paper.

write(finding, Path("figures"))     # figures/tradeoff.html, .pdf, .png
"""

from pathlib import Path

from longspan.analysis.finding import Finding
from longspan.core import atomic
from longspan.core.environment import installed
from longspan.report import figure_json, paper_figure
from longspan.report.build import asset, script
from longspan.report.look import family_of
from longspan.report.question_figures import describe
from longspan.report.templating import environment


def write(finding: Finding, folder: Path) -> list[Path]:
    """The page, and the figure where there is one."""
    path = folder / f"{finding.question}.html"
    with atomic.storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, page(finding).encode())
    return [path, *paper_figure.draw(finding, folder)]


def page(finding: Finding) -> str:
    """HTML with its style, its scripts and its data inside."""
    from markupsafe import Markup

    env = environment({"version": installed("longspan") or "", "look": {}, "task_titles": {}})
    return env.get_template("answer.html").render(
        item={"finding": finding, "figures": [figure_json.render(one, family_of) for one in describe(finding)]},
        style=Markup(asset("site.css")),
        script=Markup(script()),
        root="",
    )
