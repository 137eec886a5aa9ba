"""Downloads from servers that lie, stall or never stop: a clear error, and never a wrong file."""

import hashlib

import numpy as np
import pytest

from longspan.core import remote, request
from longspan.core.download import Source, fetch
from longspan.core.errors import CorruptFile, DataMissing, LongspanError
from tests.fuzz import bad_server
from tests.fuzz.bad_server import head, serving_badly, well

CONTENT = np.random.default_rng(0).bytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv(remote.MIRROR, raising=False)


@pytest.fixture
def server():
    with serving_badly(CONTENT) as running:
        yield running


def source(server, **known) -> Source:
    return Source(f"{server.url}/x.bin", "x.bin", dataset="listops", **known)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


@pytest.mark.parametrize("manner", [bad_server.endless, bad_server.endless_chunks])
def test_a_server_that_never_stops_is_left_at_the_known_size(server, tmp_path, manner):
    server.manners = [manner, manner]
    with pytest.raises(CorruptFile, match=r"sends more than the 200,000 bytes of the file.*data import listops"):
        fetch(source(server, size=len(CONTENT)), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("manner", [bad_server.endless, bad_server.endless_chunks])
def test_a_server_that_never_stops_is_left_at_the_largest_size_where_none_is_known(
    server, tmp_path, monkeypatch, manner
):
    monkeypatch.setattr(remote, "LARGEST", 1_000_000)
    server.manners = [manner, manner]
    with pytest.raises(CorruptFile, match=r"sends more than 1\.0 MB without telling its size"):
        fetch(source(server), tmp_path)
    assert names(tmp_path) == []


def test_bytes_beyond_the_announced_size_are_not_read(server, tmp_path):
    def more(asked):
        yield from well(asked)
        yield from bad_server.flood(b"more")

    server.manners = [well, more]
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("manner", [bad_server.endless_headers, bad_server.endless_patience])
def test_headers_without_end_are_a_sentence(server, tmp_path, manner):
    server.manners = [manner] * 8
    with pytest.raises(DataMissing, match=r"headers|does not answer in HTTP"):
        fetch(source(server), tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_trickles_is_left_and_the_part_is_resumed(server, tmp_path, monkeypatch):
    def dawdles(asked):
        sent = well(asked)
        yield next(sent)
        rest = next(sent)
        yield rest[:20_000]
        yield from bad_server.trickle(rest[20_000:])

    server.manners = [well, *[dawdles] * 4]
    with monkeypatch.context() as patch:
        patch.setattr(request, "WINDOW_S", 0.05)
        with pytest.raises(DataMissing, match=r"only [\d,]+ bytes arrived in \d+ seconds"):
            fetch(source(server, sha256=SHA256), tmp_path)
    kept = (tmp_path / "x.bin.part").read_bytes()
    assert 20_000 < len(kept) < len(CONTENT)
    assert CONTENT.startswith(kept)
    server.manners.clear()
    server.seen.clear()
    assert fetch(source(server, sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["x.bin", "x.bin.lock.json"]


def test_headers_that_trickle_are_a_sentence(server, tmp_path, monkeypatch):
    monkeypatch.setattr(request, "WINDOW_S", 0.05)
    server.manners = [bad_server.trickled_headers] * 8
    with pytest.raises(DataMissing, match="bytes arrived in"):
        fetch(source(server), tmp_path)


def test_a_server_that_gives_a_byte_per_connection_is_left_too(server, tmp_path):
    def one_byte(asked):
        yield from cut_after(well(asked), 1)

    server.manners = [well, *[one_byte] * 99]
    with pytest.raises(DataMissing, match="4 times in a row after 4 bytes"):
        fetch(source(server), tmp_path)
    assert (tmp_path / "x.bin.part").read_bytes() == CONTENT[:4]


def cut_after(sent, count):
    yield next(sent)
    yield next(sent)[:count]


@pytest.mark.parametrize("target", ["file:///etc/hostname", "FILE:///etc/hostname", "ftp://127.0.0.1/x", "data:,hello"])
def test_a_redirect_leads_to_http_or_nowhere(server, tmp_path, target):
    server.manners = [lambda asked: iter([head("302 Found", f"Location: {target}")])] * 2
    with pytest.raises(DataMissing, match="where only http and https are followed"):
        fetch(source(server), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,hello", "x.bin"])
def test_an_address_is_http_or_refused(tmp_path, address):
    with pytest.raises(DataMissing, match="its address"):
        fetch(Source(address, "x.bin"), tmp_path)
    assert names(tmp_path) == []


def test_redirects_are_followed_five_times(server, tmp_path):
    server.manners = [bad_server.redirected_well, bad_server.redirected_well]
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT
    server.manners = [lambda asked: iter([head("302 Found", f"Location: {asked.path}x")])] * 99
    with pytest.raises(DataMissing, match="redirects more than 5 times"):
        fetch(source(server), tmp_path / "again")
    assert len(server.manners) > 80


def test_https_is_never_left_for_http():
    handler, asked = request._Redirects(), request.urllib.request.Request("https://a.example/x")
    headers = {"Location": "http://a.example/x"}
    with pytest.raises(request.Refused, match="from https to http"):
        handler.http_error_302(asked, Closed(), 302, "Found", headers)


class Closed:
    def close(self):
        """Nothing to close."""


def test_the_password_of_a_proxy_stays_with_the_proxy():
    asked = request.urllib.request.Request("http://a.example/x", headers={"Proxy-authorization": "Basic secret"})
    new = request._Redirects().redirect_request(asked, None, 302, "Found", {}, "http://b.example/x")
    assert not new.has_header("Proxy-authorization")


def test_a_body_of_a_redirect_is_not_read(server, tmp_path):
    def moved(asked):
        yield head("302 Found", "Location: /well")
        yield from bad_server.flood(b"moved")

    server.manners = [moved, moved]
    assert fetch(source(server, sha256=SHA256), tmp_path).read_bytes() == CONTENT


def test_another_range_than_the_one_asked_for_starts_anew(server, tmp_path):
    part(server, tmp_path)

    def shifted(asked):
        size = len(CONTENT)
        yield head("206 Partial Content", 'ETag: "one"', f"Content-Range: bytes {asked.start + 1}-{size - 1}/{size}")
        yield CONTENT[asked.start + 1 :]

    server.manners = [well, shifted]
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT


def test_a_part_with_another_tag_is_refused(server, tmp_path):
    part(server, tmp_path)
    server.manners = [well, bad_server.other_edition]
    with pytest.raises(DataMissing, match="changed on the server"):
        fetch(source(server), tmp_path)
    assert not (tmp_path / "x.bin").exists()


def test_a_part_that_nothing_identifies_is_not_resumed(server, tmp_path):
    """Without an ETag, a date or a digest, two versions of equal size cannot be told apart."""

    def untagged(asked):
        sent = well(asked)
        yield next(sent).replace(b'ETag: "one"\r\n', b"")
        yield from sent

    server.manners = [untagged, lambda asked: cut_after(untagged(asked), 80_000), *[bad_server.garbage] * 9]
    with pytest.raises(DataMissing):
        fetch(source(server), tmp_path)
    server.content, server.manners = CONTENT[::-1], [untagged, untagged]
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT[::-1]


def part(server, folder) -> None:
    """A download that broke off after 80,000 bytes."""
    server.manners = [well, lambda asked: cut_after(well(asked), 80_000), *[bad_server.garbage] * 9]
    with pytest.raises(DataMissing):
        fetch(source(server), folder)
    assert (folder / "x.bin.part").read_bytes() == CONTENT[:80_000]


def test_a_size_that_changes_between_two_answers_is_refused(server, tmp_path):
    def shorter(asked):
        asked.content = CONTENT[:-7]
        yield from well(asked)

    server.manners = [well, shorter]
    with pytest.raises(CorruptFile, match="first offered 200,000 bytes and then 199,993"):
        fetch(source(server), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("length", ["0", "\xb2", "-1", "9" * 5_000, "1e5", ""])
def test_a_length_that_is_none_tells_nothing(server, tmp_path, length):
    server.manners = [lambda asked: iter([head("200 OK", f"Content-Length: {length}")]), well]
    assert fetch(source(server), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("code", [201, 204, 205, 226])
def test_a_success_without_the_file_is_refused(server, tmp_path, code):
    server.manners = [well, lambda asked: iter([head(f"{code} Fine", "Content-Length: 0")])]
    with pytest.raises(DataMissing, match=f"answered {code}"):
        fetch(source(server), tmp_path)


def test_an_empty_answer_is_no_file(server, tmp_path):
    server.manners = [bad_server.empty] * 9
    with pytest.raises(DataMissing, match="ended after 0 of unknown bytes"):
        fetch(source(server), tmp_path)
    assert "x.bin" not in names(tmp_path)


def test_compression_that_nobody_asked_for_is_refused(server, tmp_path):
    server.manners = [bad_server.compressed] * 2
    with pytest.raises(DataMissing, match="sends it compressed"):
        fetch(source(server), tmp_path)
    server.manners = [
        lambda asked: well(asked, "Content-Encoding: x-gzip")
    ] * 2  # describes the archive itself, as Apache does
    assert fetch(Source(f"{server.url}/x.tar.gz", "x.tar.gz"), tmp_path).read_bytes() == CONTENT


def test_what_a_server_says_of_itself_is_not_repeated(server, tmp_path):
    server.manners = [lambda asked: iter([head("404 \x1b[31mCall 555-1234")])]
    with pytest.raises(LongspanError, match="answered 404 Not Found") as raised:
        fetch(source(server), tmp_path)
    assert "\x1b" not in str(raised.value)
