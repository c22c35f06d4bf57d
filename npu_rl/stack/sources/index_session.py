"""Connections to package indexes: unearth's client with pip's settings, retries and checks of redirects.

Imports unearth, which takes a third of a second: import this module inside functions only.
"""

from __future__ import annotations

import importlib
import logging
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from unearth.auth import MultiDomainBasicAuth
from unearth.collector import is_secure_origin
from unearth.fetchers import PyPIClient
from unearth.link import Link

from npu_rl.common.errors import HostError
from npu_rl.stack.sources.credentials import scrub
from npu_rl.stack.sources.pip_config import PipSettings

# unearth changed its HTTP library between the versions that may be installed; this is the one it uses.
http: Any = importlib.import_module(PyPIClient.__mro__[1].__module__.partition(".")[0])

TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504, 520, 524, 527})
_FIRST_DELAY = 0.25  # seconds, doubled each time, as pip has it
_LONGEST_DELAY = 8.0
NOT_TRUSTED = "it does not use https and is not one of pip's trusted-host"

T = TypeVar("T")

# unearth logs index URLs with their passwords (debug) and every missing folder (warning); our own errors have the
# relevant part.
for _name in ("auth", "collector", "evaluator", "finder", "preparer", "utils"):
    logging.getLogger(f"unearth.{_name}").addFilter(lambda _record: False)


class RefusedOrigin(Exception):
    """A request to a host that pip's settings do not trust."""


class BadStatus(Exception):
    """An HTTP status other than success."""

    def __init__(self, status: int, retry_after: str) -> None:
        needs = "it requires other credentials ({}); give them in the index URL or in netrc"
        super().__init__((needs if status in (401, 403) else "it answered with status {}").format(status))
        self.status = status
        self.retry_after = retry_after


_TRANSIENT: tuple[type[Exception], ...] = (http.TimeoutException, http.NetworkError, http.RemoteProtocolError)
FAILURES: tuple[type[Exception], ...] = (
    http.HTTPError,
    http.InvalidURL,
    http.StreamError,
    RefusedOrigin,
    BadStatus,
    OSError,
)


class IndexSession(PyPIClient):
    """unearth's client, which raises BadStatus; `with_retries` repeats what failed."""

    def __init__(self, settings: PipSettings, pause: Callable[[float], None]) -> None:
        for path in filter(None, (settings.cert, settings.client_cert)):
            path.stat()  # its error has the path, that of ssl has not
        unverified = _tls(settings, trusted_host=True)
        super().__init__(
            trusted_hosts=settings.trusted_hosts,
            verify=_tls(settings, trusted_host=False),
            timeout=settings.timeout,
            proxy=settings.proxy,
            follow_redirects=True,
            event_hooks={"request": [self._check_origin]},
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
        self._retries = settings.retries
        self._pause = pause
        self._local = False

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request. Raises one of FAILURES."""
        self._local = request.url.scheme == "file"
        response = super().send(request, **options)
        if response.status_code >= 400:
            response.close()
            raise BadStatus(response.status_code, response.headers.get("Retry-After", ""))
        return response

    def with_retries(self, action: Callable[[], T]) -> T:
        """Repeat an action after transient failures. Raises the last one."""
        for attempt in range(self._retries):
            retry_after = ""
            try:
                return action()
            except BadStatus as error:
                if error.status not in TRANSIENT_STATUS:
                    raise
                retry_after = error.retry_after
            except _TRANSIENT as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise
            wait = float(retry_after) if retry_after.isdecimal() else _FIRST_DELAY * 2.0**attempt
            self._pause(min(wait, _LONGEST_DELAY))
        return action()

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


def _tls(settings: PipSettings, *, trusted_host: bool) -> ssl.SSLContext:
    """Return the TLS context for ordinary hosts, or for trusted hosts, whose certificates are not verified."""
    cert, client_cert = settings.cert, settings.client_cert
    context: ssl.SSLContext = http.create_ssl_context()
    if cert is not None:
        is_folder = cert.is_dir()
        context = ssl.create_default_context(
            cafile=None if is_folder else str(cert), capath=str(cert) if is_folder else None
        )
    if trusted_host:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client_cert is not None:
        context.load_cert_chain(str(client_cert))
    return context


def _proxy(settings: PipSettings, scheme: str, host: str) -> str | None:
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    return settings.proxy or proxies.get(scheme) or proxies.get("all")
