"""No benchmark rots: each has a `--quick` mode, which runs here, and a line in the README."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
SCRIPTS = ["peers", *sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_quick_runs_on_a_cpu(name):
    target = ["-m", "benchmarks.peers"] if name == "peers" else [str(FOLDER / f"{name}.py")]
    command = [sys.executable, *target, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.strip()


def test_the_readme_has_one_line_for_each():
    text = (FOLDER / "README.md").read_text()
    for name in SCRIPTS:
        assert sum(line.startswith((f"| `{name}.py`", f"| `{name}`")) for line in text.splitlines()) == 1, name
