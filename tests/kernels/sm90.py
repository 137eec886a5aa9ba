"""Kernels compiled for a large GPU (sm_90). The compiler needs no GPU, and it is stricter than the interpreter."""

import os
import re
from collections.abc import Mapping
from typing import Any

import pytest

from longspan.kernels.dispatch import HAS_TRITON

needs_compiler = pytest.mark.skipif(
    not HAS_TRITON or bool(os.environ.get("TRITON_INTERPRET")), reason="needs triton's compiler"
)
STRIDES = r"\w+_[bht]"  # arguments with these names are strides


def compiled(
    kernel: Any, constants: Mapping[Any, Any], kinds: Mapping[Any, str], *, otherwise: str, multiples: str | None = None
) -> Any:
    """Compile `kernel` with these launch constants (those it knows are used) and arguments of these kinds, `otherwise`
    where none is given.

    The compiler is told that pointers, and integers whose names match `multiples`, are divisible by 16; without
    `multiples` it is told nothing.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {word: constants[word] for word in ("num_warps", "num_stages") if word in constants}
    known = {word: value for word, value in constants.items() if word in kernel.arg_names}
    strides = {word: "i32" for word in kernel.arg_names if re.fullmatch(STRIDES, word)}
    kinds = {**strides, **kinds, **dict.fromkeys(known, "constexpr")}
    signature = {word: kinds.get(word, otherwise) for word in kernel.arg_names}
    aligned = {}
    if multiples is not None:
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, (word, kind) in enumerate(signature.items())
            if kind.startswith("*") or (kind == "i32" and re.fullmatch(multiples, word))
        }
    source = ASTSource(kernel, signature, constexprs=known, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
