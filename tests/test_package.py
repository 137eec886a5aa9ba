"""The built wheel holds everything and works far from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = {".pyc", ".nbi", ".nbc"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that the checkout gets no build folder."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "longspan", source / "longspan", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (source / "dist").glob("longspan-*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_package(wheel):
    shipped = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in (ROOT / "longspan").rglob("*") if path.is_file() and path.suffix not in NOT_SHIPPED]
    missing = [str(path.relative_to(ROOT)) for path in files if str(path.relative_to(ROOT)) not in shipped]
    assert not missing, "add them to package-data in pyproject.toml"


def test_the_wheel_holds_nothing_but_the_package(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"longspan"}


@pytest.mark.parametrize("checked", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_installed_wheel_works_outside_the_checkout(wheel, tmp_path, checked):
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(install, check=True)

    def longspan(*words):
        environment = os.environ | {"PYTHONPATH": str(target)}
        command = [sys.executable, target / "bin" / "longspan", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=elsewhere, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import longspan; print(longspan.__file__)"],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(target)},
        check=True,
    ).stdout
    assert where.startswith(str(target))
    assert "softmax" in longspan("list", "attentions")
    assert "arXiv:1706.03762" in longspan("show", "softmax")
    longspan("new", "attention", "mine")
    assert (elsewhere / "mine.py").is_file()
    assert "NVIDIA H200" in longspan("advise", "--pattern", "CS", "--length", "16384")
    if checked:
        assert "kept" in longspan("check", "mine.py:Mine", "--quick", "--pattern", "NS")
    assert "that come with Longspan" in longspan("report")
    assert "Who is good?" in (elsewhere / "out" / "report" / "index.html").read_text(encoding="utf-8")


def test_the_constraints_pin_every_requirement_without_naming_a_build_or_a_host():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    assert not any("+" in line or "/" in line for line in lines)
    assert any(line.startswith("torch==") for line in lines)
