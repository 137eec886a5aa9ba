"""Whatever is requested from a served report, it serves nothing but its folder, and only to this machine."""

import random
import socket
import threading
from urllib.parse import quote

from longspan.report.serve import serving
from tests.fuzz.figures import inputs

WORDS = ["..", ".", "/", "//", "\\", "%2e", "%2f", "%5c", "%00", "%", "~", "a b", "\xff", "index.html", "http://", ":"]
WORDS += ["secret.txt", "out", "in", "pages", "?x", "#y", "localhost", "evil.example", "%ff", "%c0%ae", "%252e", "@;"]
HOSTS = ["localhost", "127.0.0.1", "evil.example", "", "evil.localhost", "[::1]", "localhost\t", "LOCALHOST"]


@inputs(quick=300)
def test_any_request_is_answered_from_the_folder_or_refused(count, figures, tmp_path):
    site, dice = tmp_path / "site", random.Random(18)
    (site / "pages").mkdir(parents=True)
    (site / "index.html").write_text("inside")
    (site / "pages" / "index.html").write_text("inside")
    (tmp_path / "secret.txt").write_text("outside")
    (site / "out").symlink_to(tmp_path)
    (site / "in").symlink_to("pages")
    with serving(site) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        address = ("127.0.0.1", server.server_port)
        for _ in range(count):
            path = "".join(dice.choices(WORDS, k=dice.choice([0, 1, 3, 5, 7])))
            path = f"/{quote(path) if dice.random() < 0.2 else path}"
            host = dice.choice(HOSTS)
            method = dice.choice(["GET", "GET", "GET", "HEAD", "POST", "get", ""])
            line = dice.choice([f"{method} {path} HTTP/1.1", f"{method} {path}", f"{method} {path[1:]} HTTP/1.0", path])
            request = f"{line}\r\nHost: {host}\r\n\r\n".encode("latin-1")
            if dice.random() < 0.1:
                request = request[: dice.randrange(len(request))]
            with figures.trying(accepted="answered"), socket.create_connection(address) as connection:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                with connection.makefile("rb") as file:
                    answer = file.read()
                figures.add("escapes", b"outside" in answer)
                assert b"outside" not in answer
                assert b"inside" not in answer or host.strip().lower() in ("localhost", "127.0.0.1", "[::1]")
                figures.add("pages", b"inside" in answer)
        server.shutdown()
    assert figures["pages"] > 0
