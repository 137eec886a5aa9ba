"""Triton's interpreter, which runs a kernel on a CPU, patched where it differs from the compiler.

It cannot loop up to a number that a kernel has loaded (with NumPy 2.4), multiplies bfloat16 matrices as if their bits
were integers, truncates where a GPU rounds to nearest, and replaces the language's functions with its own again at
every call of a function within a kernel, which takes a third of its time.
"""

import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.quick_interpreter import quicken


def mend() -> None:
    """Call before the first launch, in a process started with TRITON_INTERPRET=1."""
    quicken()
    patch_language, patch, dot, cast = (
        interpreter._patch_lang,
        interpreter._patch_lang_tensor,
        interpreter.InterpreterBuilder.create_dot,
        interpreter.InterpreterBuilder.cast_impl,
    )

    patched, seen = set(), set()

    def patch_language_once(function):
        """Permanently: this process interprets every kernel, so nothing has to be restored."""
        if function not in seen:
            seen.add(function)
            found = {lang.__name__ for lang in function.__globals__.values() if lang is tl or lang is tl.core}
            if not found or not found <= patched:
                patch_language(function)
                patched.update(found)
        return interpreter._LangPatchScope()

    def patch_with_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot_of_numbers(self, a, b, d, input_precision, max_num_imprecise_acc):
        a, b = (cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, d, input_precision, max_num_imprecise_acc)

    def cast_to_nearest(self, src, dst_type):
        if (src.dtype.scalar, dst_type.scalar) == (tl.float32, tl.bfloat16):
            bits = torch.from_numpy(src.data.copy()).bfloat16().view(torch.uint16)
            return interpreter.TensorHandle(bits.numpy(), tl.bfloat16)
        return cast(self, src, dst_type)

    interpreter._patch_lang = patch_language_once
    interpreter._patch_lang_tensor = patch_with_index
    interpreter.InterpreterBuilder.create_dot = dot_of_numbers
    interpreter.InterpreterBuilder.cast_impl = cast_to_nearest
