"""Downloads: resumed where they stopped, verified before use, and every failure an error that says what to do."""

import base64
import contextlib
import hashlib
import json
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core import download, remote
from longspan.core.download import Source, fetch
from longspan.core.errors import CorruptFile, DataMissing, StorageError, UsageError
from tests.loopback import Page, serving

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv(remote.MIRROR, raising=False)


@pytest.fixture
def server():
    with serving({"x.tar.gz": Page(CONTENT)}) as running:
        yield running


def source(server, **known) -> Source:
    return Source(f"{server.url}/x.tar.gz", "x.tar.gz", dataset="listops", **known)


def test_a_download_is_asked_for_first_then_fetched_once_and_found_again(server, tmp_path):
    known = source(server, size=len(CONTENT), md5=MD5, sha256=SHA256)
    path = fetch(known, tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert [verb for verb, *_ in server.seen] == ["HEAD", "GET"]
    assert fetch(known, tmp_path / "new") == path
    assert len(server.seen) == 2
    assert sorted(file.name for file in path.parent.iterdir() if file.name[0] != ".") == [
        "x.tar.gz",
        "x.tar.gz.lock.json",
    ]


def test_a_connection_that_drops_is_taken_up_at_the_byte_where_it_ended(server, tmp_path):
    server.pages["x.tar.gz"].drops = [100_000, 50_000, 0]
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked() == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-"]


def test_a_server_that_never_gets_further_ends_with_a_sentence_and_the_next_call_resumes(server, tmp_path):
    server.pages["x.tar.gz"].drops = [120_000, *[0] * 20]
    with pytest.raises(DataMissing, match=r"x\.tar\.gz .* 4 times in a row after 120,000 bytes.*data import listops"):
        fetch(source(server, md5=MD5), tmp_path)
    assert not (tmp_path / "x.tar.gz").exists()
    assert (tmp_path / "x.tar.gz.part").read_bytes() == CONTENT[:120_000]
    server.pages["x.tar.gz"].drops = []
    server.seen.clear()
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked() == ["bytes=120000-"]
    assert not list(tmp_path.glob("*.part*"))


@contextlib.contextmanager
def pausing_is(what):
    """Run `what` in the pause after a dropped connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote.time, "sleep", what)
        yield


def interrupted(server, folder, size, **known):
    """A download interrupted by the user after `size` bytes."""

    def stop(seconds):
        raise KeyboardInterrupt

    server.pages["x.tar.gz"].drops = [size]
    with pausing_is(stop), pytest.raises(KeyboardInterrupt):
        fetch(source(server, **known), folder)
    server.pages["x.tar.gz"].drops = []
    server.seen.clear()
    assert (folder / "x.tar.gz.part").stat().st_size == size


def test_stopping_by_hand_keeps_the_part_which_never_counts_as_the_file(server, tmp_path):
    interrupted(server, tmp_path, 70_000)
    assert not (tmp_path / "x.tar.gz").exists()
    fetch(source(server), tmp_path)
    assert server.asked() == ["bytes=70000-"]


def test_a_server_that_ignores_ranges_is_read_from_the_start_again(server, tmp_path):
    server.pages["x.tar.gz"].ranges = False
    interrupted(server, tmp_path, 70_000)
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked() == ["bytes=70000-"]


def test_a_server_that_ignores_ranges_after_a_drop_is_read_up_to_the_known_byte(server, tmp_path):
    server.pages["x.tar.gz"].ranges = False
    server.pages["x.tar.gz"].drops = [70_000]
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked() == [None, "bytes=70000-"]


def test_a_part_of_another_edition_of_the_file_is_not_continued(server, tmp_path):
    interrupted(server, tmp_path, 70_000)
    server.pages["x.tar.gz"] = Page(CONTENT[::-1], etag='"two"')
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT[::-1]
    assert server.asked() == [None]


def test_a_file_that_changes_while_it_is_read_is_refused(server, tmp_path):
    page = server.pages["x.tar.gz"]
    page.drops = [70_000]

    def change(seconds):
        page.content, page.etag = CONTENT[::-1], '"two"'

    with pausing_is(change), pytest.raises(DataMissing, match="changed on the server"):
        fetch(source(server), tmp_path)


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_that_is_complete_or_too_long_asks_for_no_impossible_range(server, tmp_path, size):
    interrupted(server, tmp_path, 70_000)
    (tmp_path / "x.tar.gz.part").write_bytes((CONTENT + b"extra")[:size])
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT
    assert server.asked() == ([] if size == len(CONTENT) else [None])


def test_a_range_that_cannot_be_met_starts_anew(server):
    known = remote.Remote(source(server), None)
    with remote.Body(known, len(CONTENT) + 7) as body:
        assert body.position == 0
        assert body.read() == CONTENT
    assert server.asked() == [f"bytes={len(CONTENT) + 7}-", None]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 4_000), max_size=3), st.booleans(), st.integers(1, 5_000))
def test_whatever_drops_the_bytes_arrive_in_order(drops, ranges, piece):
    content = CONTENT[:9_000]
    pages = {"x.tar.gz": Page(content, drops=[each or 1 for each in drops], ranges=ranges)}
    with serving(pages) as server, remote.Body(remote.ask(source(server))) as body:
        assert b"".join(iter(lambda: body.read(piece), b"")) == content


@pytest.mark.parametrize("name", ["md5", "sha256"])
def test_a_wrong_digest_names_both_and_the_bad_file_is_set_aside(server, tmp_path, name):
    with pytest.raises(CorruptFile) as raised:
        fetch(source(server, **{name: "0" * 32}), tmp_path)
    for words in ("0" * 32, {"md5": MD5, "sha256": SHA256}[name], f"{server.url}/x.tar.gz", "x.tar.gz.bad"):
        assert words in str(raised.value)
    assert sorted(file.name for file in tmp_path.glob("x.tar.gz*")) == ["x.tar.gz.bad"]
    server.seen.clear()
    fetch(source(server), tmp_path)
    assert server.asked() == [None]


def test_a_size_that_differs_is_refused_before_the_first_byte(server, tmp_path):
    with pytest.raises(CorruptFile, match=r"should have 5 bytes, .* offers 300,000"):
        fetch(source(server, size=5), tmp_path)
    assert server.asked() == []


def google(**digests):
    return {"x-goog-hash": ",".join(f"{name}={base64.b64encode(value).decode()}" for name, value in digests.items())}


def test_what_google_announces_is_compared_where_nobody_published_a_digest(server, tmp_path):
    right = hashlib.md5(CONTENT).digest()
    server.pages["x.tar.gz"].headers = google(md5=right)
    fetch(source(server), tmp_path / "right")
    server.pages["x.tar.gz"].headers = google(md5=right[::-1])
    sentence = f"md5 {right[::-1].hex()}, announced by the server, found md5 {right.hex()}"
    with pytest.raises(CorruptFile, match=sentence):
        fetch(source(server), tmp_path / "wrong")


def test_digests_of_bytes_that_are_stored_otherwise_than_sent_are_not_compared(server, tmp_path):
    server.pages["x.tar.gz"].headers = google(md5=b"0" * 16) | {"x-goog-stored-content-encoding": "gzip"}
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT


def test_later_downloads_must_agree_with_the_first(server, tmp_path):
    fetch(source(server), tmp_path).unlink()
    assert json.loads((tmp_path / "x.tar.gz.lock.json").read_text())["sha256"] == SHA256
    server.pages["x.tar.gz"] = Page(CONTENT[::-1])
    with pytest.raises(CorruptFile, match=r"seen at the first download \(x\.tar\.gz\.lock\.json"):
        fetch(source(server), tmp_path)
    (tmp_path / "x.tar.gz.lock.json").unlink()
    fetch(source(server), tmp_path)


def test_a_file_placed_by_hand_is_verified_too(server, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(CorruptFile, match="remove it and run"):
        fetch(source(server, md5=MD5), tmp_path)
    (tmp_path / "x.tar.gz").write_bytes(CONTENT)
    fetch(source(server, md5=MD5), tmp_path)
    assert server.seen == []


def test_a_disk_without_room_is_told_before_the_first_byte(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000))
    with pytest.raises(StorageError, match=r"x\.tar\.gz needs 300\.0 kB in .*, where 2\.0 kB are free"):
        fetch(source(server), tmp_path)
    assert server.asked() == []


@pytest.mark.parametrize("code", [403, 404, 410])
def test_a_refusal_is_one_sentence_with_the_address_the_size_and_the_way_by_hand(server, tmp_path, code):
    server.pages["x.tar.gz"].status = [code] * 9
    server.pages["x.tar.gz"].head = False
    with pytest.raises(DataMissing) as raised:
        fetch(source(server, size=84_125_825), tmp_path)
    assert raised.value.exit_code == 3
    for words in (f"{server.url}/x.tar.gz", "84.1 MB", str(code), "longspan data import listops PATH"):
        assert words in str(raised.value)
    assert len(server.asked()) == 1


def test_an_absent_file_is_told_from_the_first_request(server, tmp_path):
    with pytest.raises(DataMissing, match="404"):
        fetch(Source(f"{server.url}/y.tar.gz", "y.tar.gz"), tmp_path)
    assert [verb for verb, *_ in server.seen] == ["HEAD"]


def test_a_server_that_asks_for_patience_is_asked_again(server, tmp_path):
    server.pages["x.tar.gz"].status = [503, 429]
    fetch(source(server, md5=MD5), tmp_path)
    assert len(server.asked()) == 3


def test_a_server_without_head_is_asked_by_a_get(server, tmp_path):
    server.pages["x.tar.gz"].head = False
    assert fetch(source(server, md5=MD5), tmp_path).read_bytes() == CONTENT


def test_a_server_that_does_not_tell_the_length_is_read_to_the_end(server, tmp_path):
    page = server.pages["x.tar.gz"]
    page.length = False
    assert fetch(source(server), tmp_path / "whole").read_bytes() == CONTENT
    page.drops = [70_000]
    with pytest.raises(CorruptFile, match=f"md5 {MD5}"):
        fetch(source(server, md5=MD5), tmp_path / "cut")
    page.drops, page.headers = [70_000], {"x-goog-stored-content-length": str(len(CONTENT))}
    server.seen.clear()
    assert fetch(source(server), tmp_path / "stored").read_bytes() == CONTENT
    assert server.asked() == [None, "bytes=70000-"]


def test_no_network_is_told_at_once(tmp_path):
    with serving({}) as gone:
        address = gone.url
    with pytest.raises(DataMissing, match=r"the server cannot be reached.*data import"):
        fetch(Source(f"{address}/x.zip", "x.zip"), tmp_path)
    with pytest.raises(DataMissing, match="the server cannot be reached"):
        fetch(Source("http://no-such-host.invalid/x.zip", "x.zip"), tmp_path)


@pytest.mark.parametrize("told", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_web_page_in_place_of_an_archive_is_recognised(server, tmp_path, told):
    server.pages["x.tar.gz"] = Page(b"\n<!DOCTYPE html><title>Quota exceeded</title>", {"Content-Type": told})
    with pytest.raises(DataMissing, match="a web page in its place"):
        fetch(source(server), tmp_path)
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_mirror_takes_the_place_of_the_address(server, tmp_path, monkeypatch):
    monkeypatch.setenv(remote.MIRROR, f"{server.url}/")
    far = Source("https://far.invalid/deep/x.tar.gz", "x.tar.gz", md5=MD5)
    assert fetch(far, tmp_path).read_bytes() == CONTENT
    monkeypatch.setenv(remote.MIRROR, str(tmp_path))
    with pytest.raises(UsageError, match="should start with http"):
        fetch(far, tmp_path / "other")


def test_the_licence_is_shown_once_before_the_first_byte(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(remote, "_announced", set())
    for folder in ("a", "b"):
        fetch(source(server, licence="for research only"), tmp_path / folder)
    assert capsys.readouterr().err.count("listops: for research only") == 1


def test_two_that_want_the_same_file_write_it_once(server, tmp_path):
    paths = []
    both = [threading.Thread(target=lambda: paths.append(fetch(source(server, md5=MD5), tmp_path))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert len(paths) == 2
    assert server.asked() == [None]


def test_a_bar_says_nothing_where_there_is_no_terminal(capsys):
    with download.transfer_bar("x", 5, show=True) as heard:
        heard(5)
    assert capsys.readouterr() == ("", "")
