"""One door to the compiler, so that a generator is a plain Python function that is merely faster with numba.

Generators draw only `rng.random()` from a NumPy `Generator`: numba reads the very same stream, so that compiled and
interpreted code make the same data bit by bit.
"""

import functools
import os
from collections.abc import Callable
from typing import Any


def compiled(function: Callable) -> Any:
    """`function` compiled without the interpreter lock, or `function` itself where numba is absent or switched off."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return function
    try:
        import numba
    except ImportError:
        return function
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable folder for the cache: compile in every process
        return numba.njit(nogil=True)(function)


@functools.cache
def compiled_once(function: Callable) -> Any:
    """`compiled`, at the first call instead of at import, since importing numba takes a while."""
    return compiled(function)
