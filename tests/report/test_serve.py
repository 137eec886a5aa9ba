"""The served report: only to this machine by its own name, only its folder. Raw requests over a socket."""

import os
import socket
import threading

import pytest

from longspan.core.errors import UsageError
from longspan.report.serve import serving


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "report"
    (folder / "pages").mkdir(parents=True)
    (folder / "bare").mkdir()
    (folder / "index.html").write_text("<p>the report</p>")
    (folder / "pages" / "index.html").write_text("<p>a page</p>")
    (folder / "pages" / "a b.html").write_text("<p>spaced</p>")
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "report-2").mkdir()
    (tmp_path / "report-2" / "secret.txt").write_text("the secret")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "away").symlink_to(tmp_path)
    (folder / "absolute").symlink_to("/")
    (folder / "bare" / "index.html").symlink_to("../../secret.txt")
    (folder / "inside.html").symlink_to("pages/index.html")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def ask(site):
    with serving(site) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

        def send(first_line: str, *headers: str, host: str | None = "localhost") -> str:
            own = [] if host is None else [f"Host: {host.replace('PORT', str(server.server_port))}"]
            request = "\r\n".join([first_line, *own, *headers, "", ""])
            with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
                connection.sendall(request.encode("latin-1"))
                with connection.makefile("rb") as answer:
                    return answer.read().decode("latin-1")

        yield send
        server.shutdown()


def status(answer: str) -> int:
    return int(answer.split(" ")[1])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:PORT", "LocalHost:PORT", "[::1]:PORT"])
def test_this_machine_is_answered(ask, host):
    assert "the report" in ask("GET / HTTP/1.1", host=host)


STRANGERS = "evil.example evil.example:PORT localhost:1 localhost.evil.example 127.0.0.1.evil.example localhost: "
STRANGERS += "127.0.0.1:PORT@evil.example evil.example#localhost 0.0.0.0:PORT localhost,evil.example"


@pytest.mark.parametrize("host", [None, "", *STRANGERS.split()])
def test_a_name_that_is_made_to_point_here_is_refused(ask, host):
    answer = ask("GET / HTTP/1.1", host=host)
    assert status(answer) == 403
    assert "the report" not in answer


def test_two_names_are_refused(ask):
    assert status(ask("GET / HTTP/1.1", "Host: evil.example")) == 403
    assert status(ask("HEAD / HTTP/1.1", "Host: localhost")) == 403


PAGES = "/ /index.html /pages/ /pages/index.html /pages/a%20b.html /inside.html"


@pytest.mark.parametrize("path", PAGES.split())
def test_pages_are_served_and_links_within_the_folder_followed(ask, path):
    answer = ask(f"GET {path} HTTP/1.1")
    assert status(answer) == 200
    assert "<p>" in answer
    assert "X-Content-Type-Options: nosniff" in answer
    assert "<p>" not in ask(f"HEAD {path} HTTP/1.1")


OUTSIDE = "/out.txt /away/secret.txt /away/ /absolute/etc/hostname /bare/ /bare /loop /pipe /absent /../secret.txt "
OUTSIDE += (
    "/%2e%2e/secret.txt /..%2fsecret.txt /pages/../../secret.txt /%2e%2e%2fsecret.txt /..\\secret.txt //secret.txt "
)
OUTSIDE += "/..%5csecret.txt /../report-2/secret.txt /pages/%00 /%ff%fe secret.txt ../secret.txt "
OUTSIDE += f"/././out.txt http://localhost/out.txt /{'a' * 5_000} /{'a/' * 2_500}"


@pytest.mark.parametrize("path", OUTSIDE.split())
def test_nothing_outside_the_folder_is_served(ask, path):
    answer = ask(f"GET {path} HTTP/1.1")
    assert status(answer) == 404
    assert "the secret" not in answer


def test_a_folder_without_a_page_is_not_listed(ask, site):
    (site / "plain").mkdir()
    (site / "plain" / "x.txt").write_text("x")
    answer = ask("GET /plain/ HTTP/1.1")
    assert status(answer) == 404
    assert "x.txt" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"])
def test_there_is_nothing_but_reading(ask, method):
    assert status(ask(f"{method} / HTTP/1.1")) == 501


def test_it_listens_on_this_machine_alone_and_says_when_a_port_is_taken(site):
    with serving(site) as server:
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(UsageError, match=r"Cannot serve at port \d+ .* choose another with --port"):
            serving(site, server.server_port).__enter__()
