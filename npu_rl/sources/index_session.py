"""The connection to package indexes: unearth's client with pip's settings, retries and a watch on redirects.

Imports unearth, which takes a third of a second: import this module inside functions only.
"""

from __future__ import annotations

import importlib
import logging
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unearth.auth import MultiDomainBasicAuth
from unearth.collector import is_secure_origin
from unearth.fetchers import PyPIClient
from unearth.link import Link

from npu_rl.errors import HostError
from npu_rl.sources.credentials import scrub
from npu_rl.sources.pip_config import PipSettings

# unearth changed its HTTP library between the versions that may be installed; this is the one it uses.
http: Any = importlib.import_module(PyPIClient.__mro__[1].__module__.partition(".")[0])

TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504, 520, 524, 527})
_TRANSIENT: tuple[type[Exception], ...] = (http.TimeoutException, http.NetworkError, http.RemoteProtocolError)
_FIRST_DELAY = 0.25  # seconds, doubled each time, as pip has it
_LONGEST_DELAY = 8.0
NOT_TRUSTED = "it is not https, and pip's trusted-host does not name it"


def _nothing(_record: logging.LogRecord) -> bool:
    return False


# Its log lines name index URLs with their passwords (debug) and every folder that is not there (warning).
# Whatever matters of them is in our own errors.
for _name in ("auth", "collector", "evaluator", "finder", "preparer", "utils"):
    logging.getLogger(f"unearth.{_name}").addFilter(_nothing)


class RefusedOrigin(Exception):
    """A request to a place that pip's settings do not trust."""


FAILURES: tuple[type[Exception], ...] = (
    http.HTTPError,
    http.InvalidURL,
    http.StreamError,
    RefusedOrigin,
    OSError,
)


class IndexSession(PyPIClient):
    """unearth's client; `send` tries again what may pass, and remembers the last answer's status."""

    def __init__(self, settings: PipSettings, pause: Callable[[float], None]) -> None:
        trusted, anyhow = _certificates(settings)
        super().__init__(
            trusted_hosts=settings.trusted_hosts,
            verify=trusted,
            timeout=settings.timeout,
            proxy=settings.proxy,
            follow_redirects=True,
            event_hooks={"request": [self._check_origin]},
            # unearth's own way to a trusted host leaves proxies and client certificates out
            mounts={
                f"{scheme}://{host}": http.HTTPTransport(verify=anyhow, proxy=_proxy(settings, scheme, host))
                for host in settings.trusted_hosts
                for scheme in ("http", "https")
            },
        )
        self.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)
        self.last_status: int | None = None
        self._retries = settings.retries
        self._pause = pause
        self._local = False

    def send(self, request: Any, **options: Any) -> Any:
        """One request, tried again after transient failures. Raises one of FAILURES if that does not help."""
        self.last_status = None
        self._local = request.url.scheme == "file"
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                response = super().send(request, **options)
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
        """Whether pip would ask this URL: https, this machine, or a trusted host."""
        session: Any = self  # unearth's own client does not match unearth's protocol, to the type checker
        try:
            return is_secure_origin(session, Link(url))
        except ValueError:  # a host and port that are none
            return False

    def _check_origin(self, request: Any) -> None:
        """Runs before each request, redirected ones too."""
        if request.url.scheme == "file":
            if not self._local:
                raise RefusedOrigin("it redirects to a local file")
        elif not self.trusts(str(request.url)):
            raise RefusedOrigin(f"{request.url.host}: {NOT_TRUSTED}")


def open_session(settings: PipSettings, pause: Callable[[float], None]) -> IndexSession:
    """A session to be used with `with`. Raises HostError if the settings can't be followed."""
    try:
        return IndexSession(settings, pause)
    except (ssl.SSLError, OSError, ValueError, http.InvalidURL) as error:
        raise HostError(
            "pip's network settings can't be followed",
            where="certificate, proxy or trusted-host in pip's configuration",
            why=scrub(f"{type(error).__name__}: {error}", settings.secrets),
            hint="See `pip config debug` for where they are set.",
        ) from None


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    return isinstance(error, _TRANSIENT) and not _is_certificate(error)


def delay(attempt: int, asked: str | None = None) -> float:
    """Seconds to wait after failure number `attempt` (from 0); `asked` is the server's Retry-After."""
    if asked and asked.isdecimal():
        return min(float(asked), _LONGEST_DELAY)
    return min(_FIRST_DELAY * 2.0**attempt, _LONGEST_DELAY)


def _is_certificate(error: Exception) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _certificates(settings: PipSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """How to meet an ordinary host, and one whose certificate is taken on trust."""
    if settings.cert is None:
        trusted: ssl.SSLContext = http.create_ssl_context()
    elif not settings.cert.exists():
        raise FileNotFoundError(f"there is no certificate bundle {settings.cert}")
    else:
        is_folder = settings.cert.is_dir()
        trusted = ssl.create_default_context(
            cafile=None if is_folder else str(settings.cert), capath=str(settings.cert) if is_folder else None
        )
    anyhow = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyhow.check_hostname = False
    anyhow.verify_mode = ssl.CERT_NONE
    if settings.client_cert is not None:
        for context in (trusted, anyhow):
            _load_client_certificate(context, settings.client_cert)
    return trusted, anyhow


def _load_client_certificate(context: ssl.SSLContext, path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"there is no client certificate {path}")
    context.load_cert_chain(str(path))


def _proxy(settings: PipSettings, scheme: str, host: str) -> str | None:
    if settings.proxy:
        return settings.proxy
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")
