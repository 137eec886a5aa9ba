"""Archives that are damaged or hostile: their members, or one sentence; nothing is written, no claimed size trusted."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile

import pytest

from longspan.core import archive
from longspan.core.archive import is_archive, members
from tests.fuzz.figures import inputs
from tests.fuzz.mutation import damaged

PACKERS = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}
TEXTS = [b"", b"x", b"text " * 90, bytes(3_000)]
TYPES = [bytes([letter]) for letter in b"01234567LKSxgXVND\0AZ"]
NAMES = [
    "a",
    "data/b",
    "d" * 120,
    "../x",
    "/etc/x",
    "",
    ".",
    "./",
    "a/./b",
    "\\",
    "C:x",
    "é",
    "\x1b[2J",
    "a\0b",
    "x" * 5_000,
]
ATTRIBUTES = {
    "path": NAMES,
    "linkpath": NAMES,
    "mtime": ["nan", "1e999", "x"],
    "size": ["-1", "0", "5", "9" * 30, "nan", ""],
    "GNU.sparse.size": ["5"],
    "GNU.sparse.map": ["0,1"],
    "GNU.sparse.name": ["../x"],
    "hdrcharset": ["BINARY", "x"],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", 1_000_000)
    monkeypatch.setattr(archive, "TOTAL", 2_000_000)


def plain_tar(dice: random.Random) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=dice.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
        for number in range(dice.randint(0, 5)):
            info = tarfile.TarInfo(dice.choice([f"release/{number}", f"{'long/' * 30}{number}", f"./é {number}"]))
            text = dice.choice(TEXTS)
            info.size, info.mode = len(text), dice.choice([0, 0o644, 0o777])
            tar.addfile(info, io.BytesIO(text))
    return content.getvalue()


def hostile_tar(dice: random.Random) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for _ in range(dice.randint(1, 5)):
            info = tarfile.TarInfo(dice.choice(NAMES))
            info.type, info.linkname, info.size = dice.choice(TYPES), dice.choice(NAMES), dice.choice([0, 0, 5, 512])
            info.pax_headers = {name: dice.choice(values) for name, values in ATTRIBUTES.items() if dice.random() < 0.1}
            tar.addfile(info, io.BytesIO(bytes(512)))
    return content.getvalue()


def plain_zip(dice: random.Random) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as packed:
        packed.comment = dice.choice([b"", b"a comment"])
        for number in range(dice.randint(1, 5)):
            packed.writestr(dice.choice([f"release/{number}", f"é/{number}", f"{number}/"]), dice.choice(TEXTS))
    return content.getvalue()


def hostile_zip(dice: random.Random) -> bytes:
    content = io.BytesIO()
    method = dice.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(content, "w", method) as packed:
        for name in dict.fromkeys(dice.choices(sorted({*NAMES} - {""}), k=3)):
            info = zipfile.ZipInfo(name)
            info.external_attr = dice.choice([0, 0o120777 << 16, 0o010644 << 16, 16])
            packed.writestr(info, dice.choice(TEXTS))
    return content.getvalue()


def read(path) -> int:
    """The number of bytes of all members."""
    total = 0
    for member in members(path, lambda name: True):
        assert not member.name.startswith("/")
        assert ".." not in member.name.split("/")
        assert member.name
        total += len(member.read())
    return total


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's warning about what is written here
@inputs(quick=600)
def test_a_damaged_archive_is_read_or_refused(count, figures, tmp_path, monkeypatch):
    dice, path = random.Random(18), tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    for _ in range(count):
        make = dice.choice([plain_tar, hostile_tar, plain_zip, hostile_zip])
        content = make(dice)
        if make in (plain_tar, hostile_tar):
            content = damaged(content, dice) if dice.random() < 0.5 else content
            content = dice.choice([*PACKERS.values()])(content)
        path.write_bytes(damaged(content, dice) if dice.random() < 0.7 else content)
        with figures.trying():
            is_archive(path)
            assert read(path) <= archive.TOTAL
        escaped = [name for name in tmp_path.rglob("*") if name != path]
        figures.add("escapes", len(escaped))
        assert not escaped


@inputs(quick=200)
def test_every_sound_archive_is_accepted(count, figures, tmp_path):
    dice, path = random.Random(18), tmp_path / "x"
    figures.title = "sound archives"
    for _ in range(count):
        packing = dice.choice([*PACKERS, "zip"])
        path.write_bytes(plain_zip(dice) if packing == "zip" else PACKERS[packing](plain_tar(dice)))
        with figures.trying():
            read(path)
            assert is_archive(path) or path.read_bytes().strip(b"\0") == b""
    assert figures["refused with a sentence"] == 0


@inputs(quick=200)
def test_what_a_checksum_covers_is_never_read_otherwise(count, figures, tmp_path):
    dice, path = random.Random(18), tmp_path / "x"
    figures.title = "checksummed archives"
    for _ in range(count):
        packing = dice.choice(["tar.gz", "tar.bz2", "tar.xz", "zip"])
        content = plain_zip(dice) if packing == "zip" else PACKERS[packing](plain_tar(dice))
        path.write_bytes(content)
        right = [member.read() for member in members(path, lambda name: True)]
        path.write_bytes(damaged(content, dice))
        with figures.trying():
            found = [member.read() for member in members(path, lambda name: True)]
            assert all(text in right or text == b"" for text in found)  # a zip with a wiped directory
