"""uv: its path, and its environment with pip's configuration, which uv itself doesn't read."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import HostError
from npu_rl.common.process import CompletedCommand, run_quietly
from npu_rl.stack.sources.pip_config import DEFAULT_INDEX

if TYPE_CHECKING:
    from npu_rl.stack.sources.pip_config import PipSettings

_TIMEOUT = 900.0  # seconds; a set takes 4 to 60 where the index answers at once
_ABSENT = "was not found in the package registry"
_OWN_AUTHORITY = "CaUsedAsEndEntity"
_KEPT_UV = ("UV_CACHE_DIR", "UV_KEYRING_PROVIDER")


def find_uv(environ: Mapping[str, str] | None = None) -> str:
    """Return the path of uv: beside npu-rl's interpreter, else on PATH. Raises HostError if it is missing."""
    environ = os.environ if environ is None else environ
    beside = Path(sysconfig.get_path("scripts")) / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv", path=environ.get("PATH"))
    if found is None:
        raise HostError(
            "uv is not installed",
            why="npu-rl resolves and installs packages with uv, and needs it for nothing else.",
            hint="Install it: pip install --no-deps uv",
        )
    return found


def uv_environment(settings: PipSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of uv: the caller's, with pip's settings in place of uv's own.

    Index URLs are passed in variables, since any user sees command lines. All indexes have equal priority, as for pip:
    by default uv takes a package from the first index that has any version of it, so that the index of torch's CPU
    builds, which has old copies of many packages, would decide their versions.
    """
    found = {name: value for name, value in environ.items() if not name.startswith("UV_") or name in _KEPT_UV}
    found |= {
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
        "UV_DEFAULT_INDEX": settings.index_url,
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_HTTP_TIMEOUT": str(max(1, round(settings.timeout))),
        "UV_HTTP_RETRIES": str(settings.retries),
    }
    if settings.extra_index_urls:
        found["UV_INDEX"] = " ".join(settings.extra_index_urls)
    if settings.find_links:
        found["UV_FIND_LINKS"] = ",".join(settings.find_links)
    if settings.trusted_hosts:
        found["UV_INSECURE_HOST"] = " ".join(settings.trusted_hosts)
    if settings.cert is not None:
        found["SSL_CERT_DIR" if settings.cert.is_dir() else "SSL_CERT_FILE"] = str(settings.cert)
    if settings.client_cert is not None:
        found["SSL_CLIENT_CERT"] = str(settings.client_cert)
    if settings.proxy:
        found |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), settings.proxy)
    return found


def index_words(settings: PipSettings) -> list[str]:
    """Return the arguments of `uv pip` for pip's `no-index`, which uv reads from no variable."""
    return ["--no-index"] if settings.no_index else []


@contextmanager
def uv_folder(settings: PipSettings, environment: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Provide a folder, and an environment that keeps private indexes out of uv's cache."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-uv-") as name:
        folder = Path(name)
        if only_pypi(settings):
            yield folder, environment
        else:
            yield folder, {**environment, "UV_CACHE_DIR": str(folder / "cache")}


def only_pypi(settings: PipSettings) -> bool:
    """Return whether PyPI is the only index, so that uv's cache may contain the URLs."""
    return settings.index_urls == (DEFAULT_INDEX,) and not settings.find_links


def is_absent(reason: str) -> bool:
    """Return whether uv's reason is that the indexes lack a package altogether."""
    return _ABSENT in reason


def index_hint(reason: str, settings: PipSettings) -> str:
    """Return what to look at after an error of uv that an index may have caused."""
    lines = ["npu-rl gives uv the indexes, hosts and certificates of pip's configuration: `pip config list`."]
    if _OWN_AUTHORITY in reason:
        lines.append(
            "uv takes no self-signed certificate, even one that pip's `cert` names; `trusted-host` does."
        )
    if is_absent(reason) and not only_pypi(settings):
        lines.append(
            "An index that refuses the user or the password has no package at all to uv: check them, too."
        )
    return "\n".join(lines)


def run_uv(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float = _TIMEOUT
) -> CompletedCommand:
    """Run uv in a folder. Raises HostError if it is not installed, or does not end."""
    return run_quietly([find_uv(environment), *words], environment, folder, seconds)
