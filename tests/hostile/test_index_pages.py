"""Package indexes that never end, drip, explode or garble: each is given up on, and said so."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.pypi import download_sdist, find_sdist

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n"
HTML = HEAD % b"text/html" + b"\r\n"
JSON = HEAD % b"application/vnd.pypi.simple.v1+json" + b"\r\n"


def dripping(head: bytes, drop: bytes = b" ") -> Iterator[bytes]:
    """`head`, then a byte ten times a second, in time for every read."""
    yield head
    while True:
        time.sleep(0.1)
        yield drop


PAGES: dict[str, Callable[[], Iterable[bytes]]] = {
    "an endless page": lambda: itertools.chain([HTML], itertools.repeat(b"<p>" * 20_000)),
    "an endless page of links": lambda: itertools.chain([HTML], itertools.repeat(b"<a href=x>" * 6000)),
    "an endless page of JSON": lambda: itertools.chain([JSON, b"["], itertools.repeat(b"[]," * 20_000)),
    "an endless head": lambda: itertools.chain(
        [HEAD % b"text/html"], (b"X-%d: y\r\n" % n for n in itertools.count())
    ),
    "an endless redirect": lambda: itertools.chain(
        [b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n"], itertools.repeat(bytes(60_000))
    ),
    "a dripping page": lambda: dripping(HTML),
    "a dripping page of JSON": lambda: dripping(JSON),
    "a dripping head": lambda: dripping(HEAD % b"text/html" + b"X: ", b"y"),
    "a dripping status": lambda: dripping(b"HTTP/1.1 200 O", b"K"),
    "a page that was a gigabyte": lambda: [
        (HEAD % b"text/html") + b"Content-Encoding: gzip\r\n\r\n",
        *itertools.repeat(gzip.compress(bytes(1 << 25), 9), 32),
    ],
    "unfinished links": lambda: [HTML, b"<a " * 1_000_000],
    "unfinished comments": lambda: [HTML, b"<!--" * 1_000_000],
    "unfinished declarations": lambda: [HTML, b"<!x" * 1_000_000],
    "unfinished quotes": lambda: [HTML, b"<a x='\"" * 500_000],
    "half a million links": lambda: [HTML, b'<a href="x">' * 500_000],
    "half a million files": lambda: [JSON, b'{"files": [' + b"{}," * 500_000 + b"{}]}"],
    "JSON without a floor": lambda: [JSON, b"[" * 100_000],
    "JSON of another shape": lambda: [JSON, json.dumps({"files": [7, None, {"url": {}}]}).encode()],
    "a number without an end": lambda: [JSON, b'{"files": [{"url": ' + b"9" * 100_000 + b"}]}"],
    "a date beyond time": lambda: [JSON, b'{"files": [{"url": "x-1.0.tar.gz", "upload-time": "9"}]}'],
}


@contextlib.contextmanager
def serving(answer: Callable[[], Iterable[bytes]], *, asked: bool = True) -> Iterator[str]:
    """A server that answers whatever is asked, or before it is `asked`, with these bytes; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if asked:
                connection.recv(65536)
            for piece in answer():
                connection.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def settings(url: str, timeout: float = 0.1) -> PipSettings:
    return PipSettings(index_url=f"{url}/simple", timeout=timeout, retries=0)


@pytest.mark.parametrize("what", PAGES)
def test_a_page_without_bounds_is_given_up_on(what: str) -> None:
    with serving(PAGES[what]) as url:
        started = time.monotonic()
        with pytest.raises(SourceError) as error:
            find_sdist("pkg", "1.0", settings(url), pause=lambda _: None)
        assert time.monotonic() - started < 20
    assert "127.0.0.1" in str(error.value)


def test_a_dripping_sdist_is_given_up_on(tmp_path: Path) -> None:
    page = HTML + b'<a href="/pkg-1.0.tar.gz">pkg-1.0.tar.gz</a>'
    answers = iter([[page], dripping(HEAD % b"application/gzip" + b"Content-Length: 5000\r\n\r\n", b"x")])
    with serving(lambda: next(answers)) as url:
        with pytest.raises(SourceError, match="slower than 1 kB/s"):
            download_sdist(
                "pkg", "1.0", sha256=None, settings=settings(url, 0.25), folder=tmp_path, pause=lambda _: None
            )
    assert not list(tmp_path.iterdir())


def test_links_between_other_tags_are_still_found() -> None:
    page = b"""<!DOCTYPE html><html><head><base href="/files/"><title>x</title></head>
    <body><!-- <a href="pkg-1.0.zip">no</a> --><h1>it's "odd</h1>
    <A data-requires-python=">=3.7,<4" HREF='pkg-1.0.tar.gz#sha256=%s'
       data-yanked="a > b">pkg-1.0.tar.gz</A></body></html>""" % (b"a" * 64)
    with serving(lambda: [HTML, page]) as url:
        found = find_sdist("pkg", "1.0", settings(url))
    assert found.url.endswith("/files/pkg-1.0.tar.gz") and found.sha256 == "a" * 64
    assert found.notes == ("this release was yanked: a > b",)
