"""Untrusted arrays are read back as they were written, or not at all."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from longspan.core.errors import CorruptFile
from longspan.results.arrays import everything, names_in, read

NUMBERS = st.sampled_from(["<i1", "<i2", ">i4", "<i8", "<u1", "<u4", ">u8", "<f2", "<f4", ">f8"])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=NUMBERS, compressed=st.booleans(), fortran=st.booleans())
def test_arrays_of_numbers_come_back_as_they_were(data, dtype, compressed, fortran, tmp_path_factory):
    finite = {"allow_nan": False, "allow_infinity": False} if "f" in dtype else {}
    shape = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    values = data.draw(arrays_of.arrays(dtype, shape, elements=arrays_of.from_dtype(np.dtype(dtype), **finite)))
    values = np.asfortranarray(values) if fortran else values
    path = tmp_path_factory.mktemp("arrays") / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, values=values, other=np.arange(3))
    (found,) = read(path, "values")
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)
    assert set(everything(path)) == names_in(path) == {"values", "other"}


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200))
def test_other_bytes_are_refused_with_a_sentence(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "a.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"a\.npz"):
        everything(path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(data, tmp_path_factory):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, values=np.arange(50.0), other=np.eye(4))
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("arrays") / "a.npz"
    path.write_bytes(content)
    with contextlib.suppress(CorruptFile):
        everything(path)
