"""Run every notebook beside this file in an empty folder, and fail when a cell fails: `make notebooks`."""

import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> float:
    """Run a notebook without changing its file; returns the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = nbformat.read(path, as_version=4)
        NotebookClient(found, timeout=170, resources={"metadata": {"path": folder}}).execute()
    return time.monotonic() - began


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        print(f"{path.stem}: {execute(path):.0f} s", flush=True)
