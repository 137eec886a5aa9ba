"""Archives: only what is asked for is read, nothing in them is trusted, and damage is a clear error."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core import archive, remote
from longspan.core.archive import members, stream
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.remote import Source
from tests.loopback import Page, serving

FILES = {f"release/data/{name}": os.urandom(3_000 + 700 * i) for i, name in enumerate("abcdefgh")}
PACKERS = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv(remote.MIRROR, raising=False)


def tarred(files: dict[str, bytes], *others: tarfile.TarInfo, **options) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", **options) as tar:
        for name, inside in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(inside)
            tar.addfile(info, io.BytesIO(inside))
        for info in others:
            tar.addfile(info)
    return content.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, inside in files.items():
            packed.writestr(name, inside)
    return content.getvalue()


def read_all(packed) -> dict[str, bytes]:
    return {member.name: member.read() for member in members(packed, lambda name: True)}


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("ending", [*PACKERS, "zip", "gz"])
def test_wanted_members_are_read_whatever_the_packing_and_the_name(tmp_path, ending):
    content = zipped(FILES) if ending == "zip" else PACKERS.get(ending, gzip.compress)(tarred(FILES))
    path = tmp_path / f"x.{ending}"
    path.write_bytes(content)
    assert read_all(path) == FILES
    found = {each.name: each.read() for each in members(str(path), ["data/c", "release/data/a"])}
    assert found == {name: FILES[name] for name in ("release/data/a", "release/data/c")}
    assert archive.is_archive(path)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.text("ab/._é", min_size=1, max_size=150), st.binary(max_size=1_500), max_size=6),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.integers(1, 700),
)
def test_every_name_comes_back_in_one_spelling_or_is_refused(files, kind, piece):
    spelled = {"/".join(part for part in name.split("/") if part not in ("", ".")): name for name in files}
    hostile = any(name.startswith("/") or ".." in name.split("/") for name in files)
    if (len(spelled) < len(files) and "" not in spelled) or any(name.endswith("/") for name in files):
        return
    packed = io.BytesIO(tarred(files, format=kind))
    if hostile:
        with pytest.raises(CorruptFile, match=r"points outside the archive|without a name"):
            list(members(packed, lambda name: False))
        return
    if "" in spelled:
        with pytest.raises(CorruptFile, match="a file without a name"):
            list(members(packed, lambda name: False))
        return
    read = {}
    for member in members(packed, lambda name: True):
        read[member.name] = b"".join(iter(lambda member=member: member.read(piece), b""))
    assert read == {new: files[old] for new, old in spelled.items()}


def test_a_member_can_be_left_half_read_or_unread(tmp_path):
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(tarred(FILES)))
    begins = [each.read(5 * i) for i, each in enumerate(members(path, lambda name: True))]
    assert begins == [inside[: 5 * i] for i, inside in enumerate(FILES.values())]


def test_a_member_is_a_text_file_too(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(tarred({"x.tsv": "ä\tb\r\nc\td\r\n".encode()}))
    (member,) = members(path, ["x.tsv"])
    for member in members(path, ["x.tsv"]):
        with io.TextIOWrapper(io.BufferedReader(member), encoding="utf-8", newline="") as text:
            assert list(text) == ["ä\tb\r\n", "c\td\r\n"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\..\\x", "C:/x"])
@pytest.mark.parametrize("packing", ["tar", "zip"])
def test_names_that_lead_out_are_refused_though_nobody_wants_them(tmp_path, name, packing):
    path = tmp_path / "x"
    path.write_bytes((tarred if packing == "tar" else zipped)({name: b"x"} | FILES))
    with pytest.raises(CorruptFile, match="points outside the archive; refused"):
        list(members(path, ["data/a"]))


@pytest.mark.parametrize(
    "info, sentence",
    [
        (link("data/z", "/etc/passwd"), "points outside"),
        (link("data/z", "../../etc/passwd"), "points outside"),
        (link("data/z", "../x", tarfile.LNKTYPE), "points outside"),
        (link("data/z", "a"), "is a link"),
        (link("data/z", "release/data/a", tarfile.LNKTYPE), "is a link"),
        (link("data/z", "", tarfile.CHRTYPE), "device or a pipe"),
        (link("data/z", "", tarfile.FIFOTYPE), "device or a pipe"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, info, sentence):
    path = tmp_path / "x.tar"
    path.write_bytes(tarred(FILES, info))
    with pytest.raises(CorruptFile, match=sentence):
        list(members(path, ["data/z"]))


def test_a_link_that_stays_inside_and_is_not_wanted_does_no_harm(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(tarred(FILES, link("release/data/z", "a")))
    assert len(list(members(path, lambda name: not name.endswith("z")))) == len(FILES)


def test_a_link_in_a_zip_archive_is_refused(tmp_path):
    info = zipfile.ZipInfo("data/z")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(CorruptFile, match="is a link"):
        list(members(tmp_path / "x.zip", ["data/z"]))


def test_a_wanted_name_that_comes_twice_is_refused(tmp_path):
    path = tmp_path / "x.tar"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("data/a"))
    path.write_bytes(content.getvalue())
    for wanted in (["data/a", "data/b"], lambda name: True):
        with pytest.raises(CorruptFile, match="holds data/a twice"):
            list(members(path, wanted))


def test_absurd_sizes_are_refused(tmp_path, monkeypatch):
    bomb = gzip.compress(tarred({"data/a": bytes(5_000_000), "data/b": b"x"}))
    assert len(bomb) < 10_000
    (tmp_path / "x.tgz").write_bytes(bomb)
    (tmp_path / "x.zip").write_bytes(zipped({"data/a": bytes(5_000_000), "data/b": b"x"}))
    for path in (tmp_path / "x.tgz", tmp_path / "x.zip"):
        with monkeypatch.context() as patch:
            patch.setattr(archive, "LARGEST", 1_000_000)
            assert [each.read() for each in members(path, ["data/b"])] == [b"x"]
            with pytest.raises(CorruptFile, match=r"data/a in .* claims 5\.0 MB"):
                list(members(path, ["data/a"]))
            patch.setattr(archive, "TOTAL", 1_000_000)
            with pytest.raises(CorruptFile, match=r"unpacks to more than the 1\.0 MB"):
                list(members(path, ["data/b"]))


def test_a_header_of_megabytes_is_refused_before_it_is_read():
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2 << 30
    with pytest.raises(CorruptFile, match=r"a header claims 2\.1 GB"):
        list(members(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240)), ["x"]))


@pytest.mark.parametrize("ending", [*PACKERS, "zip"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_an_archive_that_is_cut_short_is_a_sentence(tmp_path, ending, share):
    content = zipped(FILES) if ending == "zip" else PACKERS[ending](tarred(FILES))
    path = tmp_path / "x"
    last = tarred(FILES).rstrip(b"\0")  # a bare tar ends in kilobytes of zeros; losing some of them is harmless
    path.write_bytes(content[: int(share * min(len(content), len(last) if ending == "tar" else len(content)))])
    with pytest.raises(CorruptFile, match="damaged or cut short"):
        read_all(path)


def test_a_tar_that_ends_between_two_members_is_noticed():
    content = tarred(FILES)
    third = content.index(FILES["release/data/c"]) - 512
    with pytest.raises(CorruptFile, match="cut short"):
        list(members(io.BytesIO(content[:third]), lambda name: True))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_one_wrong_bit_in_a_gzip_is_always_noticed(data):
    content = bytearray(gzip.compress(tarred(FILES), mtime=0))
    place = data.draw(st.integers(10, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptFile):
        read_all(io.BytesIO(bytes(content)))


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end():
    content = bytearray(tarred(FILES))
    content[content.index(b"release/data/d")] ^= 1
    with pytest.raises(CorruptFile, match="where a header or the end mark should be"):
        list(members(io.BytesIO(bytes(content)), lambda name: True))


def test_what_is_no_archive_or_not_there_is_told(tmp_path):
    (tmp_path / "x.tar.gz").write_text("hello " * 500)
    with pytest.raises(CorruptFile, match="damaged"):
        list(members(tmp_path / "x.tar.gz", ["a"]))
    assert not archive.is_archive(tmp_path / "x.tar.gz")
    assert not archive.is_archive(tmp_path)
    with pytest.raises(DataMissing, match="There is no archive"):
        list(members(tmp_path / "y.tar.gz", ["a"]))
    (tmp_path / "x.tar").write_bytes(tarred(FILES))
    with pytest.raises(DataMissing, match="has no data/y, data/z"):
        list(members(tmp_path / "x.tar", ["data/z", "data/a", "data/y"]))
    with pytest.raises(UsageError, match="zip archive, which cannot be read as a stream"):
        list(members(io.BytesIO(zipped(FILES)), ["data/a"]))


@pytest.mark.parametrize("name", ["", ".", "././."])
@pytest.mark.parametrize("packing", ["tar", "zip"])
def test_a_file_without_a_name_is_refused(tmp_path, name, packing):
    path = tmp_path / "x"
    path.write_bytes(tarred({name: b"x"} | FILES) if packing == "tar" else zipped({name or "#": b"x"} | FILES))
    if packing == "zip" and not name:
        content = bytearray(path.read_bytes())
        for place, field in ((content.index(b"PK\3\4"), 26), (content.index(b"PK\1\2"), 28)):
            content[place + field] = 0  # the name length; its one letter now belongs to the extra field
            content[place + field + 2] += 1
        path.write_bytes(content)
    with pytest.raises(CorruptFile, match="a file without a name"):
        list(members(path, lambda name: True))


def test_the_folder_of_the_archive_itself_may_be_listed(tmp_path):
    folder = tarfile.TarInfo("./")
    folder.type = tarfile.DIRTYPE
    (tmp_path / "x.tar").write_bytes(tarred(FILES, folder))
    assert read_all(tmp_path / "x.tar") == FILES


def test_long_names_are_refused(tmp_path):
    for make in (tarred, zipped):
        (tmp_path / "x").write_bytes(make({"a/" * 1_000 + "x": b"x"}))
        assert len(read_all(tmp_path / "x")) == 1
        (tmp_path / "x").write_bytes(make({"a/" * 3_000 + "x": b"x"}))
        with pytest.raises(CorruptFile, match="a name of 6,001 characters"):
            read_all(tmp_path / "x")


def test_a_name_that_steers_a_terminal_is_not_repeated(tmp_path):
    (tmp_path / "x.tar").write_bytes(tarred({}, link("\x1b[2Jdata", "x")))
    with pytest.raises(CorruptFile, match=r"\\x1b\[2Jdata in .* is a link") as caught:
        read_all(tmp_path / "x.tar")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_that_unpack_without_a_limit_are_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as packed:
        packed.writestr("bomb", bytes(2_000_000))
    assert (tmp_path / "x.zip").stat().st_size < 2_000
    with pytest.raises(CorruptFile, match="compression that cannot be read"):
        list(members(tmp_path / "x.zip", ["bomb"]))


@pytest.mark.parametrize("size", [0, 100, 6_000])
def test_a_zip_member_is_as_long_as_it_says(tmp_path, size):
    content = bytearray(zipped({"a": b"x" * 5_000}))
    for magic, field in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        place = content.index(magic) + field
        content[place : place + 4] = size.to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(CorruptFile, match="damaged"):
        read_all(tmp_path / "x.zip")


def test_overlapping_members_count_as_often_as_they_are_listed(tmp_path, monkeypatch):
    """A zip bomb whose members share their bytes: ten times the content of one member in a file no longer."""
    content = zipped({f"{i}": bytes(100_000) for i in range(10)})
    first = content.index(b"PK\1\2")
    content = bytearray(content)
    place = first
    while (place := content.find(b"PK\1\2", place)) >= 0:
        content[place + 42 : place + 46] = bytes(4)  # every member begins where the first one does
        place += 4
    (tmp_path / "x.zip").write_bytes(content)
    monkeypatch.setattr(archive, "TOTAL", 500_000)
    with pytest.raises(CorruptFile, match="unpacks to more than"):
        read_all(tmp_path / "x.zip")


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A member whose extended header holds these bytes."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = kind, len(records)
    return header.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) + tarred({"a": b"x"})


@pytest.mark.parametrize(
    "records, sentence",
    [
        (b"2 " * 30_000 + b"=", "length name=value"),  # each record used to be searched to the end of the header
        (b"1" * 60_000, "hundreds of digits"),  # and here each digit
        (b"30 GNU.sparse.size=" + b"1" * 10 + b"\n", "sparse"),
        (b"22 GNU.sparse.major=1\n", "sparse"),
        (b"12 size=-5\nx", "length name=value"),
        (b"11 size=-5\n", "damaged"),
        (b"0 a=b\n", "length name=value"),
        (b"a=b\n", "length name=value"),
    ],
)
def test_attributes_are_well_formed_or_refused(records, sentence):
    with pytest.raises(CorruptFile, match=sentence):
        read_all(io.BytesIO(pax(records)))


ODD = [b"", b"13 mtime=nan\n", b"15 mtime=1e999\n", b"21 hdrcharset=BINARY\n", b"10 path=b\n"]


@pytest.mark.parametrize("records", ODD)
def test_odd_attributes_do_no_harm(records):
    assert list(read_all(io.BytesIO(pax(records))).values()) == [b"x"]


def test_a_sparse_file_is_refused():
    info = tarfile.TarInfo("a")
    info.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(CorruptFile, match="sparse"):
        read_all(io.BytesIO(tarred({}, info)))


# Straight from the network

BIG = {f"big/{i:03d}": np.random.default_rng(i).bytes(40_000) for i in range(100)}
PACKED = gzip.compress(tarred(BIG), 1)


def test_a_stream_reads_only_as_far_as_it_must_and_keeps_nothing_on_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving({"x.gz": Page(PACKED)}) as server:
        heard = []
        body = remote.Body(remote.ask(Source(f"{server.url}/x.gz", "x.gz")), heard=heard.append)
        found = [(each.name, each.read()) for each in members(io.BufferedReader(body), ["big/003", "big/001"])]
        assert found == [("big/001", BIG["big/001"]), ("big/003", BIG["big/003"])]
        assert sum(heard) < len(PACKED) / 10
        found = [each.read() for each in stream(Source(f"{server.url}/x.gz", "x.gz"), ["big/003"])]
    assert found == [BIG["big/003"]]
    assert list(tmp_path.iterdir()) == []


def test_a_stream_goes_on_at_the_byte_where_the_connection_dropped():
    with serving({"x.gz": Page(PACKED, drops=[1_000_000, 1_000_000])}) as server:
        found = {each.name: each.read() for each in stream(Source(f"{server.url}/x.gz", "x.gz"), lambda name: True)}
        assert found == BIG
        assert server.asked() == [None, "bytes=1000000-", "bytes=2000000-"]


def test_a_stream_that_never_ends_well_says_so():
    never = pytest.raises(DataMissing, match="4 times in a row after 1,000,000 bytes")
    with serving({"x.gz": Page(PACKED, drops=[1_000_000, *[0] * 9])}) as server, never:
        list(stream(Source(f"{server.url}/x.gz", "x.gz"), lambda name: True))
    with serving({"x.gz": Page(PACKED[:2_000_000])}) as server, pytest.raises(CorruptFile, match="cut short"):
        list(stream(Source(f"{server.url}/x.gz", "x.gz"), lambda name: True))
