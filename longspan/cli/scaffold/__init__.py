"""First versions of files: `longspan new attention mine` writes one that already passes `longspan check`."""

import keyword
import re
from importlib import resources
from pathlib import Path

from longspan.core.atomic import storage_errors
from longspan.core.errors import UsageError


def new(kind: str, name: str, folder: str | Path = ".") -> Path:
    """Write `<name>.py` with a working attention, task or backbone to edit; an existing file is never overwritten."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"The name of a file has lower-case letters, digits and underscores, got {name!r}; use one like my_{kind}."
        )
    from jinja2 import Environment, StrictUndefined

    source = resources.files(__name__).joinpath(f"{kind}.py.j2").read_text(encoding="utf-8")
    template = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False).from_string(source)
    text = template.render(file=f"{name}.py", cls=class_name(name), title=name.replace("_", " ").capitalize())
    path = Path(folder) / f"{name}.py"
    if path.exists():
        raise UsageError(f"{path} exists and is not overwritten; choose another name or move the file.")
    with storage_errors(path), path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def class_name(name: str) -> str:
    """`my_attention` -> `MyAttention`."""
    return "".join(word.capitalize() for word in name.split("_"))
