"""Conformance results on disk: `check` writes a file for each question it answered, `report` reads them.

    save("out/conformance", reports)
    found, problems = load(["out/conformance", "results"])

A file is the JSON of one report or a list of them (what `longspan check --json` prints); its name begins with
`conformance`. Reports say which code was checked in `code`, as cards do in `settings`; older ones do not. Never imports
torch; what it reads is untrusted, like a card.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from longspan.core import atomic, litter
from longspan.core.errors import CorruptFile
from longspan.results import card
from longspan.results.code_identity import same_code
from longspan.results.schema import CODE_SCHEMA
from longspan.results.store import Problem

PREFIX = "conformance"
QUESTION = ("mechanism", "pattern", "device", "dtype")  # identifies a result for one code, whatever the profile
STATUSES = ("kept", "broken", "not applicable")
MAX_BYTES = 16 * 2**20


class SupportsJson(Protocol):
    """What `longspan.conformance.check` returns."""

    def to_json(self) -> dict[str, Any]: ...


def save(folder: str | Path, reports: Iterable[SupportsJson]) -> list[Path]:
    """Save each report in its own file; a new result replaces the old one, except that a quick one for the same code
    does not replace a full one, which has tested more. Returns the files.

    Two plug-ins may share a name, and one may have been edited: each source has files of its own.
    """
    paths = []
    litter.sweep(Path(folder))
    for report in reports:
        content = report.to_json()
        paths.append(Path(folder) / filename(content))
        if not any(_is_fuller(known, content) for known in _saved(paths[-1])):
            atomic.write_json(paths[-1], content)
    return paths


def _saved(path: Path) -> list[dict[str, Any]]:
    """The results in a file; none if there is none, or if it is damaged."""
    try:
        return read(path)
    except (CorruptFile, OSError):
        return []


def _is_fuller(known: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a result is full where another one, of the same code, is quick."""
    profiles = known["profile"], other["profile"]
    return profiles == ("full", "quick") and same_code(known.get("code", {}), other.get("code", {}))


def filename(content: dict[str, Any]) -> str:
    """Readable, unique, and safe whatever the mechanism is called."""
    source = [content["code"]["mechanism_sha256"]] if "mechanism_sha256" in content.get("code", {}) else []
    digest = hashlib.sha256("\0".join([*(content[word] for word in QUESTION), *source]).encode()).hexdigest()[:8]
    words = [re.sub(r"[^A-Za-z0-9.=]+", "_", content[word])[:48].strip("._") for word in QUESTION]
    return "-".join([PREFIX, *words, digest]) + ".json"


def load(
    folders: Sequence[str | Path], others: Iterable[dict[str, Any]] = ()
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The results below the folders, and what could not be read.

    Of two for the same question, a full one wins over a quick one of the same code, else the earlier folder wins.

    Results for two versions of a built-in, or two sources of a plug-in, are both kept. `others` are results without a
    folder, such as those that come with the package; they are used where no folder has a result.
    """
    found: list[dict[str, Any]] = []
    problems = []
    for folder in folders:
        for path in sorted(Path(folder).rglob(f"{PREFIX}*.json")):
            try:
                found += read(path)
            except (CorruptFile, OSError) as error:
                problems.append(Problem(path, str(error)))
    chosen: dict[tuple, dict[str, Any]] = {}
    for report in (*found, *others):
        code = report.get("code", {})
        identity = code.get("mechanism_version"), code.get("mechanism_sha256")
        question = (*(report[word] for word in QUESTION), *identity)
        if question not in chosen or _is_fuller(report, chosen[question]):
            chosen[question] = report
    return list(chosen.values()), problems


def read(path: Path) -> list[dict[str, Any]]:
    """The results in one file."""
    if path.stat().st_size > MAX_BYTES:
        raise CorruptFile(f"{path.name}: larger than {MAX_BYTES // 2**20} MiB, no conformance result is.")
    content = card.parse(path.read_bytes(), path.name)
    reports = content if isinstance(content, list) else [content]
    for report in reports:
        if not _sound(report):
            raise CorruptFile(f"{path.name}: not a conformance result; make it with longspan check --json.")
    return reports


def _sound(report: Any) -> bool:
    return (
        isinstance(report, dict)
        and all(isinstance(report.get(word), str) for word in (*QUESTION, "profile"))
        and isinstance(report.get("ok"), bool)
        and not any(card.structural_faults(report.get("code", {}), CODE_SCHEMA))
        and isinstance(report.get("promises"), list)
        and all(
            isinstance(line, dict)
            and isinstance(line.get("promise"), str)
            and isinstance(line.get("detail"), str)
            and line.get("status") in STATUSES
            for line in report["promises"]
        )
        and report["ok"] == all(line["status"] != "broken" for line in report["promises"])
        and any(line["status"] != "not applicable" for line in report["promises"])
    )
