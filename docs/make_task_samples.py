"""Examples of the tasks for their pages on the site: longspan/report/task_samples.json.

    python docs/make_task_samples.py

Examples come from what Longspan generates, at smoke-tier sizes, those of Pathfinder at full size: with an
empty data folder, nothing comes from a real dataset. Tasks that cannot be shown without one are left out.
"""

import base64
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "longspan" / "report" / "task_samples.json"
COUNT, LETTERS = 3, 420


def samples(task: str) -> list[dict[str, Any]]:
    """The first examples, a truncated text or a picture as a base64 PNG."""
    from longspan import datasets, tasks

    dataset, full = datasets.examples_of(task)
    if dataset.name == "pathfinder":  # its smoke images are of another kind
        return [shown(sample) | {"tier": "full"} for sample in dataset.samples(full, COUNT)]
    protocol = next(rules for name, rules in tasks.get(task).protocols.items() if name[1] == "smoke")
    return [shown(sample) | {"tier": "smoke"} for sample in dataset.samples(protocol.data, COUNT)]


def shown(sample: Any) -> dict[str, Any]:
    label = str(sample.label)
    if isinstance(sample.content, str):
        text = sample.content.replace("\r\n", "\n")  # as a human sees it
        return {"label": label, "text": text if len(text) <= LETTERS else f"{text[:LETTERS]} …", "letters": len(text)}
    import numpy as np
    from PIL import Image

    pixels = np.asarray(sample.content)
    picture = Image.fromarray(pixels.astype(np.uint8).squeeze())
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return {"label": label, "png": base64.b64encode(stream.getvalue()).decode(), "size": list(picture.size)}


def main() -> None:
    with tempfile.TemporaryDirectory() as empty:
        os.environ["LONGSPAN_DATA"] = empty
        from longspan import tasks
        from longspan.core import atomic
        from longspan.core.errors import LongspanError

        made = {}
        for task in tasks.names():
            try:
                made[task] = samples(task)
            except LongspanError as error:
                print(f"{task} is left out: {error}")
    atomic.write_json(FILE, {"schema": 1, "tasks": made})
    print({task: len(json.dumps(found)) for task, found in made.items()})


if __name__ == "__main__":
    main()
