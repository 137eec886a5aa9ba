"""Published sizes and sha256 of single files: `<corpus>.json`, by split and name."""

import json
from pathlib import Path
from typing import NamedTuple


class Digest(NamedTuple):
    size: int
    sha256: str


def published(corpus: str) -> dict[str, dict[str, Digest]]:
    """`published("pg19")["valid"]["1022"].size`."""
    table = json.loads((Path(__file__).parent / f"{corpus}.json").read_text())
    return {split: {name: Digest(*entry) for name, entry in files.items()} for split, files in table.items()}
