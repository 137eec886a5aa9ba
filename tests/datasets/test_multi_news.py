"""Multi-News: every layout gives the same texts, tokens decode to them, and errors name what is wrong with a file."""

import hashlib
import json
import lzma
from dataclasses import replace

import numpy as np
import pytest

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import bpe, get, multi_news
from longspan.datasets.multi_news import Data
from longspan.datasets.standins.events import make_cluster
from tests.loopback import Page, serving

ODD = ["plain", "caf\u00e9\u2028", "a\ttab", "next\x85line", 'a "quote"', "</s>"]


def cluster(split, number):
    """Articles with the oddities of the files: blanks, empty articles, line breaks, odd characters."""
    articles = [f"{split} {number} first {ODD[number % len(ODD)]}.\n\nMore.", "", f"  second of {number}  "]
    return (articles[:1] if number % 3 == 0 else articles), f"Summary {number} of {split}\n{ODD[number % len(ODD)]}!"


COUNTS = {"train": 30, "val": 7, "test": 9}
CLUSTERS = {split: [cluster(split, number) for number in range(count)] for split, count in COUNTS.items()}
WANTED = {
    split: [(" ||||| ".join(a.strip() for a in articles if a.strip()), summary) for articles, summary in rows]
    for split, rows in CLUSTERS.items()
}
SMALL = Data(source=40, target=20, size=300)


def line_files():
    """As published."""
    written = {}
    for split, rows in CLUSTERS.items():
        articles = "".join(" ||||| ".join(a).replace("\n", "NEWLINE_CHAR") + "\n" for a, _ in rows)
        summaries = "".join(" " + summary.replace("\n", "NEWLINE_CHAR") + " \n" for _, summary in rows)
        written |= {f"{split}.src.cleaned": articles.encode(), f"{split}.tgt": summaries.encode()}
    return written


def write_lines(place):
    for name, content in line_files().items():
        (place / name).write_bytes(content)
    return place


def write_uncleaned(place):
    for file in list(write_lines(place).iterdir()):
        file.rename(file.with_name(file.name.replace(".cleaned", "")))
    return place


def write_nested(place):
    (place / "data").mkdir()
    write_lines(place / "data")
    return place


def json_lines(split):
    rows = [
        {"id": str(number), "documents": [a.replace("\n", "NEWLINE_CHAR") for a in articles], "summary": summary}
        for number, (articles, summary) in enumerate(CLUSTERS[split])
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_json(place):
    for split, name in (("train", "train"), ("val", "validation"), ("test", "test")):
        (place / f"{name}.jsonl").write_bytes(json_lines(split))
    return place


def write_xz(place):
    for split in CLUSTERS:
        (place / f"{split}.jsonl.xz").write_bytes(lzma.compress(json_lines(split)))
    return place


def texts(split):
    return [tuple(text.tobytes().decode() for text in split.example(i)) for i in range(len(split))]


# ------------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("write", [write_lines, write_uncleaned, write_nested, write_json, write_xz])
def test_every_layout_gives_the_same_texts(write, tmp_path):
    (tmp_path / "files").mkdir()
    splits = get("multi_news").import_from(write(tmp_path / "files"), SMALL, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert splits.counts == {"train": 30, "valid": 7, "test": 9}
    for name, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        assert texts(getattr(splits, name)) == WANTED[split]
    assert get("multi_news").verify(SMALL, root=tmp_path / "data") == []


@pytest.fixture
def imported(tmp_path):
    (tmp_path / "files").mkdir()
    root = tmp_path / "data"
    get("multi_news").import_from(write_lines(tmp_path / "files"), SMALL, root=root)
    return root


def test_published_files_are_downloaded_verified_and_marked_official(tmp_path, monkeypatch):
    files = line_files()
    sources = tuple(
        replace(file, size=len(files[file.filename]), sha256=hashlib.sha256(files[file.filename]).hexdigest())
        for file in multi_news.FILES
    )
    monkeypatch.setattr(multi_news, "FILES", sources)
    monkeypatch.setattr(multi_news.MultiNews, "sizes", {"train": 30, "valid": 7, "test": 9})
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    pages = {name: Page(content) for name, content in files.items()}
    pages["train.src.cleaned"].drops = [100]
    with serving(pages) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        splits = get("multi_news").prepare(SMALL, root=tmp_path, progress=False)
        asked = len(server.seen)
        again = get("multi_news").prepare(SMALL, root=tmp_path, progress=False)
        assert len(server.seen) == asked, "what is there is not downloaded again"
    assert splits.variant == again.variant == "official"
    assert splits.sha256 == again.sha256
    assert len(splits.test) == 9


def test_a_download_that_is_another_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    with serving({name: Page(content) for name, content in line_files().items()}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        with pytest.raises(CorruptFile, match=r"train.src.cleaned should have 547,512,283 bytes"):
            get("multi_news").prepare(SMALL, root=tmp_path, progress=False)


BROKEN = {
    "no summaries": ("train.tgt", None, DataMissing, "has files of Multi-News, but none for train"),
    "fewer summaries": ("val.tgt", b"one\ntwo\n", CorruptFile, r"val.src.cleaned, line 3 has no line in val.tgt"),
    "more summaries": ("val.tgt", b"x\n" * 8, CorruptFile, r"val.tgt, line 8 has no line in val.src.cleaned"),
    "not UTF-8": ("test.tgt", b"\xff\n" * 9, CorruptFile, "test.tgt, line 1: the text is not UTF-8"),
    "empty": ("test.src.cleaned", b"", CorruptFile, "test.tgt, line 1 has no line"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_are_not_what_they_should_be_are_named(what, tmp_path):
    name, content, error, sentence = BROKEN[what]
    write_lines(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=sentence):
        get("multi_news").import_from(tmp_path, SMALL, root=tmp_path / "data")
    assert not get("multi_news").status(SMALL, root=tmp_path / "data").ready, "half a corpus is none"


@pytest.mark.parametrize(
    "line, sentence",
    [
        (b"{", "test.jsonl, line 1: not readable JSON"),
        (b'["documents"]', r"expected documents \(a list of texts\) and summary"),
        (b'{"documents": "one", "summary": "s"}', "expected documents"),
        (b'{"documents": ["one"]}', "expected documents"),
    ],
)
def test_lines_that_are_no_clusters_are_named(line, sentence, tmp_path):
    write_json(tmp_path)
    (tmp_path / "test.jsonl").write_bytes(line + b"\n")
    with pytest.raises(CorruptFile, match=sentence):
        get("multi_news").import_from(tmp_path, SMALL, root=tmp_path / "data")


def test_a_folder_without_the_corpus_says_what_was_looked_for(tmp_path):
    with pytest.raises(DataMissing, match=r"neither train, val and test as .src"):
        get("multi_news").import_from(tmp_path, SMALL, root=tmp_path / "data")
    with pytest.raises(DataMissing, match="longspan data prepare multi_news"):
        get("multi_news").load(SMALL, root=tmp_path / "data")


# -------------------------------------------------------------------------------------------------------------- tokens


def test_tokens_say_what_the_texts_say_between_begin_and_end(imported):
    data = replace(SMALL, source=10_000, target=10_000)
    for split in vars_of(get("multi_news").load(data, root=imported)):
        for i, (articles, summary) in enumerate(texts(split)):
            source, target = split.ids.example(i)
            assert source[-1] == target[-1] == split.vocabulary.end
            assert source[0] == target[0] == split.vocabulary.begin
            assert split.vocabulary.text(source) == articles
            assert split.vocabulary.text(target) == summary == split.summary(i)


def vars_of(splits):
    return [splits.train, splits.valid, splits.test]


def test_words_of_long_texts_are_cut_and_their_end_token_stays(imported):
    whole = get("multi_news").load(replace(SMALL, source=10_000, target=10_000), root=imported)
    cut = get("multi_news").load(replace(SMALL, source=5, target=3), root=imported)
    for a, b in zip(vars_of(whole), vars_of(cut), strict=True):
        for i in range(len(a)):
            for long, short, length in zip(a.ids.example(i), b.ids.example(i), (5, 4), strict=True):
                assert short.tolist() == [*long[: length - 1], a.vocabulary.end]
            assert b.summary(i) == a.summary(i), "the score is against all of the summary"


def test_paragen_has_a_second_end_token_after_articles_and_long_texts_have_none(imported):
    paragen = replace(SMALL, layout="paragen")
    whole = get("multi_news").load(replace(paragen, source=10_000, target=10_000), root=imported)
    begin, end = whole.train.vocabulary.begin, whole.train.vocabulary.end
    for split in vars_of(whole):
        for i, (articles, summary) in enumerate(texts(split)):
            source, target = split.ids.example(i)
            assert (source[0], target[0]) == (begin, begin)
            assert (source[-2:].tolist(), (source == end).sum()) == ([end, end], 2)
            assert (target[-1], (target == end).sum()) == (end, 1)
            assert (split.vocabulary.text(source), split.vocabulary.text(target)) == (articles, summary)


def test_long_texts_of_paragen_are_cut_and_lose_their_end_token(imported):
    paragen = replace(SMALL, layout="paragen")
    whole = get("multi_news").load(replace(paragen, source=10_000, target=10_000), root=imported)
    cut = get("multi_news").load(replace(paragen, source=5, target=3), root=imported)
    assert whole.sha256 != cut.sha256
    for a, b in zip(vars_of(whole), vars_of(cut), strict=True):
        assert b.ids.lengths.tolist() == [[5, 4]] * len(b), "the begin token is not counted"
        for i in range(len(a)):
            assert [long[:n].tolist() for long, n in zip(a.ids.example(i), (5, 4), strict=True)] == [
                short.tolist() for short in b.ids.example(i)
            ]
            assert b.summary(i) == a.summary(i), "the score is against all of the summary"


def test_tokens_are_made_once_and_the_same_everywhere(imported, tmp_path, monkeypatch):
    first = get("multi_news").load(SMALL, root=imported)
    monkeypatch.setattr(bpe, "train", None)  # no longer needed
    assert get("multi_news").load(SMALL, root=imported).sha256 == first.sha256
    monkeypatch.undo()
    elsewhere = get("multi_news").import_from(tmp_path / "files", SMALL, root=tmp_path / "elsewhere")
    assert elsewhere.sha256 == first.sha256
    assert first.manifest["vocabulary"] == {"name": "own", "entries": len(first.train.vocabulary)}


def test_fewer_pairs_lie_at_equal_distances(imported):
    splits = get("multi_news").load(replace(SMALL, train=10, valid=100), root=imported)
    assert texts(splits.train) == WANTED["train"][::3]
    assert splits.counts == {"train": 10, "valid": 7, "test": 9}


def test_damaged_tokens_are_found_out(imported):
    splits = get("multi_news").load(SMALL, root=imported)
    (file,) = (imported / "multi_news").glob("own-*/test.tokens.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert len(splits.test) == 9
    (problem,) = get("multi_news").verify(SMALL, root=imported)
    assert "test.tokens.npy has changed since it was written" in problem


# -------------------------------------------------------------------------------------------------------- vocabularies


def test_barts_vocabulary_is_taken_from_the_users_files_or_asked_for(imported):
    coder = bpe.train([text for pair in WANTED["train"] for text in pair], 290, special=bpe.SPECIALS)
    data = replace(SMALL, vocabulary="bart-base", size=len(coder))
    with pytest.raises(
        DataMissing, match=r"tokenizers/bart-base has neither vocab.json and merges.txt.* put its files"
    ):
        get("multi_news").load(data, root=imported)
    place = get("multi_news").vocabulary_folder(imported)
    coder.save(place)
    splits = get("multi_news").load(data, root=imported)
    assert splits.train.vocabulary == coder.vocabulary
    assert splits.manifest["vocabulary"]["name"] == "bart-base"
    with pytest.raises(UsageError, match=r"size=50,265, but the vocabulary in .* has 290"):
        get("multi_news").load(replace(data, size=50_265), root=imported)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"source": 0}, "2 tokens or more and summaries to 1, got source=0"),
        ({"vocabulary": "gpt2"}, "'own' or 'bart-base', got 'gpt2'"),
        ({"layout": "cut"}, "layout is 'whole' or 'paragen', got 'cut'"),
        ({"size": 100}, "260 to 65,536 entries, got size=100"),
        ({"test": 0}, "at least 1 example"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        Data(**changes)


# ----------------------------------------------------------------------------------------------------------- stand-ins


def test_stand_ins_name_every_fact_of_the_summary_in_some_article(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(100):
        reports, summary = make_cluster(rng)
        facts = {word.strip(",.") for word in summary.split()[1:]} - {"in", "on", "hurt", "people", "mayor", "said"}
        assert len(facts) == 5
        assert all(fact in " ".join(reports) for fact in facts)
        assert 2 <= len(reports) <= 3


def test_stand_ins_are_marked_the_same_every_time_and_barred_by_real(tmp_path):
    data = replace(SMALL, train=20, valid=5, test=5, standin=True)
    one, other = (get("multi_news").load(data, root=tmp_path / name) for name in "ab")
    assert one.variant == "standin"
    assert one.sha256 == other.sha256
    assert texts(one.test) == texts(other.test)
    assert one.counts == {"train": 20, "valid": 5, "test": 5}
    assert not {tuple(row) for row in texts(one.train)} & {tuple(row) for row in texts(one.test)}
    with pytest.raises(DataMissing, match="Multi-News is not in"):
        get("multi_news").load(data, root=tmp_path, real=True)
    (sample,) = get("multi_news").samples(data, count=1)
    assert " in short\nA " in sample.content


# ---------------------------------------------------------------------------------------------------------------- real


def test_real_clusters_are_read_and_come_back_from_their_tokens(reference, tmp_path):
    content = lzma.decompress(reference("multi_news/test_200.jsonl.xz").read_bytes())
    lines = content.splitlines(keepends=True)[:30]
    for name, part in (("train", lines[:20]), ("val", lines[20:25]), ("test", lines[25:])):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(part))
    splits = get("multi_news").import_from(tmp_path, Data(size=4_000), root=tmp_path / "data")
    assert splits.counts == {"train": 20, "valid": 5, "test": 5}
    for split in vars_of(splits):
        assert split.ids.lengths.max(axis=0)[0] <= 4_096
        for i, (articles, summary) in enumerate(texts(split)):
            assert "NEWLINE_CHAR" not in articles + summary
            source, target = split.ids.example(i)
            assert articles.startswith(split.vocabulary.text(source).rstrip("\ufffd"))
            assert summary.startswith(split.vocabulary.text(target).rstrip("\ufffd"))
