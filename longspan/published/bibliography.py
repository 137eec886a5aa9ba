"""BibTeX entries of the papers behind mechanisms, tasks and datasets.

print(bibtex("arXiv:2009.14794"))
"""

import re
from functools import cache
from importlib import resources

from longspan.core.errors import DataMissing

FILE = "papers.bib"


@cache
def entries() -> dict[str, str]:
    """Every entry by its paper, as mechanisms, tasks and datasets name it: `arXiv:2009.14794`, or an address."""
    text = resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8")
    blocks = [block.strip() for block in re.split(r"^(?=@)", text, flags=re.MULTILINE) if block.strip()]
    return {_paper(block): block for block in blocks}


def _paper(entry: str) -> str:
    ((kind, place),) = re.findall(r"^  (eprint|url) = {(.+)}", entry, re.MULTILINE)
    return f"arXiv:{place}" if kind == "eprint" else place


def bibtex(paper: str) -> str:
    """The entry of a paper.

    >>> bibtex("arXiv:1706.03762").splitlines()[0]
    '@inproceedings{vaswani2017attention,'
    """
    if paper not in entries():
        raise DataMissing(f"No BibTeX entry of {paper or 'no paper'} is here; add it to longspan/published/{FILE}.")
    return entries()[paper]


def key(paper: str) -> str:
    """The BibTeX key of a paper.

    >>> key("arXiv:1706.03762")
    'vaswani2017attention'
    """
    return re.findall(r"^@\w+{(\w+),", bibtex(paper))[0]
