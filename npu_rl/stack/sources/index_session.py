"""Connections to package indexes: unearth's client with pip's settings, retries and checks of redirects.

Imports unearth, which takes a third of a second: import this module inside functions only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unearth.auth import MultiDomainBasicAuth
from unearth.collector import is_secure_origin
from unearth.fetchers import PyPIClient
from unearth.link import Link

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import HostError
from npu_rl.stack.sources.credentials import scrub
from npu_rl.stack.sources.pip_config import PipSettings

# unearth changed its HTTP library between the versions that may be installed; this is the one it uses.
http: Any = importlib.import_module(PyPIClient.__mro__[1].__module__.partition(".")[0])

TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504, 520, 524, 527})
_TRANSIENT: tuple[type[Exception], ...] = (http.TimeoutException, http.NetworkError, http.RemoteProtocolError)
_FIRST_DELAY = 0.25  # seconds, doubled each time, as pip has it
_LONGEST_DELAY = 8.0
NOT_TRUSTED = "it does not use https and is not one of pip's trusted-host"


# A page of an index: bytes unpacked, links, and seconds as a multiple of pip's timeout for one read. The page of
# the package with the most files has some 10 MB and 30,000 links.
_PAGE_BYTES = 32 * 1024**2
_PAGE_ITEMS = 400_000
_PAGE_READS = 8
_ERROR_BODY_BYTES = 256 * 1024
_TAG_OR_COMMENT = re.compile(rb"<!--|<(?:a|base)\s", re.IGNORECASE)
_TAG = re.compile(rb"""<\w+(?:[^<>"']|"[^"]*"|'[^']*')*>""")
_TAG_BYTES = 16 * 1024
_MAXIMUM_UNFINISHED = 1000  # tags without an end that are passed over


# unearth logs index URLs with their passwords (debug) and every missing folder (warning); our own errors have the
# relevant part.
for _name in ("auth", "collector", "evaluator", "finder", "preparer", "utils"):
    logging.getLogger(f"unearth.{_name}").addFilter(lambda _record: False)


class RefusedOrigin(Exception):
    """A request to a host that pip's settings do not trust."""


class RefusedPage(Exception):
    """A page that exceeds the limits on size, time or number of links."""


FAILURES: tuple[type[Exception], ...] = (
    http.HTTPError,
    http.InvalidURL,
    http.StreamError,
    RefusedOrigin,
    RefusedPage,
    OSError,
)


class _Deadline:
    """Limit on the total time of a request, after which its sockets are shut down.

    The timeout of a single read does not stop a server that sends a byte per second. Raises RefusedPage at the end of
    the block.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sockets: list[Any] = []
        self._expired = False
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True

    def watch(self, request: Any) -> None:
        """Record the sockets that a request opens."""
        request.extensions = {**request.extensions, "trace": self._traced}

    def _traced(self, event: str, facts: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._sockets.append(facts["return_value"].get_extra_info("socket"))

    def _shut_down(self) -> None:
        self._expired = True
        for opened in self._sockets:
            with contextlib.suppress(OSError):  # of the plain socket below TLS nothing is left to shut
                opened.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._expired and (error is None or isinstance(error, FAILURES)):
            raise RefusedPage(f"its page took longer than {self._seconds:g} seconds") from None


class _BoundedStream(http.SyncByteStream):  # type: ignore[misc]
    """The bounded body of a response that is not a page but that the client must read, such as a redirect's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._stream:
            size += len(chunk)
            if size > _ERROR_BODY_BYTES:
                raise RefusedPage(f"its response body is larger than {_ERROR_BODY_BYTES // 1024} KiB")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _bound_error_body(response: Any) -> None:
    if response.status_code != 200:
        response.stream = _BoundedStream(response.stream)


def _read_page(response: Any) -> Any:
    """Return the response with its body read. Raises RefusedPage for a body that exceeds the limits."""
    body = bytearray()
    try:
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _PAGE_BYTES:
                raise RefusedPage(f"its page is larger than {_PAGE_BYTES // 1024**2} MiB")
    finally:
        response.close()
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    page = bytes(body)
    is_json = (
        response.headers.get("Content-Type", "").lower().startswith("application/vnd.pypi.simple.v1+json")
    )
    content = _files_only(page) if is_json else _links_only(page)
    return http.Response(response.status_code, headers=headers, content=content, request=response.request)


def _files_only(page: bytes) -> bytes:
    """Reduce a PEP 691 page to the fields that are read, with their types checked, which unearth does not do."""
    if page.count(b"{") + page.count(b"[") > _PAGE_ITEMS:
        raise RefusedPage(f"its page has more than {_PAGE_ITEMS} items")
    try:
        listed = parse_json(page)["files"]
        files = [file for file in listed if isinstance(file, dict) and isinstance(file.get("url"), str)]
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedPage(f"its page can't be read ({type(error).__name__})") from None
    known = [
        {
            "url": file["url"],
            "yanked": file["yanked"] if isinstance(file.get("yanked"), str | bool) else False,
            "hashes": _texts(file.get("hashes")),
        }
        for file in files
    ]
    return json.dumps({"files": known}).encode()


def _texts(pairs: object) -> dict[str, str]:
    return {k: v for k, v in pairs.items() if isinstance(v, str)} if isinstance(pairs, dict) else {}


def _links_only(page: bytes) -> bytes:
    """Reduce an HTML page to its <a> and <base> tags, the only ones that are read.

    Python's parser needs hours for a megabyte of unfinished tags (CVE-2025-6069).
    """
    links: list[bytes] = []
    at = unfinished = 0
    for start in _TAG_OR_COMMENT.finditer(page):
        if start.start() < at:
            continue
        if start[0] == b"<!--":
            at = page.find(b"-->", start.end()) + 3
            if at == 2:
                break
            continue
        tag = _TAG.match(page, start.start(), start.start() + _TAG_BYTES)
        if tag is not None:
            links.append(tag[0])
            at = tag.end()
        unfinished += tag is None
        if unfinished > _MAXIMUM_UNFINISHED or len(links) > _PAGE_ITEMS:
            raise RefusedPage("its page has too many links or unfinished tags")
    return b"\n".join(links)


class IndexSession(PyPIClient):
    """unearth's client with retries of transient failures; `last_status` is the status of the last response."""

    def __init__(self, settings: PipSettings, pause: Callable[[float], None]) -> None:
        trusted, unverified = _certificates(settings)
        super().__init__(
            trusted_hosts=settings.trusted_hosts,
            verify=trusted,
            timeout=settings.timeout,
            proxy=settings.proxy,
            follow_redirects=True,
            event_hooks={"request": [self._check_origin], "response": [_bound_error_body]},
            # unearth's own way to a trusted host leaves proxies and client certificates out
            mounts={
                f"{scheme}://{host}": http.HTTPTransport(
                    verify=unverified, proxy=_proxy(settings, scheme, host)
                )
                for host in settings.trusted_hosts
                for scheme in ("http", "https")
            },
        )
        self.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)
        self.last_status: int | None = None
        self._retries = settings.retries
        self._limit = _PAGE_READS * settings.timeout
        self._pause = pause
        self._local = False

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request, with retries of transient failures. Raises one of FAILURES if they do not help.

        Without `stream`, the page is complete and within the limits when this returns.
        """
        self.last_status = None
        self._local = request.url.scheme == "file"
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                with _Deadline(self._limit) as deadline:
                    deadline.watch(request)
                    response = super().send(request, stream=True, **options)
                    if not stream:
                        response = _read_page(response)
            except _TRANSIENT as error:
                if last or _is_certificate(error):
                    raise
                self._pause(delay(attempt))
                continue
            self.last_status = response.status_code
            if last or response.status_code not in TRANSIENT_STATUS:
                break
            response.close()
            self._pause(delay(attempt, response.headers.get("Retry-After")))
        return response

    def trusts(self, url: str) -> bool:
        """Return whether pip would use this URL: https, this machine, or a trusted host."""
        session: Any = self  # unearth's own client does not match unearth's protocol, to the type checker
        try:
            return is_secure_origin(session, Link(url))
        except ValueError:  # a host and port that are none
            return False

    def _check_origin(self, request: Any) -> None:
        """Check the target of each request, redirects included."""
        if request.url.scheme == "file":
            if not self._local:
                raise RefusedOrigin("it redirects to a local file")
        elif not self.trusts(str(request.url)):
            raise RefusedOrigin(f"{request.url.host}: {NOT_TRUSTED}")


def open_session(settings: PipSettings, pause: Callable[[float], None]) -> IndexSession:
    """Open a session, as a context manager. Raises HostError if pip's settings are invalid."""
    try:
        return IndexSession(settings, pause)
    except (ssl.SSLError, OSError, ValueError, http.InvalidURL) as error:
        raise HostError(
            "pip's network settings are invalid",
            where="certificate, proxy or trusted-host in pip's configuration",
            why=scrub(f"{type(error).__name__}: {error}", settings.secrets),
            hint="Run `pip config debug` to see where they are set.",
        ) from None


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed."""
    return isinstance(error, _TRANSIENT) and not _is_certificate(error)


def delay(attempt: int, retry_after: str | None = None) -> float:
    """Return the seconds to wait after failure number `attempt` (from 0), by Retry-After if the server sent it."""
    if retry_after and retry_after.isdecimal():
        return min(float(retry_after), _LONGEST_DELAY)
    return min(_FIRST_DELAY * 2.0**attempt, _LONGEST_DELAY)


def _is_certificate(error: Exception) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _certificates(settings: PipSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts for ordinary hosts and for trusted hosts, whose certificates are not verified."""
    if settings.cert is None:
        trusted: ssl.SSLContext = http.create_ssl_context()
    elif not settings.cert.exists():
        raise FileNotFoundError(f"the certificate bundle {settings.cert} does not exist")
    else:
        is_folder = settings.cert.is_dir()
        trusted = ssl.create_default_context(
            cafile=None if is_folder else str(settings.cert), capath=str(settings.cert) if is_folder else None
        )
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    if settings.client_cert is not None:
        for context in (trusted, unverified):
            _load_client_certificate(context, settings.client_cert)
    return trusted, unverified


def _load_client_certificate(context: ssl.SSLContext, path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"the client certificate {path} does not exist")
    context.load_cert_chain(str(path))


def _proxy(settings: PipSettings, scheme: str, host: str) -> str | None:
    if settings.proxy:
        return settings.proxy
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")
