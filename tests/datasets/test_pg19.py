"""PG-19: books in any layout become one stream per split; nothing is lost, repeated, leaked or silently replaced."""

import dataclasses
import hashlib
import io
import itertools
import lzma
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing, StorageError, UsageError
from longspan.datasets import bpe, digests, get, pg19
from longspan.datasets.base import SPLITS
from longspan.datasets.bpe import streams
from tests.loopback import Page, serving

PG19 = get("pg19")
SMALL = pg19.Data(length=50, vocabulary=300)
STANDIN = pg19.Data(length=50, vocabulary=300, train=3, valid=1, test=1, standin=True)


def book(number: int) -> bytes:
    return f"BOOK {number}\r\n\r\nThis is the {number}th book, and it rains \u2014 often.\r\n".encode() * 3 + b"*** "


BOOKS = {
    **{f"train/{number}.txt": book(number) for number in (11, 7, 100, 23)},
    "validation/5.txt": book(5),
    "test/6.txt": book(6),
}


def folder_of(path, files=BOOKS, packed=False):
    for name, content in files.items():
        file = path / (f"{name}.xz" if packed else name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress(content) if packed else content)
    return path


def tar_of(path, files=BOOKS, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"deepmind-gutenberg/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def zip_of(path, files=BOOKS):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def text_of(splits, split, root):
    """The decoded text of a split."""
    return pg19.decode(PG19.status(SMALL, root=root).folder, getattr(splits, split).tokens)


def lines_of(*numbers):
    return "".join(f"{line.strip()}\n" for n in numbers for line in book(n).decode().split("\n"))


@pytest.mark.parametrize(
    "layout",
    [
        lambda path: folder_of(path / "a"),
        lambda path: folder_of(path / "a" / "pg19").parent,
        lambda path: folder_of(path / "a", packed=True),
        lambda path: tar_of(path / "a.tar"),
        lambda path: tar_of(path / "a.tar.gz", mode="w:gz"),
        lambda path: zip_of(path / "a.zip"),
    ],
    ids=["folder", "nested", "xz", "tar", "tar.gz", "zip"],
)
def test_every_layout_gives_the_books_in_order_of_their_numbers(tmp_path, layout):
    splits = PG19.prepare(SMALL, root=tmp_path / "data", source=layout(tmp_path))
    assert splits.variant == "imported"
    assert text_of(splits, "train", tmp_path / "data") == lines_of(7, 11, 23, 100)
    assert text_of(splits, "valid", tmp_path / "data") == lines_of(5)
    assert text_of(splits, "test", tmp_path / "data") == lines_of(6)
    assert splits.manifest["books"]["train"] == [7, 11, 23, 100]
    assert splits.manifest["validation"] == "as published"
    assert splits.train.tokens.dtype == np.uint16
    assert PG19.verify(SMALL, root=tmp_path / "data") == []


def test_a_copy_without_validation_gets_a_tenth_of_its_training_books_and_says_so(tmp_path):
    files = {f"train/{number}.txt": book(number) for number in range(30, 50)} | {"test/6.txt": book(6)}
    splits = PG19.prepare(SMALL, root=tmp_path / "data", source=folder_of(tmp_path / "a", files))
    held = splits.manifest["books"]["valid"]
    assert len(held) == 2
    assert sorted(held + splits.manifest["books"]["train"]) == list(range(30, 50))
    assert splits.manifest["validation"] == f"held out of train: {held}"
    fewest = sorted(range(30, 50), key=lambda number: hashlib.sha256(str(number).encode()).hexdigest())[:2]
    assert held == sorted(fewest)


def test_length_and_breaks_only_look_at_the_stream(tmp_path):
    root = tmp_path / "data"
    first = PG19.prepare(SMALL, root=root, source=folder_of(tmp_path / "a"))
    folders = set(root.rglob("*.npy"))
    for change in ({"length": 7}, {"breaks": "complete"}, {"scored": "validation"}, {"seed": 3}):
        other = PG19.load(replace(SMALL, **change), root=root)
        np.testing.assert_array_equal(other.train.tokens, first.train.tokens)
        assert other.sha256 != first.sha256
    assert set(root.rglob("*.npy")) == folders
    scored = PG19.load(replace(SMALL, scored="validation"), root=root)
    np.testing.assert_array_equal(scored.test.tokens, first.valid.tokens)
    fewer = PG19.load(replace(SMALL, train=2), root=root)
    assert fewer.manifest["books"]["train"] == [7, 23]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 12), st.booleans())
def test_blocks_hold_every_token_once_and_training_drops_a_short_one(numbers, length, whole):
    tokens = np.array(numbers, np.uint16)
    rows = pg19._rows(tokens, length, "none", whole=whole)
    taken = np.concatenate([tokens[a:b] for a, b in zip(rows["starts"], rows["stops"], strict=True)])
    np.testing.assert_array_equal(taken, tokens[: len(taken)])
    lost = len(tokens) - len(taken)
    assert lost == (len(tokens) % length if whole and len(tokens) > length else 0)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=80), st.integers(1, 12))
def test_complete_rows_end_with_a_line_unless_the_line_is_too_long(numbers, length):
    tokens = np.array(numbers, np.uint16)
    rows = pg19._rows(tokens, length, "complete")
    pieces = [tokens[a:b] for a, b in zip(rows["starts"], rows["stops"], strict=True)]
    np.testing.assert_array_equal(np.concatenate(pieces), tokens)
    for piece in pieces[:-1]:
        assert len(piece) <= length
        assert piece[-1] == bpe.END or (len(piece) == length and bpe.END not in piece)
    for piece, after in itertools.pairwise(pieces):
        line = np.flatnonzero(after == bpe.END)
        if len(line) and piece[-1] == bpe.END:
            assert len(piece) + line[0] + 1 > length  # the next line would not have fitted


@pytest.mark.parametrize(
    "files, sentence",
    [
        ({"train/7.txt": b"\xff\xfe broken"}, r"train/7\.txt: the book is not UTF-8"),
        ({"train/7.txt": b"  \r\n "}, r"train/7\.txt: a book has 1 to 67,108,864 bytes of text"),
        ({"test/11.txt": book(11)}, "book 11 is there twice"),
        ({"train/11.txt.xz": lzma.compress(book(11))}, "book 11 is there twice"),
        ({"train/8.txt.xz": lzma.compress(book(8))[:-9]}, r"8\.txt\.xz: the book cannot be unpacked"),
        ({"train/8.txt.xz": b"no xz"}, r"8\.txt\.xz: the book cannot be unpacked"),
    ],
)
def test_broken_books_are_a_sentence_and_leave_nothing_behind(tmp_path, files, sentence):
    with pytest.raises(CorruptFile, match=sentence):
        PG19.prepare(SMALL, root=tmp_path / "data", source=folder_of(tmp_path / "a", BOOKS | files))
    assert not (tmp_path / "data/pg19/whole").exists()


@pytest.mark.parametrize("absent", ["train", "test"])
def test_a_folder_without_a_split_is_a_sentence(tmp_path, absent):
    files = {name: content for name, content in BOOKS.items() if not name.startswith(absent)}
    with pytest.raises(DataMissing, match=rf"no books in {absent}/<number>\.txt"):
        PG19.prepare(SMALL, root=tmp_path / "data", source=folder_of(tmp_path / "a", files))


def test_a_book_too_large_to_be_one_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(pg19, "LARGEST", 100)
    with pytest.raises(CorruptFile, match="found 101"):
        PG19.prepare(SMALL, root=tmp_path / "data", source=tar_of(tmp_path / "a.tar"))


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"nothing" * 100)
    with pytest.raises(CorruptFile, match="no tar or zip archive"):
        PG19.prepare(SMALL, root=tmp_path / "data", source=tmp_path / "a.txt")


def test_cutting_goes_on_where_it_was_killed_and_gives_the_same(tmp_path, monkeypatch):
    root, source = tmp_path / "data", folder_of(tmp_path / "a")
    whole = PG19.prepare(SMALL, root=tmp_path / "other", source=source)
    encode, calls = streams.encode, []

    def killed(coder, text):
        calls.append(text)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(coder, text)

    monkeypatch.setattr(streams, "encode", killed)
    with pytest.raises(KeyboardInterrupt):
        PG19.prepare(SMALL, root=root, source=source)
    again = PG19.load(SMALL, root=root)
    assert len(calls) == 3 + 4  # of six books two were done
    assert again.manifest == whole.manifest
    assert not list(root.rglob("*.work"))


def test_a_full_disk_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 10}))
    with pytest.raises(StorageError, match="where 10 bytes are free"):
        PG19.prepare(SMALL, root=tmp_path / "data", source=folder_of(tmp_path / "a"))


# ---------------------------------------------------------------------------------------------------------- vocabulary


def test_gpt2_pieces_need_the_users_files_and_a_dictionary_that_fits(tmp_path):
    root = tmp_path / "data"
    gpt2 = replace(SMALL, tokenizer="gpt2")
    with pytest.raises(
        DataMissing, match=r"The vocabulary of GPT-2 was asked for.*put them there, or train a tokenizer"
    ):
        PG19.prepare(gpt2, root=root, source=folder_of(tmp_path / "a"))
    bpe.train([lines_of(7, 11).split("\n")], 400).save(root / "tokenizers/gpt2", bpe.NAMES[1])
    splits = PG19.load(gpt2, root=root)
    assert splits.manifest["vocabulary"] % 8 == 0
    counts = splits.train.frequencies
    used = splits.manifest["vocabulary"] - 8
    assert (np.diff(counts[4:used]) <= 0).all()  # the commonest first
    few = PG19.load(replace(gpt2, train=1), root=root)
    assert bpe.UNKNOWN in few.test.tokens  # a piece that the one training book does not have


def test_a_vocabulary_that_does_not_fit_the_network_is_refused(tmp_path, monkeypatch):
    root = tmp_path / "data"
    monkeypatch.setattr(bpe, "FEWEST", 4)
    bpe.train([lines_of(7).split("\n")], 300).save(root / "tokenizers/gpt2")
    with pytest.raises(UsageError, match=r"vocabulary of \d+ pieces, but the network has room for 10"):
        PG19.prepare(replace(SMALL, tokenizer="gpt2", vocabulary=10), root=root, source=folder_of(tmp_path / "a"))


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"length": 0}, "at least 1 token"),
        ({"vocabulary": 259}, "at least 260"),
        ({"breaks": "some"}, "'none' or 'complete' for breaks, got 'some'"),
        ({"tokenizer": "bert"}, "'own' or 'gpt2'"),
        ({"train": 0}, "at least 1 example"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        pg19.Data(**wrong)


# ----------------------------------------------------------------------------------------------------------- stand-ins


def test_absent_books_are_an_error_with_source_size_and_command(tmp_path):
    with pytest.raises(DataMissing) as error:
        PG19.load(SMALL, root=tmp_path)
    assert error.value.exit_code == 3
    for words in (PG19.meta.source, PG19.meta.size, "longspan data prepare pg19", "data import"):
        assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_stand_ins_are_marked_the_same_every_time_and_barred_by_real(tmp_path):
    made, again = (PG19.load(STANDIN, root=tmp_path / name) for name in ("one", "two"))
    assert made.variant == "standin" == PG19.status(STANDIN, root=tmp_path / "one").variant
    assert made.sha256 == again.sha256 != PG19.load(replace(STANDIN, seed=1), root=tmp_path / "one").sha256
    with pytest.raises(DataMissing):
        PG19.load(STANDIN, root=tmp_path / "one", real=True)
    real = PG19.prepare(STANDIN, root=tmp_path / "one", source=folder_of(tmp_path / "a"))
    assert real.variant == PG19.load(STANDIN, root=tmp_path / "one").variant == "imported"
    shard = PG19.make_shard(STANDIN, 0)
    assert hashlib.sha256(shard.tokens.tobytes()).hexdigest()[:16] == STANDIN_DIGEST, "raise `generator`"
    assert all(book.tobytes().endswith(b"\r\n*** ") for book in shard.rows())


STANDIN_DIGEST = "ac7701676b08d6c7"


def test_samples_are_the_beginnings_of_books_and_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    assert [len(PG19.samples(STANDIN, count)) for count in (1, 5)] == [1, 5]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataMissing):
        PG19.samples(SMALL, 2)


# ---------------------------------------------------------------------------------------------------------- downloading


@pytest.fixture
def bucket(monkeypatch):
    """Six books on a server, with the digests of two of them in the table."""
    table = {
        split: {
            str(number): digests.Digest(len(book(number)), hashlib.sha256(book(number)).hexdigest())
            for number in numbers
        }
        for split, numbers in (("valid", [5]), ("test", [6]))
    }
    metadata = "".join(f"{n},Title,1900,http://example\n" for n in (5, 6, 7, 11, 23, 100)).encode()
    monkeypatch.setattr(digests, "published", lambda corpus: table)
    monkeypatch.setattr(pg19, "BOOKS", {"train": 4, "valid": 1, "test": 1})
    monkeypatch.setattr(
        pg19,
        "METADATA",
        dataclasses.replace(pg19.METADATA, size=len(metadata), sha256=hashlib.sha256(metadata).hexdigest()),
    )
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    pages = {name: Page(content) for name, content in (BOOKS | {"metadata.csv": metadata}).items()}
    with serving(pages) as server:
        monkeypatch.setenv("LONGSPAN_MIRROR", server.url)
        yield server


def test_downloaded_books_are_official_and_a_second_call_asks_for_nothing(bucket, tmp_path):
    splits = PG19.prepare(SMALL, root=tmp_path, progress=False)
    assert splits.variant == "official"
    assert splits.manifest["complete"]
    assert splits.manifest["published_digests"] == {"agree": 2, "differ": []}
    assert text_of(splits, "train", tmp_path) == lines_of(7, 11, 23, 100)
    before = len(bucket.seen)
    PG19.prepare(SMALL, root=tmp_path, progress=False)
    assert len(bucket.seen) == before


def test_fewer_books_are_downloaded_first_and_the_rest_later(bucket, tmp_path):
    some = PG19.prepare(replace(SMALL, train=2), root=tmp_path, progress=False)
    assert some.manifest["books"]["train"] == [7, 23]
    assert "/train/11.txt" not in {path for _, path, _ in bucket.seen}
    more = PG19.prepare(SMALL, root=tmp_path, progress=False)
    assert more.manifest["books"]["train"] == [7, 11, 23, 100]
    assert [path for verb, path, _ in bucket.seen if verb == "GET"].count("/train/7.txt") == 1


def test_a_dropped_connection_goes_on_and_a_wrong_book_is_refused(bucket, tmp_path):
    bucket.pages["train/7.txt"].drops = [40]
    PG19.prepare(replace(SMALL, train=1), root=tmp_path / "one", progress=False)
    assert "bytes=40-" in bucket.asked()
    bucket.pages["test/6.txt"].content = book(9)
    with pytest.raises(CorruptFile, match=r"6\.txt.*should have.*sha256|offers"):
        PG19.prepare(SMALL, root=tmp_path / "two", progress=False)
    assert not (tmp_path / "two/pg19/whole").exists()


def test_an_interrupted_download_keeps_what_has_arrived(bucket, tmp_path):
    absent = bucket.pages.pop("train/23.txt")
    with pytest.raises(DataMissing, match=r"train/23\.txt.*cannot be downloaded"):
        PG19.prepare(SMALL, root=tmp_path, progress=False)
    bucket.pages["train/23.txt"] = absent
    bucket.seen.clear()
    PG19.prepare(SMALL, root=tmp_path, progress=False)
    asked = [path for verb, path, _ in bucket.seen if verb == "GET"]
    assert "/train/23.txt" in asked
    assert "/train/7.txt" not in asked


@pytest.mark.parametrize("content", [b"id,title\n", b"7,a\n,b\n", b'7,"open\n'])
def test_a_list_of_books_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "metadata.csv"
    path.write_bytes(content)
    if content.startswith(b'7,"'):
        assert pg19._read_metadata(path) == [7]
        return
    with pytest.raises(CorruptFile, match="expected the number of a book first"):
        pg19._read_metadata(path)


# ------------------------------------------------------------------------------------------------------ the real thing


def test_the_published_digests_are_of_150_books_and_add_up():
    table = digests.published("pg19")
    assert {split: len(books) for split, books in table.items()} == {"valid": 50, "test": 100}
    assert {split: sum(one.size for one in books.values()) for split, books in table.items()} == {
        split: pg19.TEXT_BYTES[split] for split in ("valid", "test")
    }
    assert sum(pg19.TEXT_BYTES.values()) == 11_739_657_956


@pytest.mark.full
def test_real_books_become_streams_and_back(reference, tmp_path):
    folder = reference("pg19")
    data = pg19.Data(vocabulary=4_096, train=6)
    splits = PG19.prepare(data, root=tmp_path, source=folder)
    assert {split: len(numbers) for split, numbers in splits.manifest["books"].items()} == {
        "train": 6,
        "valid": 2,
        "test": 4,
    }
    first = splits.manifest["books"]["train"][0]
    text = lzma.decompress((folder / f"train/{first}.txt.xz").read_bytes()).decode()
    wanted = "".join(f"{line.strip()}\n" for line in text.split("\n"))
    found = pg19.decode(PG19.status(data, root=tmp_path).folder, splits.train.tokens[:60_000])
    assert found[:50_000] == wanted[:50_000]
    assert all(len(getattr(splits, split)) > 1 for split in SPLITS)
