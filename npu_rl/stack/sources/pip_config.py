"""Reader of the user's pip configuration by pip's rules, without running pip.

The rules are those of pip's `_internal/configuration.py` and `cli/parser.py`: files from the least to the
most specific (system, user, environment, PIP_CONFIG_FILE), then PIP_* variables; a section beats a file, so
`[install]` of the system's file wins over `[global]` of the user's. Later values replace earlier ones, lists
too.
"""

from __future__ import annotations

import configparser
import locale
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from npu_rl.common.errors import HostError
from npu_rl.stack.sources.credentials import secrets_in, strip_credentials

DEFAULT_INDEX = "https://pypi.org/simple"
TORCH_FOR_CPUS = "https://download.pytorch.org/whl/cpu"  # on x86-64 PyPI has its build for CUDA alone
_SECTIONS = ("global", "install", "download", ":env:")
_ALIASES = {"pypi-url": "index-url", "default-timeout": "timeout"}
_TRUE = {"y", "yes", "t", "true", "on", "1"}
_FALSE = {"n", "no", "f", "false", "off", "0"}


@dataclass(frozen=True)
class PipSettings:
    """pip's settings for indexes and the network; `repr` shows no credentials.

    Attributes:
        timeout: Seconds per network operation.
        retries: Number of further attempts after the first.
        find_links: Folders, HTML files or URLs that list files.
        cert: A bundle of certificate authorities (file or folder).
    """

    index_url: str = DEFAULT_INDEX
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: Path | None = None
    client_cert: Path | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0
    retries: int = 5
    files: tuple[Path, ...] = field(default=(), compare=False)  # the configuration files that were read

    @property
    def index_urls(self) -> tuple[str, ...]:
        """The indexes in order; none with `no-index`."""
        return () if self.no_index else (self.index_url, *self.extra_index_urls)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and tokens in the settings, to be removed from messages."""
        return secrets_in((self.index_url, *self.extra_index_urls, *self.find_links, self.proxy or ""))

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("index_url", "proxy"):
            shown[name] = strip_credentials(shown[name]) if shown[name] else shown[name]
        for name in ("extra_index_urls", "find_links"):
            shown[name] = tuple(strip_credentials(url) for url in shown[name])
        return f"PipSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclass(frozen=True)
class _Value:
    text: str
    origin: str  # a file, or the environment variable's name


def read_pip_settings(
    environ: Mapping[str, str] | None = None,
    *,
    prefix: Path | None = None,
    system: Path = Path("/"),
    platform: str = sys.platform,
) -> PipSettings:
    """Read the settings that `pip install` and `pip download` use on this machine.

    Args:
        environ: The environment (default: this process's).
        prefix: The Python environment (default: sys.prefix).
        system: The folder to use as `/` in the system-wide paths.
        platform: As in sys.platform.

    Raises:
        HostError: For a file that is not valid, or a value of the wrong type.
    """
    environ = os.environ if environ is None else environ
    prefix = Path(sys.prefix) if prefix is None else prefix
    read: list[Path] = []
    merged: dict[tuple[str, str], _Value] = {}
    for path in _configuration_files(environ, prefix, system, platform):
        if path.exists():
            merged.update(_parse(path))
            read.append(path)
    for variable, text in environ.items():
        if variable.startswith("PIP_"):
            merged[":env:", _key(variable[4:])] = _Value(text, variable)
    return _settings(_ordered(merged), environ, tuple(read))


def _configuration_files(
    environ: Mapping[str, str], prefix: Path, system: Path, platform: str
) -> Iterator[Path]:
    """Yield the files that pip reads, least specific first."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    home = _home(environ)
    if platform == "darwin":
        yield system / "Library/Application Support/pip/pip.conf"
        application_support = home / "Library/Application Support/pip"
        user = application_support if application_support.is_dir() else home / ".config/pip"
    else:
        folders = environ.get("XDG_CONFIG_DIRS", "").strip() or str(system / "etc/xdg")
        yield from (_expand(folder, home) / "pip/pip.conf" for folder in folders.split(os.pathsep) if folder)
        yield system / "etc/pip.conf"
        config_home = environ.get("XDG_CONFIG_HOME", "").strip()
        user = (_expand(config_home, home) if config_home else home / ".config") / "pip"
    if not (chosen and Path(chosen).exists()):  # PIP_CONFIG_FILE stands in for the user's own files
        yield home / ".pip/pip.conf"
        yield user / "pip.conf"
    yield prefix / "pip.conf"
    if chosen:
        yield Path(chosen)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _expand(path: str, home: Path) -> Path:
    """Expand `~` by the given environment, not by that of this process."""
    return home / path[2:] if path.startswith("~/") else home if path == "~" else Path(path)


def _key(name: str) -> str:
    key = name.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(key, key)


def _parse(path: Path) -> dict[tuple[str, str], _Value]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding=locale.getpreferredencoding(False))
    except UnicodeDecodeError as error:
        raise _malformed(path, f"it is not {error.encoding} text") from None
    except configparser.Error as error:
        # The parser's own message quotes the line, and the line may hold a password.
        raise _malformed(path, _reason(error)) from None
    return {
        (section, _key(name)): _Value(text, str(path))
        for section in parser.sections()
        for name, text in parser.items(section)
        if text is not None
    }


def _reason(error: configparser.Error) -> str:
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno}: a value before the first [section]"
    if isinstance(error, configparser.DuplicateSectionError):
        return f"line {error.lineno}: [{error.section}] appears twice"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"line {error.lineno}: {error.option} appears twice in [{error.section}]"
    if isinstance(error, configparser.ParsingError) and error.errors:
        return f"line {error.errors[0][0]} is neither [section] nor name = value"
    return "it can't be parsed"


def _malformed(path: Path, why: str) -> HostError:
    return HostError(
        "pip's configuration can't be read",
        where=str(path),
        why=why,
        hint="Correct the file, or set PIP_CONFIG_FILE=/dev/null to ignore all of pip's configuration files.",
    )


def _ordered(merged: Mapping[tuple[str, str], _Value]) -> dict[str, _Value]:
    """Return one value per key: the last one by section. pip ignores empty values."""
    return {
        key: value
        for wanted in _SECTIONS
        for (section, key), value in merged.items()
        if section == wanted and value.text
    }


def _settings(
    values: Mapping[str, _Value], environ: Mapping[str, str], read: tuple[Path, ...]
) -> PipSettings:
    home = _home(environ)

    def text(key: str) -> str | None:
        return values[key].text.strip() if key in values else None

    def words(key: str) -> tuple[str, ...]:
        return tuple(values[key].text.split()) if key in values else ()

    def path(key: str, *otherwise: str) -> Path | None:
        found = text(key) or next((environ[name] for name in otherwise if environ.get(name)), None)
        return _expand(found, home) if found else None

    return PipSettings(
        index_url=text("index-url") or DEFAULT_INDEX,
        extra_index_urls=words("extra-index-url"),
        find_links=tuple(
            str(_expand(word, home)) if word.startswith("~") else word for word in words("find-links")
        ),
        no_index=_boolean(values.get("no-index")),
        # requests, which pip uses, takes these two where `cert` is not set
        cert=path("cert", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        client_cert=path("client-cert"),
        proxy=text("proxy"),
        trusted_hosts=words("trusted-host"),
        timeout=_number("timeout", values.get("timeout"), PipSettings.timeout),
        retries=int(_number("retries", values.get("retries"), PipSettings.retries, whole=True)),
        files=read,
    )


def _boolean(value: _Value | None) -> bool:
    if value is None:
        return False
    text = value.text.strip().lower()
    if text not in _TRUE | _FALSE:
        raise _bad_value("no-index", value, "yes or no")
    return text in _TRUE


def _number(key: str, value: _Value | None, default: float, *, whole: bool = False) -> float:
    if value is None:
        return default
    kind = "a whole number, 0 or more" if whole else "a number of seconds above 0"
    try:
        number: float = int(value.text) if whole else float(value.text)
    except ValueError:
        raise _bad_value(key, value, kind) from None
    if not (number >= 0 if whole else 0 < number < float("inf")):
        raise _bad_value(key, value, kind)
    return number


def _bad_value(key: str, value: _Value, kind: str) -> HostError:
    return HostError(
        f"Invalid value of pip's setting {key}",
        where=value.origin,
        why=f"{value.text.strip()!r} is not {kind}",
        hint="Correct it there, or remove it.",
    )
