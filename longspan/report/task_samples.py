"""Examples of tasks as `docs/make_task_samples.py` wrote them: generated, never of a real data set."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


def samples_of(task: str) -> list[dict[str, Any]]:
    """Texts, and pictures as addresses of images; none for a task that the package does not have."""
    return [
        one | ({"picture": f"data:image/png;base64,{one['png']}"} if "png" in one else {})
        for one in _file()["tasks"].get(task, ())
    ]


@cache
def _file() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))
