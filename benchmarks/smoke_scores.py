"""Which mechanisms learn a smoke tier: the scores of a folder of cards, added to a file that the gallery reads.

    longspan run listops -a linear performer --tier smoke --device cpu
    python benchmarks/smoke_scores.py listops out/cards results/cpu/benchmarks/smoke-listops.json
    python docs/make_gallery.py

The same with `lm` and `smoke-lm.json` for causal mechanisms. A mechanism that already has a score gets the new one; the
others stay. `--quick` reads the committed cards and writes only a temporary file.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from longspan.core import atomic
from longspan.results.store import Store

CELL = {"protocol": "longspan", "tier": "smoke", "seed": 0, "status": "ok", "overrides": {}}


def main(arguments: list[str]) -> int:
    if arguments == ["--quick"]:
        with tempfile.TemporaryDirectory() as place:
            return main(["listops", "results", f"{place}/scores.json"])
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    task, folder, file = arguments[0], *map(Path, arguments[1:])
    scores: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for card in Store(folder).find(task=task, **CELL):
        score = {name: card["score"][name] for name in ("value", "count", "chance")}
        scores[card["mechanism"]] = score | {"card": card["sha256"]}
    atomic.write_json(file, scores)
    print(f"{file}: {len(scores)} mechanisms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
