"""A lock of packages (PEP 751) as npu-rl writes it: one version of each package, with the files that fit one target."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from npu_rl.common.bounded import parse_toml, read_file
from npu_rl.common.errors import LockError
from npu_rl.stack.pylocks.pylock_targets import Target

PYPI_FILES = "files.pythonhosted.org"
_LARGEST = 8 << 20  # bytes; 220 packages have 150 kB
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True)
class LockedFile:
    """One file of a package. Until it is written, `url` may be a path or the URL of any index."""

    url: str
    sha256: str
    size: int | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


@dataclass(frozen=True)
class LockedPackage:
    """One package at one version."""

    name: str
    version: str
    wheels: tuple[LockedFile, ...] = ()
    sdist: LockedFile | None = None

    @property
    def files(self) -> tuple[LockedFile, ...]:
        """The wheels and the sdist."""
        return (*self.wheels, *([self.sdist] if self.sdist else []))


@dataclass(frozen=True)
class Alone:
    """A package that is installed apart from the others, because no set fits all of them; `why` is uv's reason."""

    name: str
    version: str
    why: str


@dataclass(frozen=True)
class Pylock:
    """The packages of one manifest for one target.

    Attributes:
        made_from: Digest of the requirements (`PackageSet.digest`).
        newest: Uploads after this moment were not considered; empty if all were.
        left_out: Packages that the host or the tree provides, or that the manifest names by URL.
        alone: Packages that are installed last, by themselves. They are also in `packages`.
    """

    manifest: str
    target: Target
    made_from: str
    packages: tuple[LockedPackage, ...]
    newest: str = ""
    left_out: tuple[str, ...] = ()
    alone: tuple[Alone, ...] = ()

    def from_source(self) -> tuple[LockedPackage, ...]:
        """Return the packages without a wheel for the target, which are built at installation."""
        return tuple(package for package in self.packages if not package.wheels)


def read_pylock(path: Path) -> Pylock:
    """Read a lock of packages. Raises LockError if it is not one that npu-rl made."""
    try:
        return parse_pylock(read_file(path, _LARGEST).decode("utf-8"), str(path))
    except FileNotFoundError as error:
        raise LockError("The packages of this manifest are not locked", where=str(path)) from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise LockError("The lock of packages can't be read", where=str(path), why=str(error)) from error


def parse_pylock(text: str, where: str) -> Pylock:
    """Parse the text of a lock of packages. Raises LockError."""
    try:
        data = parse_toml(text)
        if data["lock-version"] != "1.0":
            raise ValueError("its lock-version is not 1.0")
        tool = data["tool"]["npu-rl"]
        return Pylock(
            manifest=_text(tool["manifest"]),
            target=Target(_text(tool["python"]), _text(tool["machine"]), _text(tool["glibc"])),
            made_from=_text(tool["made-from"]),
            packages=tuple(locked_packages(data)),
            newest=_text(tool.get("exclude-newer", "")),
            left_out=tuple(map(_text, tool["left-out"])),
            alone=tuple(
                Alone(_text(one["name"]), _text(one["version"]), _text(one["why"]))
                for one in tool.get("alone", [])
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise LockError("Not a lock of packages that npu-rl made", where=where, why=reason) from error


def locked_packages(data: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """Yield the packages of a parsed file. Raises ValueError, KeyError or TypeError for an invalid package."""
    for package in data["packages"]:
        name, version = _text(package["name"]), _text(package["version"])
        if canonicalize_name(name) != name or not _VERSION.fullmatch(version):
            raise ValueError(f"invalid package {name} {version}")
        sdist = package.get("sdist")
        found = LockedPackage(
            name,
            version,
            tuple(_file(wheel) for wheel in package.get("wheels", [])),
            _file(sdist) if sdist is not None else None,
        )
        if not found.files:
            raise ValueError(f"{name} has no file")
        yield found


def _file(data: Mapping[str, Any]) -> LockedFile:
    url = data["url"] if "url" in data else data["path"]  # a path is that of a file of find-links
    sha256, size = _text(data["hashes"]["sha256"]), data.get("size")
    if not isinstance(size, (int, type(None))):
        raise ValueError("a size is not a number")
    if not _SHA256.fullmatch(sha256):
        raise ValueError("a hash is not a SHA-256")
    found = LockedFile(_text(url), sha256, size)
    if not _FILE_NAME.fullmatch(found.name):
        raise ValueError("a file has no name")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def elsewhere(pylock: Pylock) -> tuple[str, ...]:
    """Return the packages with a file that is not on PyPI."""
    return tuple(one.name for one in pylock.packages if any(not is_of_pypi(file.url) for file in one.files))


def is_of_pypi(url: str) -> bool:
    """Return whether a URL is exactly PyPI's own URL of a file."""
    return bool(re.fullmatch(rf"https://{re.escape(PYPI_FILES)}/packages/[0-9a-f/]+/[A-Za-z0-9._+!%-]+", url))


# -- text ----------------------------------------------------------------------------------------------


def dump_pylock(pylock: Pylock) -> str:
    """Return the text of a lock. Raises LockError for a file that is not on PyPI."""
    strangers = elsewhere(pylock)
    if strangers:
        raise LockError(
            "These packages are not PyPI's, so no file can name them",
            where=", ".join(strangers[:20])
            + (f" and {len(strangers) - 20} more" if len(strangers) > 20 else ""),
            why="A pylock names each file's address, and a private index's address has to stay out of files.",
            hint="Use --format pip: it has names, versions and hashes, and pip's own configuration names the index.",
        )
    return "\n".join(_lines(pylock)) + "\n"


def _lines(pylock: Pylock) -> Iterator[str]:
    target = pylock.target
    yield 'lock-version = "1.0"'
    yield f"environments = [{_quoted(target.markers)}]"
    yield f"requires-python = {_quoted(f'=={target.python}.*')}"
    yield 'created-by = "npu-rl"'
    for package in pylock.packages:
        yield from ("", "[[packages]]", *_keys(name=package.name, version=package.version))
        if package.sdist is not None:
            yield f"sdist = {_table(package.sdist)}"
        if package.wheels:
            yield from ("wheels = [", *(f"    {_table(wheel)}," for wheel in package.wheels), "]")
    yield from ("", "[tool.npu-rl]", *_keys(manifest=pylock.manifest, python=target.python))
    yield from _keys(machine=target.machine, glibc=target.glibc)
    yield f"made-from = {_quoted(pylock.made_from)}"
    if pylock.newest:
        yield f"exclude-newer = {_quoted(pylock.newest)}"
    yield f"left-out = [{', '.join(map(_quoted, pylock.left_out))}]"
    for one in pylock.alone:
        yield from ("", "[[tool.npu-rl.alone]]", *_keys(name=one.name, version=one.version, why=one.why))


def _keys(**values: str) -> Iterator[str]:
    yield from (f"{key} = {_quoted(value)}" for key, value in values.items())


def _table(file: LockedFile) -> str:
    size = f", size = {file.size}" if file.size is not None else ""
    return f"{{ url = {_quoted(file.url)}{size}, hashes = {{ sha256 = {_quoted(file.sha256)} }} }}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)  # a basic string of TOML has the same escapes
