"""The documentation as pages of the site: the same files that `make docs` reads, in the look of the report.

books(Path("docs"))     # [Book(name="index", section="Use", title="Start here", html=...), ...]

The order is that of `mkdocs.yml`. Links between pages stay links, those to a mechanism lead to its page of the report,
and what the site does not have becomes plain text. A checkout has the folder; an installed package does not.
"""

import html
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from longspan.report.docs_reference import entry

FOLDER = Path(__file__).parents[2] / "docs"
ENTRY = re.compile(r"^\s+- (?P<title>[^:]+): (?P<file>[\w./-]+\.md)$")
SECTION = re.compile(r"^  - (?P<title>[^:]+):$")
SNIPPET = re.compile(r'^--8<-- "(?P<file>[\w.-]+)"$', re.MULTILINE)
REFERENCE = re.compile(
    r"^::: (?P<name>[\w.]+)(?:\n    options:\n      members: \[(?P<members>[^\]]*)\])?$", re.MULTILINE
)
LINK = re.compile(r'<a href="(?P<target>[^"]*)">(?P<text>.*?)</a>', re.DOTALL)


@dataclass(frozen=True)
class Book:
    """A page of the documentation."""

    name: str
    section: str
    title: str
    html: str = field(repr=False)
    pictures: tuple[str, ...] = ()  # files beside it

    @property
    def page(self) -> str:
        return f"docs/{self.name}.html"


def found() -> Path | None:
    """The folder of the documentation, where this is a checkout."""
    return FOLDER if (FOLDER.parent / "mkdocs.yml").is_file() and (FOLDER / "index.md").is_file() else None


@cache
def books(folder: Path) -> list[Book]:
    """All pages that the table of contents names."""
    made, section = [], ""
    for line in (folder.parent / "mkdocs.yml").read_text(encoding="utf-8").split("\n"):
        if heading := SECTION.match(line):
            section = heading["title"]
        elif (page := ENTRY.match(line)) and "/" not in page["file"] and (folder / page["file"]).is_file():
            name = page["file"].removesuffix(".md")
            text = (folder / page["file"]).read_text(encoding="utf-8")
            content = rendered(text, lambda file: (folder / file).read_text(encoding="utf-8"))
            pictures = tuple(dict.fromkeys(re.findall(r'<img src="([\w-]+\.svg)"', content)))
            made.append(Book(name, section, page["title"], content, pictures))
    return made


def pictures(folder: Path) -> dict[str, bytes]:
    """The drawings that the pages show, by name."""
    return {name: (folder / name).read_bytes() for book in books(folder) for name in book.pictures}


def linked(made: Iterable[Book], mechanisms: Iterable[str], page_of: Callable[[str], str]) -> list[Book]:
    """The pages with links to what the site has."""
    made, known = list(made), set(mechanisms)
    names = {book.name for book in made}

    def target(link: re.Match) -> str:
        address, text = html.unescape(link["target"]), link["text"]
        path, mark, place = address.partition("#")
        stem = posixpath.normpath(path).removesuffix(".md")
        if re.match(r"https?://", address) or (not path and mark):
            return link[0]
        if path.endswith(".md") and stem in names:
            return f'<a href="{stem}.html{mark}{place}">{text}</a>'
        if stem == "mechanisms/index":
            return f'<a href="../mechanisms.html">{text}</a>'
        if stem.startswith("mechanisms/") and (name := stem.partition("/")[2]) in known:
            return f'<a href="../{page_of(name)}">{text}</a>'
        return f"<span>{text}</span>"

    return [replace(book, html=LINK.sub(target, book.html)) for book in made]


def rendered(text: str, read: Callable[[str], str]) -> str:
    """Markdown as HTML, with its includes and reference entries filled in; raw HTML is escaped."""
    from markdown_it import MarkdownIt

    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = SNIPPET.sub(lambda found: read(found["file"]).rstrip(), text)
    text = REFERENCE.sub(lambda found: entry(found["name"], found["members"] or ""), text)
    tokens = MarkdownIt("commonmark", {"html": False}).enable("table")
    parsed = tokens.parse(text)
    taken: set[str] = set()
    for place, token in enumerate(parsed):
        if token.type == "heading_open":
            token.attrSet("id", _anchor(parsed[place + 1].content, taken))
        if token.type == "table_open":
            token.attrSet("class", "plain")
    content = tokens.renderer.render(parsed, tokens.options, {})
    boxes = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table'
    return content.replace("<table", boxes).replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')


def _anchor(heading: str, taken: set[str]) -> str:
    """
    >>> _anchor("How fast, how big", set())
    'how-fast-how-big'
    """
    plain = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
    name = start = re.sub(r"[\s]+", "-", plain) or "part"
    count = 0
    while name in taken:
        count += 1
        name = f"{start}_{count}"
    taken.add(name)
    return name
