"""Reference entries of the Python API for the site, read from the source: nothing is imported, so torch is not needed.

entry("longspan.api.run")      # Markdown: the signature in a block of code, then the docstring
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def entry(name: str, members: str = "") -> str:
    """The heading, the signature and the docstring of a public name, and of the members that are requested."""
    found = _find(name)
    parts = [f"### {name}", *_described(found)] if found else [f"### {name}"]
    wanted = [member.strip() for member in members.split(",") if member.strip()]
    for node in found.body if isinstance(found, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            parts += [f"#### {node.name}", *_described(node)]
    return "\n\n".join(parts)


def _find(name: str) -> Definition | None:
    """Where a dotted name is defined, following one import."""
    *path, last = name.split(".")
    source = PACKAGE.parent.joinpath(*path)
    file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    if not file.is_file():
        return None
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, Definition) and node.name == last:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and last in {alias.name for alias in node.names}:
            return _find(f"{node.module}.{last}")
    return None


def _described(node: Definition) -> Iterator[str]:
    yield f"```python\n{_signature(node)}\n```"
    if words := ast.get_docstring(node):
        yield words


def _signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(whole) <= 100:
        return whole
    arguments = [*_arguments(node.args)]
    return f"def {node.name}(\n" + "".join(f"    {one},\n" for one in arguments) + f"){returns}"


def _arguments(given: ast.arguments) -> Iterator[str]:
    """One argument at a time, for a signature over several lines."""
    first = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(first) - len(given.defaults)) + list(given.defaults)
    yield from (_argument(one, default) for one, default in zip(first, defaults, strict=True))
    if given.vararg or given.kwonlyargs:
        yield f"*{ast.unparse(given.vararg) if given.vararg else ''}"
    yield from (_argument(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True))
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(one)
    return f"{ast.unparse(one)} = {ast.unparse(default)}" if one.annotation else f"{one.arg}={ast.unparse(default)}"
