"""IMDb: every layout of the reviews gives the same bytes in one order, and errors name what is wrong with a file."""

import csv
import gzip
import hashlib
import lzma
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing
from longspan.datasets import get, imdb
from longspan.datasets.standins.reviews import BAD, GOOD, make_review
from tests.core.test_archive import tarred
from tests.loopback import Page, serving

ODD = ['a "quoted" word', "a tab\tin it", "next line\x85here", "caf\u00e9 <br /><br />", "'", "form\x0cfeed\u2028"]
REVIEWS = {  # (split, label) -> number -> text; numbers are unordered and must be sorted as numbers, 9 before 10
    (split, label): {
        number: f"{split} {label} {number} {ODD[number % len(ODD)]}" for number in (10, 9, *range(11, 49), 0)
    }
    for split in ("train", "test")
    for label in (0, 1)
}
WANTED = {
    split: [
        (label, REVIEWS[split, label][number].encode()) for label in (0, 1) for number in sorted(REVIEWS[split, label])
    ]
    for split in ("train", "test")
}


def files() -> dict[str, bytes]:
    """The files of the archive, including unrelated ones."""
    reviews = {
        f"aclImdb/{split}/{('neg', 'pos')[label]}/{number}_{2 + 6 * label}.txt": text.encode()
        for (split, label), texts in REVIEWS.items()
        for number, text in texts.items()
    }
    others = {f"aclImdb/train/unsup/{number}_0.txt": b"not labelled" for number in range(5)}
    return {"aclImdb/README": b"read me", "aclImdb/imdb.vocab": b"the\n"} | reviews | others


def write_folder(place):
    for name, content in files().items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def write_unnested(place):
    return write_folder(place) / "aclImdb"


def write_archive(place):
    (place / "aclImdb_v1.tar.gz").write_bytes(gzip.compress(tarred(files())))
    return place / "aclImdb_v1.tar.gz"


def write_folder_of_archive(place):
    return write_archive(place).parent


def table(split: str) -> bytes:
    rows = [
        (label, number, text) for (part, label), of in REVIEWS.items() if part == split for number, text in of.items()
    ]
    return "".join(f"{label}\t{number}\t{2 + 6 * label}\t{text}\n" for label, number, text in rows).encode()


def write_tsv(place):
    for split in ("train", "test"):
        (place / f"{split}.tsv").write_bytes(table(split))
    return place


def write_xz(place):
    for split in ("train", "test"):
        (place / f"{split}.tsv.xz").write_bytes(lzma.compress(table(split)))
    return place


def write_csv(place):
    """Without numbers, rows keep their order within a class."""
    for split, rows in WANTED.items():
        with (place / f"{split}.csv").open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(["label", "text"])
            writer.writerows((("neg", "pos")[label], text.decode()) for label, text in rows[41:] + rows[:41])
    return place


LAYOUTS = [write_folder, write_unnested, write_archive, write_folder_of_archive, write_tsv, write_xz, write_csv]
ALL = imdb.Data(validation="test")


def contents(split) -> list[tuple[int, bytes]]:
    return [(int(split.labels[i]), split.example(i).tobytes()) for i in range(len(split))]


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_gives_negatives_by_number_then_positives_by_number(write, tmp_path):
    (tmp_path / "files").mkdir()
    splits = get("imdb").import_from(write(tmp_path / "files"), ALL, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert contents(splits.train) == WANTED["train"]
    assert contents(splits.test) == contents(splits.valid) == WANTED["test"]
    assert splits.manifest["label_counts"] == {split: {"0": 41, "1": 41} for split in ("train", "test")}
    assert not splits.manifest["complete"]
    assert get("imdb").verify(ALL, root=tmp_path / "data") == []


@pytest.fixture
def small_official(monkeypatch):
    """A small stand-in for the published archive; returns its bytes."""
    content = gzip.compress(tarred(files()))
    digests = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(imdb, "ARCHIVE", replace(imdb.ARCHIVE, size=len(content), **digests))
    monkeypatch.setattr(imdb, "PER_CLASS", 41)
    sums = Counter()
    for split, rows in WANTED.items():
        for label, text in rows:
            sums[split, label] += len(text)
    monkeypatch.setattr(imdb, "TEXT_BYTES", dict(sums))
    monkeypatch.setattr(imdb, "published", lambda name: {"valid": np.array([0, 50])})
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    return content


def test_the_official_archive_is_downloaded_verified_and_marked_official(small_official, tmp_path, monkeypatch, capsys):
    with serving({"aclImdb_v1.tar.gz": Page(small_official, drops=[1_000])}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        splits = get("imdb").prepare(root=tmp_path, progress=False)
        asked = len(server.seen)
        again = get("imdb").prepare(root=tmp_path, progress=False)
        assert len(server.seen) == asked, "what is there is not downloaded again"
    assert splits.variant == again.variant == "official"
    assert splits.manifest["complete"]
    assert contents(splits.test) == WANTED["test"]
    assert contents(splits.valid) == [WANTED["train"][0], WANTED["train"][50]]
    assert contents(splits.train) == [row for i, row in enumerate(WANTED["train"]) if i not in (0, 50)]


def test_an_archive_of_the_user_is_official_only_with_the_published_digest(small_official, tmp_path):
    (tmp_path / "mine.tar.gz").write_bytes(small_official)
    assert get("imdb").import_from(tmp_path / "mine.tar.gz", ALL, root=tmp_path / "one").variant == "official"
    (tmp_path / "mine.tar.gz").write_bytes(gzip.compress(gzip.decompress(small_official), 1))
    assert get("imdb").import_from(tmp_path / "mine.tar.gz", ALL, root=tmp_path / "two").variant == "imported"


def test_another_file_at_the_official_address_is_refused(small_official, tmp_path, monkeypatch):
    other = bytes(reversed(small_official))
    with serving({"aclImdb_v1.tar.gz": Page(other)}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        with pytest.raises(CorruptFile, match=imdb.ARCHIVE.md5):
            get("imdb").prepare(root=tmp_path, progress=False)
    assert not (tmp_path / "imdb").exists()


def test_the_whole_corpus_has_the_published_sums_and_the_published_split(reference, tmp_path):
    splits = get("imdb").import_from(reference("imdb/train.tsv.xz").parent, root=tmp_path)
    assert splits.counts == {"train": 22_500, "valid": 2_500, "test": 25_000}
    assert splits.manifest["complete"]
    assert splits.valid.labels.sum() == 1_250
    assert splits.train.labels.sum() == 11_250
    longest = get("imdb").load(imdb.Data(length=20_000), root=tmp_path)
    every = np.concatenate([getattr(longest, name).lengths for name in ("train", "valid", "test")])
    assert (every.max(), every.min()) == (13_704, 32)
    assert not set(longest.train.starts.tolist()) & set(longest.valid.starts.tolist())
    few = get("imdb").load(imdb.Data(train=1_000, valid=100, test=500), root=tmp_path)
    assert (few.train.labels.sum(), few.valid.labels.sum(), few.test.labels.sum()) == (500, 50, 250)


@given(length=st.integers(1, 60))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shorter_length_is_the_beginning_of_every_text(length, tmp_path):
    if not (tmp_path / "data").exists():
        get("imdb").import_from(write_tsv(tmp_path), ALL, root=tmp_path / "data")
    splits = get("imdb").load(replace(ALL, length=length), root=tmp_path / "data")
    assert contents(splits.train) == [(label, text[:length]) for label, text in WANTED["train"]]


def test_a_tenth_of_each_class_is_held_out_of_a_part_of_the_corpus(tmp_path):
    splits = get("imdb").import_from(write_tsv(tmp_path), root=tmp_path / "data")
    assert splits.counts == {"train": 74, "valid": 8, "test": 82}
    assert splits.valid.labels.tolist() == [0] * 4 + [1] * 4
    assert sorted(contents(splits.train) + contents(splits.valid)) == sorted(WANTED["train"])


text = st.text(
    st.characters(exclude_characters="\n", codec="utf-8") | st.sampled_from("\t\x85\"'\r\x1c\u2028"), min_size=1
)


@given(texts=st.lists(text, min_size=1, max_size=8))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_the_table(texts, tmp_path):
    (tmp_path / "x.tsv").write_bytes("".join(f"1\t{i}\t9\t{text}\n" for i, text in enumerate(texts)).encode())
    assert [review.text.decode() for review in imdb._read_tsv(tmp_path / "x.tsv")] == texts


@pytest.mark.parametrize(
    "line, words",
    [
        (b"2\t1\t9\ttext", "expected label 0 or 1"),
        (b"1\t1\t9", "expected label 0 or 1, number, rating and text"),
        (b"1\tone\t9\ttext", "number"),
        (b"1\t" + b"9" * 5_000 + b"\t9\ttext", "number"),
        (b"1\t1\t9\t", "text"),
        (b"", "expected label"),
        (b"1\t1\t9\tcaf\xe9", "not UTF-8"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(line, words, tmp_path):
    write_tsv(tmp_path)
    good = (tmp_path / "train.tsv").read_bytes()
    (tmp_path / "train.tsv").write_bytes(good + line + b"\n")
    with pytest.raises(CorruptFile, match=rf"train\.tsv, line 83: .*{words}"):
        get("imdb").import_from(tmp_path, ALL, root=tmp_path / "data")
    assert not (tmp_path / "data/imdb/whole").exists()


def test_a_number_that_comes_twice_is_refused(tmp_path):
    write_tsv(tmp_path)
    with (tmp_path / "test.tsv").open("ab") as handle:
        handle.write(b"1\t9\t8\tagain\n")
    with pytest.raises(CorruptFile, match="same number"):
        get("imdb").import_from(tmp_path, ALL, root=tmp_path / "data")


@pytest.mark.parametrize("row", ["text,label\nhello,5\n", "text,score\nhello,1\n", 'text,label\n"hel\x00lo,1\n'])
def test_a_csv_table_of_another_kind_is_refused(row, tmp_path):
    write_csv(tmp_path)
    (tmp_path / "train.csv").write_text(row)
    with pytest.raises(CorruptFile, match=r"train\.csv"):
        get("imdb").import_from(tmp_path, ALL, root=tmp_path / "data")


def test_a_failed_import_leaves_what_was_imported_before(tmp_path):
    before = get("imdb").import_from(write_tsv(tmp_path), ALL, root=tmp_path / "data")
    (tmp_path / "train.tsv").write_bytes(b"nonsense\n")
    with pytest.raises(CorruptFile):
        get("imdb").import_from(tmp_path, ALL, root=tmp_path / "data")
    assert get("imdb").load(ALL, root=tmp_path / "data").sha256 == before.sha256


@pytest.mark.parametrize("name", ["../aclImdb/train/pos/1_9.txt", "/aclImdb/train/pos/1_9.txt"])
def test_an_archive_that_points_outside_is_refused(name, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(tarred(files() | {name: b"hostile"})))
    with pytest.raises(CorruptFile, match="outside the archive"):
        get("imdb").import_from(tmp_path / "x.tar.gz", ALL, root=tmp_path / "data")


def test_an_archive_cut_short_is_refused(tmp_path):
    path = write_archive(tmp_path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CorruptFile, match="damaged or cut short"):
        get("imdb").import_from(path, ALL, root=tmp_path / "data")


def test_an_archive_without_reviews_is_refused(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(tarred({"readme": b"nothing"})))
    with pytest.raises((CorruptFile, DataMissing), match="no reviews"):
        get("imdb").import_from(tmp_path / "x.tar.gz", ALL, root=tmp_path / "data")


@given(st.integers(0, 2**32), st.integers(40, 1_000))
@settings(deadline=None, max_examples=40)
def test_a_made_up_review_is_labelled_by_the_opinions_that_can_be_read_in_it(seed, length):
    """From the text alone: every known word counts, negated after "not"."""
    content, label = make_review(np.random.default_rng(seed), length)
    assert len(content) <= length
    balance = 0
    for turned, word in re.findall(r"(not )?\b([a-z]+)\b", content.decode()):
        mind = (word in GOOD) - (word in BAD)
        balance += -mind if turned else mind
    assert balance != 0
    assert label == int(balance > 0)
