"""Every mechanism, task and dataset can be cited: its paper has an entry, and every entry belongs to one of them."""

import re

import pytest

from longspan import attentions
from longspan.core.errors import DataMissing
from longspan.published.bibliography import bibtex, entries
from longspan.published.taxonomy import taxonomy
from longspan.results import catalogue

CITED_OTHERWISE = {"xcit", "s4d", "softmax"}  # CAB cites one by a first name, two by the paper of another mechanism
PAPERS = {attentions.get(name).meta.paper for name in attentions.registry._own()}
SHIPPED = catalogue.read(catalogue.SHIPPED)
OF_DATA = {entry["paper"] for kind in ("tasks", "datasets") for entry in SHIPPED[kind]} - {"none"}  # made for this


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_the_paper_of_every_mechanism_has_an_entry(paper):
    assert f"eprint = {{{paper.removeprefix('arXiv:')}}}" in bibtex(paper)


def test_every_entry_belongs_to_a_mechanism_a_task_or_a_dataset_and_has_a_key_of_its_own():
    assert set(entries()) == PAPERS | OF_DATA
    keys = [re.findall(r"^@\w+{(\w+),", entry)[0] for entry in entries().values()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("paper", sorted(entries()))
def test_an_entry_has_what_a_citation_needs(paper):
    entry = re.sub(r"\n {4,}", " ", entries()[paper])  # long fields continue on the next line
    kind = re.findall(r"^@(\w+){", entry)[0]
    place = {"inproceedings": {"booktitle"}, "article": {"journal"}, "techreport": {"institution"}, "misc": set()}[kind]
    place |= {"eprint", "archivePrefix"} if paper.startswith("arXiv:") else {"url"}
    fields = dict(re.findall(r"^  (\w+) = {(.+)},?$", entry, re.MULTILINE))
    assert set(fields) == {"author", "title", "year"} | place
    assert entry.count("{") == entry.count("}")
    assert entry.isascii()  # BibTeX itself only reads ASCII
    assert all(re.fullmatch(r"\S.*, \S.*", author) for author in fields["author"].split(" and "))
    assert int(fields["year"]) >= (2000 + int(fields["eprint"][:2]) if "eprint" in fields else 2009)


@pytest.mark.parametrize("row", taxonomy().rows, ids=lambda row: row.mechanism)
def test_the_first_author_and_the_year_are_those_that_cab_cites(row):
    entry = bibtex(attentions.get(row.mechanism).meta.paper)
    family, year = (re.findall(pattern, entry)[0] for pattern in (r"author = {([^,]+),", r"year = {(\d+)}"))
    agrees = row.cited.startswith(f"{family} et al., {year}")
    assert agrees != (row.mechanism in CITED_OTHERWISE)


def test_a_paper_that_is_not_there_is_refused_with_a_sentence():
    with pytest.raises(DataMissing, match=r"No BibTeX entry of arXiv:9999\.00001 is here"):
        bibtex("arXiv:9999.00001")
