"""AAN: pairs from every layout, texts stored once, and quotes and bytes literals interpreted correctly."""

import gzip
import json
import lzma
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing
from longspan.datasets import aan, get
from longspan.datasets.base import SPLITS
from longspan.datasets.standins.abstracts import FIELDS
from tests.core.test_archive import tarred
from tests.loopback import Page, serving

TEXTS = {
    "A00-1001": "a paper",
    "A00-1002": "with \"quotes and ' too",
    "P01-2003": "long " * 3_000,
    "P01-2004": "next line\x85 and caf\u00e9",
    "W02-3005": "b'not a literal",
}
PAIRS = {  # label, first, second
    "train": [(i % 2, a, b) for i, a in enumerate(TEXTS) for b in TEXTS if a != b],
    "valid": [(0, "A00-1001", "P01-2003"), (1, "W02-3005", "P01-2004")],
    "test": [(1, "P01-2004", "A00-1002"), (0, "A00-1002", "A00-1002"), (1, "P01-2003", "A00-1001")],
}
WORDS = {"train": "train", "valid": "eval", "test": "test"}
WANTED = {
    split: [(label, TEXTS[a].encode()[:10_000], TEXTS[b].encode()[:10_000]) for label, a, b in pairs]
    for split, pairs in PAIRS.items()
}
ROOT = "lra_release/lra_release"
WHOLE = aan.Data(length=10_000)


def five_columns(written=lambda text: text, ending: str = "\n") -> dict[str, bytes]:
    return {
        f"tsv_data/new_aan_pairs.{WORDS[split]}.tsv": "".join(
            f"{label}.0\t{a}\t{b}\t{written(TEXTS[a])}\t{written(TEXTS[b])}{ending}" for label, a, b in pairs
        ).encode()
        for split, pairs in PAIRS.items()
    }


def ids_only(name: str) -> dict[str, bytes]:
    return {
        name.format(WORDS[split]): "".join(f"{label}\t{a}\t{b}\n" for label, a, b in pairs).encode()
        for split, pairs in PAIRS.items()
    }


def jsonl() -> bytes:
    return "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in TEXTS.items()).encode()


def release() -> dict[str, bytes]:
    """The files in reverse order, with many unrelated ones."""
    others = {f"{ROOT}/pathfinder32/curv_baseline/imgs/0/sample_{i}.png": b"x" * 100 for i in range(20)}
    return others | {f"{ROOT}/{name}": content for name, content in reversed(five_columns().items())} | {"last": b""}


def unpack(files: dict[str, bytes], place):
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def packed(place):
    place.mkdir()
    (place / "lra_release.gz").write_bytes(gzip.compress(tarred(release())))
    return place / "lra_release.gz"


LAYOUTS = {
    "release": lambda place: unpack(release(), place),
    "inside the release": lambda place: unpack(release(), place) / "lra_release",
    "tsv_data": lambda place: unpack(five_columns(), place) / "tsv_data",
    "bytes literals": lambda place: unpack(five_columns(lambda text: repr(text.encode())), place),
    "CR LF": lambda place: unpack(five_columns(ending="\r\n"), place),
    "archive": packed,
    "folder of the archive": lambda place: packed(place).parent,
    "ids and jsonl": lambda place: unpack(ids_only("pairs.{}.tsv") | {"texts.jsonl": jsonl()}, place),
    "ids and packed jsonl": lambda place: unpack(
        ids_only("pairs.{}.tsv") | {"texts.jsonl.xz": lzma.compress(jsonl())}, place
    ),
    "official ids and files": lambda place: unpack(
        ids_only("new_aan_pairs.{}.only_ids.tsv") | {f"texts/{id}.txt": text.encode() for id, text in TEXTS.items()},
        place,
    ),
    "files beside the ids": lambda place: unpack(
        ids_only("pairs.{}.tsv") | {f"{id}.txt": text.encode() for id, text in TEXTS.items()}, place
    ),
}


def contents(split) -> list[tuple[int, bytes, bytes]]:
    return [(int(split.labels[i]), *(text.tobytes() for text in split.example(i))) for i in range(len(split))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pairs_and_stores_a_text_once(layout, tmp_path):
    splits = get("aan").import_from(LAYOUTS[layout](tmp_path / "files"), WHOLE, root=tmp_path / "data")
    assert splits.variant == "imported"
    for split in SPLITS:
        assert contents(getattr(splits, split)) == WANTED[split]
    assert splits.manifest["texts"] == len(TEXTS)
    assert len(splits.train.tokens) == sum(min(10_000, len(text.encode())) for text in TEXTS.values())
    assert get("aan").verify(WHOLE, root=tmp_path / "data") == []


@given(length=st.integers(1, 10_000))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shorter_length_is_the_beginning_of_both_texts(length, tmp_path):
    if not (tmp_path / "data").exists():
        get("aan").import_from(LAYOUTS["tsv_data"](tmp_path / "files"), root=tmp_path / "data")
    splits = get("aan").load(aan.Data(length=length), root=tmp_path / "data")
    assert contents(splits.test) == [(label, a[:length], b[:length]) for label, a, b in WANTED["test"]]


def test_fewer_pairs_keep_both_answers(tmp_path):
    LAYOUTS["tsv_data"](tmp_path / "files")
    splits = get("aan").import_from(tmp_path / "files", aan.Data(train=10, valid=2, test=2), root=tmp_path / "data")
    assert splits.counts == {"train": 10, "valid": 2, "test": 2}
    assert splits.train.labels.sum() == 4  # of 20 pairs 8 are linked


def test_the_release_is_read_from_the_network_without_being_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(aan.Aan, "sizes", {split: len(pairs) for split, pairs in PAIRS.items()})
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    content = gzip.compress(tarred(release()))
    with serving({"lra_release.gz": Page(content, drops=[100])}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        splits = get("aan").prepare(WHOLE, root=tmp_path, progress=False)
    assert splits.variant == "official"
    assert splits.manifest["source"]["url"] == aan.RELEASE.url
    assert contents(splits.train) == WANTED["train"]
    assert not list(tmp_path.rglob("*.gz*"))


def test_another_archive_at_the_address_of_the_release_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    with serving({"lra_release.gz": Page(gzip.compress(tarred(release())))}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        with pytest.raises(CorruptFile, match=r"should hold .*147086.* pairs"):
            get("aan").prepare(WHOLE, root=tmp_path, progress=False)
    assert not (tmp_path / "aan/whole").exists()


def test_an_archive_without_the_tables_is_named(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(tarred({"listops-1000/basic_val.tsv": b""})))
    with pytest.raises(DataMissing, match=r"new_aan_pairs\.eval\.tsv"):
        get("aan").import_from(tmp_path / "x.gz", root=tmp_path / "data")


def test_the_reference_pairs_join_ids_and_texts(reference, tmp_path):
    splits = get("aan").import_from(reference("aan/texts.jsonl.xz").parent, WHOLE, root=tmp_path)
    assert splits.counts == {"train": 790, "valid": 116, "test": 244}
    for split in SPLITS:
        assert getattr(splits, split).labels.mean() == 0.5
        assert getattr(splits, split).lengths.max() <= 8_192
    assert splits.manifest["texts"] <= 605


@given(st.binary(max_size=200))
def test_a_bytes_literal_is_what_python_means_by_it(content):
    assert aan.plain(repr(content).encode()) == content


@given(st.text(st.characters(exclude_characters="\\'\"\n", codec="utf-8")).map(str.encode))
def test_a_text_that_is_no_literal_is_left_alone(text):
    assert aan.plain(text) == text
    assert aan.plain(b"b'" + text) == b"b'" + text
    assert aan.plain(b"'" + text + b"'") == b"'" + text + b"'"
    broken = b"b'" + text + rb"\x'"
    assert aan.plain(broken) == broken


field = st.text(
    st.characters(exclude_characters="\t\n\r", codec="utf-8") | st.sampled_from("\x85\"'\u2028"), min_size=1
)


@given(pairs=st.lists(st.tuples(st.booleans(), field, field), min_size=1, max_size=6))
@settings(deadline=None)
def test_any_texts_survive_the_table(pairs):
    rows = [(f"{float(label)}\ta\tb\t{a}\t{b}".encode(), "x, line 1") for label, a, b in pairs]
    assert [(bool(pair.label), pair.first.decode(), pair.second.decode()) for pair in aan._pairs(rows, None)] == pairs


def test_an_empty_text_becomes_one_blank(tmp_path):
    files = five_columns()
    files["tsv_data/new_aan_pairs.test.tsv"] = b"1.0\ta\tb\t\ttext\n"
    splits = get("aan").import_from(unpack(files, tmp_path / "files"), root=tmp_path / "data")
    assert contents(splits.test) == [(1, b" ", b"text")]


@pytest.mark.parametrize(
    "line, words",
    [
        (b"2.0\ta\tb\tone\ttwo", "expected label 0.0 or 1.0"),
        (b"1.0\ta\tb\tone", "found 4 columns"),
        (b"1.0\ta\tb\tone\ttwo\tthree", "found 6 columns"),
        (b"", "found 1 columns"),
        (b"1.0\tA00-1001\tX99-9999", "'X99-9999' has no text"),
        (b"1.0\tA00-1001\t../../secret", "has no text"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(line, words, tmp_path):
    files = ids_only("pairs.{}.tsv") | {f"{id}.txt": text.encode() for id, text in TEXTS.items()}
    files["pairs.eval.tsv"] += line + b"\n"
    unpack(files, tmp_path / "a" / "b")
    (tmp_path / "secret.txt").write_text("not for you")
    with pytest.raises(CorruptFile, match=rf"pairs\.eval\.tsv, line 3: .*{re.escape(words)}"):
        get("aan").import_from(tmp_path / "a" / "b", root=tmp_path / "data")


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"id": 3, "text": "x"}', b'{"id": "x"}', b"[" * 100_000])
def test_a_broken_line_of_texts_is_named(line, tmp_path):
    unpack(ids_only("pairs.{}.tsv") | {"texts.jsonl": jsonl() + line + b"\n"}, tmp_path / "files")
    with pytest.raises(CorruptFile, match=r"texts\.jsonl, line 6: expected"):
        get("aan").import_from(tmp_path / "files", root=tmp_path / "data")


def test_a_split_without_pairs_is_refused(tmp_path):
    files = five_columns() | {"tsv_data/new_aan_pairs.eval.tsv": b""}
    with pytest.raises(CorruptFile, match="no pairs for eval"):
        get("aan").import_from(unpack(files, tmp_path / "files"), root=tmp_path / "data")


def test_made_up_pairs_are_two_texts_and_linked_ones_share_the_terms_of_a_field(tmp_path):
    data = aan.Data(length=300, train=200, valid=20, test=20, standin=True)
    splits = get("aan").load(data, root=tmp_path)
    field_of = {term: field for field, terms in enumerate(FIELDS) for term in terms}

    def field(text: bytes) -> int:
        found = [field_of[word] for word in re.findall(r"[a-z]+", text.decode()) if word in field_of]
        return int(np.bincount(found).argmax()) if found else -1

    assert splits.train.starts.shape == splits.train.stops.shape == (200, 2)
    assert splits.train.lengths.min() > 0
    assert splits.train.lengths.max() <= 300
    right = [(field(a) == field(b)) == bool(label) for label, a, b in contents(splits.train)]
    assert 0.8 < np.mean(right) < 1
    assert all(b"\0" not in text for _, *texts in contents(splits.train) for text in texts)
    shorter = get("aan").load(replace(data, length=50), root=tmp_path)
    assert shorter.train.lengths.max() <= 50


def test_a_pair_is_shown_as_two_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    get("aan").import_from(LAYOUTS["tsv_data"](tmp_path / "files"), aan.Data(length=20))
    sample = get("aan").samples(aan.Data(length=20), 1)[0]
    first, second = sample.content.split("\n    and\n")
    assert (sample.label, first.encode(), second.encode()) in [
        (label, a[:20].decode(errors="replace").encode(), b[:20].decode(errors="replace").encode())
        for label, a, b in WANTED["train"]
    ]
