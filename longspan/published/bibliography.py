"""BibTeX entries of the papers behind mechanisms and tasks.

print(bibtex("arXiv:2009.14794"))
"""

import re
from functools import cache
from importlib import resources

from longspan.core.errors import DataMissing

FILE = "papers.bib"


@cache
def entries() -> dict[str, str]:
    """Every entry by its paper, as mechanisms name it."""
    text = resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8")
    blocks = [block.strip() for block in re.split(r"^(?=@)", text, flags=re.MULTILINE) if block.strip()]
    return {f"arXiv:{re.findall(r'eprint = {(.+)}', block)[0]}": block for block in blocks}


def bibtex(paper: str) -> str:
    """The entry of a paper.

    >>> bibtex("arXiv:1706.03762").splitlines()[0]
    '@inproceedings{vaswani2017attention,'
    """
    if paper not in entries():
        raise DataMissing(f"No BibTeX entry of {paper or 'no paper'} is here; add it to longspan/published/{FILE}.")
    return entries()[paper]
