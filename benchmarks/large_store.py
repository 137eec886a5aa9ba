"""How long it takes to list, read, filter and rank a store of 50,000 cards: cold, and warm from its index (CPU).

Cards are copies of a committed run of ListOps, as long as real ones, with other tasks, mechanisms, seeds and dates: a
matrix of 20 tasks, 50 mechanisms and as many seeds as it takes. Cold means that no card is in the index yet: each is
validated. Listing gives what each card is about, reading gives every whole card with its curve. Every query runs as a
separate command.

python benchmarks/large_store.py --cards 50000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from longspan import suites
from longspan.results import card as cards

ROOT = Path(__file__).parents[1]
CARD = json.loads(min((ROOT / "results" / "h200" / "cards" / "listops").glob("*.json")).read_text())
TASKS = ("listops", *sorted((suites.get("cab").every_task | suites.get("lra").every_task) - {"listops"})[:19])
MECHANISMS = 50
STORE = "from longspan.results.store import Store; print(len(Store('cards').%s))"
BOARD = """
import sys
from longspan.cli import main
sys.argv[1:] = ["board", "%s", "--tier", "full", "--cards", "cards", "--format", "csv"]
main()
"""
QUESTIONS = {
    "list": STORE % "rows()",
    "read": STORE % "cards()",
    "filter": STORE % "find(mechanism='linear(eps=2)', seed=3)",
    "board of a task": BOARD % "listops",
    "board of a suite": BOARD % "lra",
}


def fill(folder: Path, count: int) -> None:
    """Write `count` cards, a fiftieth of them on each shelf."""
    for number in range(count):
        rest, task = divmod(number, len(TASKS))
        seed, eps = divmod(rest, MECHANISMS)
        own = {"task": TASKS[task], "mechanism": f"linear(eps={eps})", "seed": seed}
        card = {**CARD, **own, "files": {}, "files_sha256": {}}
        card["created"] = (datetime.fromisoformat(CARD["created"]) + timedelta(seconds=number)).isoformat()
        del card["sha256"]
        place = folder / f"shelf{number % 50}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.json").write_bytes(json.dumps(cards.seal(card)).encode())


def ask(program: str, folder: Path) -> tuple[float, float, str]:
    """Wall-clock seconds, CPU seconds, and the last line printed."""
    own = os.environ | {"LONGSPAN_CACHE": str(folder / "cache")}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    how = {"cwd": folder, "env": own | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", program], check=False, **how)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, used, f"{len(done.stdout.splitlines())} lines, last {done.stdout[-60:]!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="A few cards, to see that it runs.")
    asked = parser.parse_args()
    print(f"The load of this machine is {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fill(folder / "cards", 120 if asked.quick else asked.cards)
        time.sleep(0 if asked.quick else 3)  # the index leaves out what was written in the last two seconds
        for state, questions in (("cold", ["list"]), ("warm", list(QUESTIONS))):
            for question in questions:
                wall, used, said = ask(QUESTIONS[question], folder)
                print(f"{state} {question}: {wall:.1f} s, {used:.1f} s of a processor ({said})", flush=True)


if __name__ == "__main__":
    main()
