"""Errors a person can act on: what was asked, what was found, what to do.

Each class carries an exit code of the command line: 1 a check failed, 2 wrong usage, 3 data is missing, 4 a run failed.
"""

import difflib
from collections.abc import Iterable


class LongspanError(Exception):
    """Base of all errors that are shown as one sentence, without a traceback."""

    exit_code = 2


class UsageError(LongspanError, ValueError):
    """The request itself is wrong."""


class UnknownName(UsageError, LookupError):
    """A name that is not in a registry, an option list or a table."""


class UnsupportedPattern(UsageError):
    """A mechanism was asked for a pattern that it does not declare."""


class PluginError(UsageError):
    """A plug-in (file, module or entry point) could not be loaded."""


class UntrustedCode(UsageError):
    """A card names code that is not part of this package, and the user has not allowed it to run."""


class CorruptFile(LongspanError):
    """A card, checkpoint or array on disk is not what it claims to be."""


class DataDamaged(CorruptFile):
    """Data on this machine do not match their manifest."""

    exit_code = 3


class StorageError(LongspanError):
    """A folder is not writable, or the disk is full."""

    exit_code = 4


class CheckFailed(LongspanError):
    """A promise was broken."""

    exit_code = 1


class DataMissing(LongspanError):
    """Real data is not on this machine."""

    exit_code = 3


class RunFailed(LongspanError):
    """A training run could not finish."""

    exit_code = 4


class Crowded(RunFailed):
    """A run ran out of memory on a device that others use too, which says nothing about its mechanism."""


class WrongShape(RunFailed):
    """A mechanism returned a tensor of another shape than its slot needs."""


class Reported(LongspanError):
    """An error of another process, with the explanation given there."""

    def __init__(self, sentence: str, exit_code: int):
        super().__init__(sentence)
        self.exit_code = exit_code


UNEXPECTED = 4


def explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user about a failure, and the exit code."""
    if isinstance(error, LongspanError):
        return str(error), error.exit_code
    if isinstance(error, ModuleNotFoundError):
        return f"This command needs the package {error.name!r}, which is not installed; see longspan doctor.", 2
    if isinstance(error, OSError):
        return f"Cannot use {error.filename or 'a file'} ({error.strerror or error}); check the disk and the folder.", 4
    return f"Unexpected {type(error).__name__}: {error} (--debug shows where; please report it).", UNEXPECTED


def shortened(text: str, length: int = 80) -> str:
    """A text of any length, shortened so that a sentence can quote it."""
    return text if len(text) <= length else text[: length - 3] + "..."


def first_few(words: Iterable[str], most: int = 8) -> str:
    """The first few words, with the number of those left out.

    >>> first_few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    words = list(words)
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


_COMPARABLE = 200  # characters; comparing is quadratic in the length


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to a sentence: ` Did you mean 'linear'?`, or the list of known names.

    >>> did_you_mean("liner", ["linear", "local"])
    " Did you mean 'linear'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6) if len(name) < _COMPARABLE else []
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(known)}." if known else ""
