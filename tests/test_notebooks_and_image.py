"""The notebooks, which CI runs, contain no outputs; the Dockerfile names existing files and builds with docker."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_notebooks_hold_code_and_no_outputs():
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert [path.stem for path in notebooks] == ["choose-a-mechanism", "test-your-own"]
    for path in notebooks:
        code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert code
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code), "clear the outputs first"


def test_continuous_integration_runs_the_notebooks():
    assert "make notebooks" in (ROOT / ".ci" / "run").read_text()


def test_the_image_copies_what_exists_and_nothing_that_is_ignored():
    sources = [word for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == kept
    assert all((ROOT / name).exists() for name in sources)


def test_the_image_is_pinned_and_does_not_run_as_root():
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE)
    assert "--constraint constraints.txt" in DOCKERFILE
    assert re.search(r"^USER [1-9]", DOCKERFILE, re.MULTILINE)


@pytest.mark.full
def test_the_image_is_built_where_docker_can_be_asked():
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no docker daemon can be asked here; the Dockerfile is only looked at")
    subprocess.run(["docker", "build", "--quiet", "--tag", "longspan-test", ROOT], check=True)
