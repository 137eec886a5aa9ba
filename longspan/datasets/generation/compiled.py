"""Compilation with numba, where it is installed: a generator is a plain Python function that is only faster with it.

Generators only call `rng.random()` of a NumPy `Generator`: numba reads the same stream, so that compiled and
interpreted code generate bit-identical data.
"""

import functools
import os
from collections.abc import Callable
from typing import Any


def compiled(function: Callable) -> Any:
    """`function` compiled to run without the GIL, or `function` itself if numba is absent or disabled."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return function
    try:
        import numba
    except ImportError:
        return function
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache folder: compile in every process
        return numba.njit(nogil=True)(function)


@functools.cache
def compiled_once(function: Callable) -> Any:
    """`compiled`, at the first call instead of at import, since importing numba is slow."""
    return compiled(function)
