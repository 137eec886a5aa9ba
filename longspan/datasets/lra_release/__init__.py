"""The release of the Long Range Arena: where its files are, and how a manifest records what was read from them."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from longspan.core.archive import Member
from longspan.core.remote import Source

BUCKET = "https://storage.googleapis.com/long-range-arena"
ARCHIVE = "lra_release.gz"  # a compressed tar despite its name, 8.2 GB; no digest is published
LICENCE = "released with arXiv:2011.04006, whose code is under Apache-2.0; no licence is stated for the data."


def archive(dataset: str) -> Source:
    """All tasks but Text and Image in one archive."""
    return Source(f"{BUCKET}/{ARCHIVE}", ARCHIVE, dataset=dataset, licence=LICENCE)


def places(inside: str) -> list[str]:
    """Where a folder of the release may be in an unpacked copy: itself, then after more and more of its parent path.

    >>> places("a/b")
    ['', 'b', 'a/b', 'lra_release/a/b', 'lra_release/lra_release/a/b']
    """
    parts = inside.split("/")
    tails = ["/".join(parts[start:]) for start in range(len(parts), -1, -1)]
    return [*tails, f"lra_release/{inside}", f"lra_release/lra_release/{inside}"]


class Listing:
    """Counts the members that pass and hashes their names and sizes, to tell two editions of an archive apart."""

    def __init__(self):
        self.count, self.digest = 0, hashlib.sha256()

    def through(self, found: Iterable[Member]) -> Iterator[Member]:
        for member in found:
            self.count += 1
            self.digest.update(f"{member.name}\t{member.size}\n".encode())
            yield member

    def facts(self) -> dict[str, Any]:
        return {"count": self.count, "sha256": self.digest.hexdigest()}
