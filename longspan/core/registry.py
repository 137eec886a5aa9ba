"""Classes by name: the name of the file is the registered name, so adding a file registers its class.

A target is `performer` (a file of the package, or an entry point of an installed one), `path/to/file.py:Class` or
`package.module:Class`.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from longspan.core.errors import (
    LongspanError,
    PluginError,
    UnknownName,
    UntrustedCode,
    UsageError,
    did_you_mean,
    shortened,
)
from longspan.core.plugin_source import sources_of
from longspan.core.spec import Spec, Value

_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)  # None: every plug-in


@contextlib.contextmanager
def builtins_only(*others: str) -> Iterator[None]:
    """Inside, no name can run code that is not part of this package, except these targets.

    For names that come from a card, which is data: a plug-in path in it would import whatever it says.
    """
    token = _allowed.set(frozenset(others))
    try:
        yield
    finally:
        _allowed.reset(token)


@dataclass(frozen=True)
class Option:
    """A keyword option of a registered class, taken from its constructor."""

    name: str
    type: str
    default: Value


class Registry:
    """The classes of one kind (`attention`, `task`...), one per file of `package` and of these subpackages."""

    def __init__(
        self, kind: str, package: str, base: str, skip: tuple[str, ...] = ("base",), subpackages: tuple[str, ...] = ()
    ):
        self.kind, self.package, self.skip = kind, package, skip
        self.packages = (package, *(f"{package}.{name}" for name in subpackages))
        self._base = base  # "module:Class", imported only when needed

    @property
    def base(self) -> type:
        module, name = self._base.split(":")
        return getattr(importlib.import_module(module), name)

    @property
    def group(self) -> str:
        """The entry-point group in which installed packages register theirs."""
        return self.package

    def names(self, *, plugins: bool = True) -> list[str]:
        """All names of this package, and of installed entry points, without importing what they name."""
        return sorted({*self._own(), *(point.name for point in entry_points(group=self.group) if plugins)})

    def _own(self) -> dict[str, str]:
        """The module of each built-in name."""
        return {
            module.name: f"{package}.{module.name}"
            for package in self.packages
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
            if not module.ispkg and module.name not in self.skip
        }

    def is_builtin(self, name: str) -> bool:
        """Whether a name is that of a class of this package."""
        return name in self._own()

    def find(self, target: str) -> type:
        """The class that a target names; the error for an unknown one suggests the nearest name."""
        if ":" not in target and (own := self._own().get(target)):  # an installed package cannot replace a built-in
            return self._only_class(importlib.import_module(own))
        if (allowed := _allowed.get()) is not None and target not in allowed:
            self._refuse(target)
        if ":" in target:
            return self._from_plugin(target)
        for point in entry_points(group=self.group):
            if point.name == target:
                return self._checked(_guarded(point.load, target, self.kind), target)
        raise UnknownName(f"No {self.kind} named {shortened(target)!r}.{did_you_mean(target, self.names())}")

    def _refuse(self, target: str) -> None:
        """Raise UntrustedCode for a plug-in; an unknown name gets its own error later."""
        if ":" in target or any(point.name == target for point in entry_points(group=self.group)):
            raise UntrustedCode(
                f"The card names code of its own ({self.kind} {target!r}), which is not run unless you say so: pass "
                'the mechanism as a file of yours, attention="path/mine.py:Mine", or trust=True; on the command line '
                "--attention, --trust."
            )

    def _only_class(self, module: types.ModuleType) -> type:
        found = [c for c in vars(module).values() if self._is_one(c) and c.__module__ == module.__name__]
        if len(found) != 1:
            raise PluginError(
                f"{module.__name__} should hold exactly one {self.kind} class, found {len(found)}; "
                f"keep one public subclass of {self.base.__name__} per file."
            )
        return found[0]

    def _is_one(self, thing: object) -> bool:
        return inspect.isclass(thing) and issubclass(thing, self.base) and not inspect.isabstract(thing)

    def takes(self, target: str) -> bool:
        """Whether a plug-in path names a class of this kind."""
        thing = self._load(target)
        return inspect.isclass(thing) and issubclass(thing, self.base)

    def _from_plugin(self, target: str) -> type:
        return self._checked(self._load(target), target)

    def _load(self, target: str) -> object:
        where, _, name = target.rpartition(":")
        if where.endswith(".py"):
            module = _guarded(lambda: _import_file(Path(where)), target, self.kind)
        else:
            module = _guarded(lambda: importlib.import_module(where), target, self.kind)
        if not hasattr(module, name):
            classes = [n for n, c in vars(module).items() if self._is_one(c) and c.__module__ == module.__name__]
            raise UnknownName(f"{where} has no class {shortened(name)!r}.{did_you_mean(name, classes)}")
        return getattr(module, name)

    def _checked(self, thing: object, target: str) -> type:
        if not (inspect.isclass(thing) and issubclass(thing, self.base)):
            raise PluginError(
                f"{target} is not a subclass of {self.base.__module__}.{self.base.__name__}; derive from it."
            )
        if missing := getattr(thing, "__abstractmethods__", None):
            raise PluginError(
                f"{target} does not define {', '.join(sorted(missing))}; write it to make the class usable."
            )
        declared = inspect.get_annotations(self.base).get("meta")
        wanted = next(iter(typing.get_args(declared)), declared)  # of ClassVar[AttentionMeta], what is in the brackets
        if wanted is not None and not isinstance(getattr(thing, "meta", None), wanted):
            raise PluginError(f"{target} does not declare what it is; give it meta = {wanted.__name__}(...).")
        return thing


def own_options(cls: type, shell: frozenset[str]) -> list[Option]:
    """The keyword options of a class besides `shell`, those that all classes of its kind share."""
    options = {}
    for owner in reversed(cls.__mro__):
        if "__init__" not in vars(owner):
            continue
        for name, parameter in inspect.signature(vars(owner)["__init__"]).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY and name not in shell:
                options[name] = Option(name, _spell_type(parameter.annotation), parameter.default)
    return [options[name] for name in sorted(options)]


def checked_options(cls: type, given: Mapping[str, Value], shell: frozenset[str], kind: str, name: str) -> dict:
    """Refuse unknown options and values of the wrong type; drop those equal to the default."""
    known = {option.name: option for option in own_options(cls, shell)}
    types_ = _annotations(cls)
    result = {}
    for option, value in given.items():
        if option not in known:
            hint = did_you_mean(option, known) if known else " It has no options."
            raise UnknownName(f"The {kind} {name!r} has no option {shortened(option)!r}.{hint}")
        expected = types_.get(option, Any)
        if not _fits(value, expected):
            raise UsageError(
                f"Option {option!r} of {kind} {name!r} takes {_spell_type(expected)}, got {shortened(repr(value))}; "
                "give a value of that type."
            )
        if isinstance(value, int) and not isinstance(value, bool) and expected is float:
            value = float(value)
        if value != known[option].default or type(value) is not type(known[option].default):
            result[option] = value
    return result


def canonical_target(spec: Spec) -> str:
    """A target as cards record it: a plug-in file without its folder."""
    where, colon, name = spec.target.rpartition(":")
    return f"{Path(where).name}:{name}" if colon and where.endswith(".py") else spec.target


_SOURCES = "__longspan_sources__"  # of a plug-in and the files it imports, when it was loaded


def _import_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise PluginError(f"No file {shortened(str(path), 500)!r} to load a class from; check the path.")
    name = f"longspan_plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    source = path.read_bytes()
    if (loaded := sys.modules.get(name)) is not None and getattr(loaded, _SOURCES, None) == sources_of(name, source):
        return loaded  # loaded once per content, so that its classes are the same objects for everyone
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:  # compiled from source: cached bytecode may be stale if the file was edited within the same second
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    setattr(module, _SOURCES, sources_of(name, source))
    return module


def _guarded(load: typing.Callable[[], Any], target: str, kind: str) -> Any:
    """Import a plug-in; whatever it raises is reported in one sentence."""
    try:
        return load()
    except LongspanError:
        raise
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a plug-in may raise anything at all, SystemExit included
        reason = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 500)
        raise PluginError(
            f"The {kind} {shortened(target, 500)} could not be imported ({reason}); fix it, or see --debug."
        ) from error


def _annotations(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        if "__init__" in vars(owner):
            found |= {n: p.annotation for n, p in inspect.signature(vars(owner)["__init__"]).parameters.items()}
    return {n: (Any if a is inspect.Parameter.empty or isinstance(a, str) else a) for n, a in found.items()}


def _fits(value: Value, expected: Any) -> bool:
    if expected is Any:
        return True
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(expected))
    if origin is typing.Literal:
        return value in typing.get_args(expected)
    if expected is None or expected is type(None):
        return value is None
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, tuple)
    return isinstance(value, expected)


def _spell_type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty or annotation is Any:
        return "any"
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(repr(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(_spell_type(part) for part in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    return getattr(annotation, "__name__", str(annotation))
