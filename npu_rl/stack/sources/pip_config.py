"""The user's pip configuration by pip's rules: without pip, which a virtual environment of uv does not have.

Files from the least to the most specific (system, user, environment, PIP_CONFIG_FILE), then PIP_* variables. A section
beats a file, so `[install]` of the system's file wins over `[global]` of the user's. Later values replace earlier
ones, lists too.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.errors import HostError
from npu_rl.stack.sources.credentials import secrets_in

DEFAULT_INDEX = "https://pypi.org/simple"
TORCH_FOR_CPUS = "https://download.pytorch.org/whl/cpu"  # on x86-64 PyPI has its build for CUDA alone
_ALIASES = {"pypi-url": "index-url", "default-timeout": "timeout"}
_SWITCH = dict.fromkeys(("y", "yes", "t", "true", "on", "1"), True)
_SWITCH |= dict.fromkeys(("n", "no", "f", "false", "off", "0"), False)


@dataclass(frozen=True)
class PipSettings:
    """pip's settings for indexes and the network; `repr` leaves out what may have credentials.

    Attributes:
        timeout: Seconds per network operation.
        retries: Number of further attempts after the first.
        find_links: Folders, HTML files or URLs that list files.
        cert: A bundle of certificate authorities (file or folder).
    """

    index_url: str = field(default=DEFAULT_INDEX, repr=False)
    extra_index_urls: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    no_index: bool = False
    cert: Path | None = None
    client_cert: Path | None = None
    proxy: str | None = field(default=None, repr=False)
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0
    retries: int = 5

    @property
    def index_urls(self) -> tuple[str, ...]:
        """The indexes in order; none with `no-index`."""
        return () if self.no_index else (self.index_url, *self.extra_index_urls)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and tokens in the settings, to be removed from messages."""
        return secrets_in((self.index_url, *self.extra_index_urls, *self.find_links, self.proxy or ""))


def read_pip_settings(
    environ: Mapping[str, str] | None = None, *, prefix: Path | None = None, system: Path = Path("/")
) -> PipSettings:
    """Read the settings that `pip install` and `pip download` use on this machine.

    Args:
        environ: The environment (default: this process's).
        prefix: The Python environment (default: sys.prefix).
        system: The folder to use as `/` in the system-wide paths.

    Raises:
        HostError: For a file that is not valid, or a value of the wrong type.
    """
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or Path.home())
    parser = configparser.RawConfigParser()
    parser.optionxform = _key  # type: ignore[assignment, method-assign]
    for path in _configuration_files(environ, home, prefix or Path(sys.prefix), system):
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            # The parser's own message quotes the line, and the line may hold a password.
            lines = [number for number, _ in getattr(error, "errors", ())]
            line = getattr(error, "lineno", None) or next(iter(lines), "?")
            raise HostError(
                "pip's configuration can't be read",
                where=str(path),
                why=f"{type(error).__name__} in line {line}",
                hint="Correct the file, or set PIP_CONFIG_FILE=/dev/null to ignore pip's configuration files.",
            ) from None
    values: dict[str, str] = {}
    for section in ("global", "install", "download"):
        if parser.has_section(section):
            values.update({key: text for key, text in parser.items(section) if text})
    values.update({_key(name[4:]): text for name, text in environ.items() if name[:4] == "PIP_" and text})
    return _settings(values, environ, home)


def _configuration_files(
    environ: Mapping[str, str], home: Path, prefix: Path, system: Path
) -> Iterator[Path]:
    """Yield the files that pip reads, least specific first."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if sys.platform == "darwin":
        yield system / "Library/Application Support/pip/pip.conf"
        support = home / "Library/Application Support"
        user = support if (support / "pip").is_dir() else home / ".config"
    else:
        folders = environ.get("XDG_CONFIG_DIRS", "").strip() or str(system / "etc/xdg")
        yield from (_expand(folder, home) / "pip/pip.conf" for folder in folders.split(os.pathsep) if folder)
        yield system / "etc/pip.conf"
    if not (chosen and Path(chosen).exists()):  # PIP_CONFIG_FILE stands in for the user's own files
        yield home / ".pip/pip.conf"
        yield _expand(str(user), home) / "pip/pip.conf"
    yield prefix / "pip.conf"
    if chosen:
        yield Path(chosen)


def _expand(path: str, home: Path) -> Path:
    """Expand `~` by the given environment, not by that of this process."""
    return home / path[2:] if path.startswith("~/") else home if path == "~" else Path(path)


def _key(name: str) -> str:
    key = name.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(key, key)


def _settings(values: Mapping[str, str], environ: Mapping[str, str], home: Path) -> PipSettings:
    def words(key: str) -> tuple[str, ...]:
        return tuple(values.get(key, "").split())

    def path(text: str) -> Path | None:
        return _expand(text.strip(), home) if text else None

    # requests, which pip uses, takes these two where `cert` is not set
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE", "")
    try:
        settings = PipSettings(
            index_url=values.get("index-url", DEFAULT_INDEX).strip(),
            extra_index_urls=words("extra-index-url"),
            find_links=tuple(
                str(_expand(word, home)) if word[0] == "~" else word for word in words("find-links")
            ),
            no_index=_SWITCH[values.get("no-index", "no").strip().lower()],
            cert=path(values.get("cert", bundle)),
            client_cert=path(values.get("client-cert", "")),
            proxy=values.get("proxy", "").strip() or None,
            trusted_hosts=words("trusted-host"),
            timeout=float(values.get("timeout", PipSettings.timeout)),
            retries=int(values.get("retries", PipSettings.retries)),
        )
        if settings.retries < 0 or not 0 < settings.timeout < float("inf"):
            raise ValueError
    except (ValueError, KeyError):
        raise HostError(
            "Invalid value in pip's configuration",
            where="timeout, retries or no-index",
            why=", ".join(
                f"{key} = {values[key]}" for key in ("timeout", "retries", "no-index") if key in values
            ),
            hint="Run `pip config debug` to see where they are set.",
        ) from None
    return settings
