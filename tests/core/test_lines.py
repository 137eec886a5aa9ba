"""A line ends at a line feed and nowhere else."""

import io
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core import lines as module
from longspan.core.errors import CorruptFile
from longspan.core.lines import lines


@given(st.lists(st.text().map(lambda text: text.replace("\n", "\x85\r\x0b").encode())))
def test_what_is_joined_by_line_feeds_comes_back(texts):
    content = b"".join(text + b"\n" for text in texts)
    read = list(lines(io.BytesIO(content), "x"))
    assert [line for line, _ in read] == texts
    assert [where for _, where in read] == [f"x, line {number}" for number in range(1, len(texts) + 1)]


def test_a_packed_file_is_unpacked_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "x.tsv.xz"
    path.write_bytes(lzma.compress(b"one\ntwo"))
    assert [line for line, _ in lines(path)] == [b"one", b"two"]
    path.write_bytes(lzma.compress(b"one\n" * 10_000)[:-40])
    with pytest.raises(CorruptFile, match=r"x\.tsv\.xz"):
        list(lines(path))
    path.write_bytes(b"not packed at all")
    with pytest.raises(CorruptFile, match="cannot be decompressed"):
        list(lines(path))


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 100)
    with pytest.raises(CorruptFile, match="x, line 2 does not end within 100 bytes"):
        list(lines(io.BytesIO(b"a\n" + b"b" * 1_000), "x"))
