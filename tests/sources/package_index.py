"""A real package index (PEP 503, PEP 691 on request) on 127.0.0.1, with passwords and faults to order."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests.support import QuietHandler, http_server


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """An index that is the only one of pip's configuration."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with PackageIndex() as index:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield index


@dataclass(frozen=True)
class Status:
    """Answer with this status and no file."""

    code: int
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cut:
    """Promise the whole file, send this many bytes of it and hang up."""

    after: int


@dataclass(frozen=True)
class Redirect:
    """Send the client to another URL."""

    to: str


Fault = Status | Cut | Redirect


@dataclass
class Listed:
    """One file of a project. `sha256`: in the listing: True for its own, False for none, or a text."""

    filename: str
    data: bytes
    sha256: bool | str = True
    yanked: str | None = None
    requires_python: str | None = None
    href: str | None = None  # another address than this server's own
    encoding: str | None = None  # "label": calls the archive's own gzip an encoding; "squeeze": adds one

    @property
    def hash(self) -> str | None:
        own = hashlib.sha256(self.data).hexdigest()
        return own if self.sha256 is True else self.sha256 or None


@dataclass
class PackageIndex:
    """Use with `with`. `requests`: the path of each request, in order; `authorised`: those with a login."""

    auth: tuple[str, str] | None = None
    projects: dict[str, list[Listed]] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)  # by path; each is used once
    as_json: bool = False
    raw_pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by path: content type, body
    requests: list[str] = field(default_factory=list)
    authorised: list[str] = field(default_factory=list)

    def __enter__(self) -> PackageIndex:
        index = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                index.answer(self)

            do_HEAD = do_GET

        self._serving = http_server(Handler)
        self.port = self._serving.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)

    def add(self, project: str, filename: str, data: bytes, **options: object) -> Listed:
        listed = Listed(filename, data, **options)  # type: ignore[arg-type]
        self.projects.setdefault(project, []).append(listed)
        return listed

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/simple"

    def url_with(self, user: str, password: str) -> str:
        return f"http://{user}:{password}@{self.host}/simple"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)  # absolute when this server is asked as a proxy
        self.requests.append(path)
        login = handler.headers.get("Authorization")
        if login:
            self.authorised.append(path)
        if self.auth and login != "Basic " + base64.b64encode(":".join(self.auth).encode()).decode():
            return self._send(handler, 401, b"", [("WWW-Authenticate", 'Basic realm="index"')])
        faults = self.faults.get(path)
        fault = faults.pop(0) if faults else None
        if isinstance(fault, Status):
            return self._send(handler, fault.code, b"", list(fault.headers))
        if isinstance(fault, Redirect):
            return self._send(handler, 302, b"", [("Location", fault.to)])
        if path in self.raw_pages:
            kind, body = self.raw_pages[path]
            return self._send(handler, 200, body, [("Content-Type", kind)])
        parts = path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2 and parts[1] in self.projects:
            return self._page(handler, parts[1], fault)
        if parts[0] == "files" and len(parts) == 3:
            for listed in self.projects.get(parts[1], []):
                if listed.filename == parts[2]:
                    return self._file(handler, listed, fault)
        return self._send(handler, 404, b"not here")

    def _file(self, handler: BaseHTTPRequestHandler, listed: Listed, fault: Fault | None) -> None:
        headers = [("Content-Type", "application/gzip")]
        data = listed.data
        squeeze = listed.encoding == "squeeze" and "gzip" in handler.headers.get("Accept-Encoding", "")
        if squeeze:
            data = gzip.compress(data)
        if squeeze or listed.encoding == "label":
            headers.append(("Content-Encoding", "gzip"))
        self._send(handler, 200, data, headers, fault)

    def _page(self, handler: BaseHTTPRequestHandler, project: str, fault: Fault | None) -> None:
        rows = []
        entries = []
        for listed in self.projects[project]:
            href = listed.href or f"/files/{project}/{quote(listed.filename)}"
            extra = ""
            entry: dict[str, object] = {"filename": listed.filename, "url": href, "hashes": {}}
            if listed.yanked is not None:
                extra += f' data-yanked="{escape(listed.yanked)}"'
                entry["yanked"] = listed.yanked or True
            if listed.requires_python:
                extra += f' data-requires-python="{escape(listed.requires_python)}"'
                entry["requires-python"] = listed.requires_python
            if listed.hash:
                entry["hashes"] = {"sha256": listed.hash}
            fragment = f"#sha256={listed.hash}" if listed.hash else ""
            rows.append(f'<a href="{escape(href + fragment)}"{extra}>{escape(listed.filename)}</a>')
            entries.append(entry)
        if self.as_json:
            body = json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": entries}).encode()
            kind = "application/vnd.pypi.simple.v1+json"
        else:
            body = "<!DOCTYPE html><html><body>{}</body></html>".format("<br/>".join(rows)).encode()
            kind = "text/html"
        self._send(handler, 200, body, [("Content-Type", kind)], fault)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: list[tuple[str, str]] | None = None,
        fault: Fault | None = None,
    ) -> None:
        handler.send_response(status)
        for name, value in headers or []:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if isinstance(fault, Cut):
            handler.wfile.write(body[: fault.after])
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        handler.wfile.write(body)
