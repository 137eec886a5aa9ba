"""Compare mechanisms with golden vectors from the command line, one line per file: ok, mismatch or skip.

python -m tests.parity tests/golden/*.npz
"""

import sys
from pathlib import Path

from tests.attentions.parity import examine


def main(paths: list[str]) -> int:
    """Exit code: 0 when nothing mismatches, 1 when something does, 2 without a path."""
    if not paths:
        print("Which vectors? Give .npz files, as in: python -m tests.parity tests/golden/*.npz", file=sys.stderr)
        return 2
    verdicts = []
    for path in map(Path, paths):
        verdict = examine(path)
        verdicts.append(verdict.status)
        print(f"{path.name}: {verdict.status} ({verdict.detail})")
    return int("mismatch" in verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
