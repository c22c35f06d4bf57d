"""Source distributions from package indexes, found and downloaded as pip does, without running their code."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import store_hint
from npu_rl.common.errors import HostError, SourceError
from npu_rl.common.user_path import user_path
from npu_rl.stack.sources.credentials import HIDDEN, scrub, strip_credentials
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.sdist import LARGEST, SUFFIX

if TYPE_CHECKING:
    from unearth.link import Link

    from npu_rl.stack.sources.index_session import IndexSession

Progress = Callable[[int, "int | None"], None]  # bytes so far, bytes in all if known
Pause = Callable[[float], None]  # waits that many seconds

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class SdistLink:
    """One place that has the sdist.

    Attributes:
        url: The file, without credentials.
        index: Its listing, without credentials.
        sha256: The digest in the listing, if it has one.
        notes: Facts for people: a yanked release, an index that could not be reached.
    """

    filename: str
    url: str
    index: str
    sha256: str | None
    link: Link = field(repr=False, compare=False)  # may hold credentials: never shown
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DownloadedSdist:
    """An sdist on disk with a checked hash; `size` is in bytes."""

    path: Path
    filename: str
    sha256: str
    size: int
    url: str
    index: str
    notes: tuple[str, ...] = ()


class _Undelivered(Exception):
    """The reason why a place or a link did not deliver the sdist, without credentials."""


def find_sdist(name: str, version: str, settings: PipSettings, *, pause: Pause = time.sleep) -> SdistLink:
    """Find the first sdist of exactly this version: in find-links, then the index, then the extra indexes.

    A yanked release is taken, with a note.

    Args:
        pause: Called to wait between tries, with seconds.

    Raises:
        SourceError: If no index has it, or for an invalid name.
        HostError: For invalid settings.
    """
    from npu_rl.stack.sources.index_session import open_session

    with open_session(settings, pause) as session:
        search = _Search(name, version, settings, session)
        for link in search.links():
            return link
    raise search.not_found()


def download_sdist(
    name: str,
    version: str,
    *,
    sha256: str | None,
    settings: PipSettings,
    folder: Path,
    on_progress: Progress = lambda _done, _total: None,
    pause: Pause = time.sleep,
) -> DownloadedSdist:
    """Download the sdist into `folder`, which is created if necessary, from the first index that delivers it.

    A file is renamed into place when it is complete and checked; partial files are removed.

    Args:
        sha256: The required digest in hex; None uses the index's digest, if it has one.
        on_progress: Called with the received and the total bytes; starts again from 0 with each try.

    Raises:
        SourceError: No index delivers it; it lists each one with the reason.
        HostError: For invalid settings, or a folder that can't be written.
    """
    from npu_rl.stack.sources.index_session import open_session

    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with open_session(settings, pause) as session:
        search = _Search(name, version, settings, session)
        reasons = []
        for link in search.links():
            try:
                return _download(link, sha256, search, folder, on_progress)
            except _Undelivered as error:
                host = urlsplit(link.url).netloc or "this machine"
                reasons.append(f"{link.filename} from {host} (listed by {link.index}): {error}")
    if not reasons:
        raise search.not_found()
    raise SourceError(
        f"No index delivered the sdist of {name} {version}" + (" with the locked SHA-256" if sha256 else ""),
        where=f"{name}=={version}",
        why="\n".join([*reasons, *search.reasons]),
        hint="If the SHA-256 is wrong, it is a different file of the same name: use another index, or review the file "
        "before you make a new lock. Otherwise check the network and pip's settings.",
    )


class _Search:
    """A search for one version, in all places that pip would search.

    Attributes:
        reasons: The reason for each place that does not have the version.
    """

    def __init__(self, name: str, version: str, settings: PipSettings, session: IndexSession) -> None:
        from packaging.version import InvalidVersion, Version

        if not _NAME.fullmatch(name):
            raise SourceError("Not a package name", where=f"{name!a}", hint="Write it as on PyPI.")
        try:
            self._wanted = Version(version)
        except InvalidVersion:
            raise SourceError("Not a version", where=f"{name}: {version!a}") from None
        self._name = name
        self.settings = settings
        self.session = session
        self.reasons: list[str] = []

    def links(self) -> Iterator[SdistLink]:
        """Yield each sdist of the version. A place is only queried when the caller gets to it."""
        from packaging.version import Version

        seen = set()
        notes: list[str] = []
        for kind, place in self._places():
            shown = strip_credentials(place)
            try:
                packages = self._list_packages(kind, place)
            except _Undelivered as error:
                self.reasons.append(f"{shown}: {error}")
                notes.append(f"could not be reached: {self.reasons[-1]}")
                continue
            files = {
                p.link.filename: p.link for p in packages if p.version and Version(p.version) == self._wanted
            }
            sdists = [link for name, link in files.items() if is_safe_sdist_name(name)]
            if not sdists:
                found = ", ".join(sorted(filter(_FILENAME.fullmatch, files)))
                only = f"has it only as {found}, and an sdist is a {SUFFIX} (PEP 625)"
                self.reasons.append(f"{shown}: " + (only if found else f"has no {self._name} {self._wanted}"))
            for link in sdists:
                if link.url_without_fragment not in seen:
                    seen.add(link.url_without_fragment)
                    yield self._sdist_link(link, shown, notes)

    def _places(self) -> Iterator[tuple[str, str]]:
        """Yield places in pip's order: find-links, local ones first, then the indexes."""
        places = [_as_url(place) for place in self.settings.find_links]
        yield from (("find_links", p) for p in sorted(places, key=lambda p: not p.startswith("file:")))
        yield from (("index_urls", _as_url(place)) for place in self.settings.index_urls)

    def _list_packages(self, kind: str, place: str) -> list[Any]:
        """Return all packages of this name at one place, every version and format."""
        from unearth import PackageFinder, TargetPython

        from npu_rl.stack.sources.index_session import FAILURES, NOT_TRUSTED, BadStatus

        local = place.startswith("file:")
        if strip_credentials(place) == HIDDEN:
            raise _Undelivered("it is not a valid URL; a password's special characters are written as %XX")
        if not local and not self.session.trusts(place):
            raise _Undelivered(NOT_TRUSTED)
        session: Any = self.session  # see IndexSession.trusts
        urls: dict[str, Any] = {"index_urls": [], "find_links": [], kind: [place]}
        finder = PackageFinder(
            session=session, target_python=TargetPython(), ignore_compatibility=True, **urls
        )
        try:
            packages = self.session.with_retries(
                lambda: list(finder.find_all_packages(self._name, allow_yanked=True))
            )
        except BadStatus as error:
            if error.status != 404:
                raise _Undelivered(str(error)) from None
            return []
        except FAILURES as error:
            raise _Undelivered(self.shown(error)) from None
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
            # unearth does not check a page's JSON and headers; a malformed page raises one of these
            raise _Undelivered(f"its page can't be read ({type(error).__name__})") from None
        return [p for p in packages if local or not p.link.is_file]  # a remote page must not name local files

    def _sdist_link(self, link: Link, index: str, notes: list[str]) -> SdistLink:
        yanked = []
        if link.yank_reason is not None:
            reason = scrub(str(link.yank_reason), self.settings.secrets)
            yanked = ["this release was yanked" + (f": {reason}" if reason not in ("", "True") else "")]
        listed = (link.hash_option or {}).get("sha256", [""])[0].lower()
        sha256 = listed if _SHA256.fullmatch(listed) else None
        return SdistLink(link.filename, strip_credentials(link.url), index, sha256, link, (*notes, *yanked))

    def shown(self, error: Exception) -> str:
        """Return an HTTP library's error as text for a message."""
        return scrub(f"{type(error).__name__}: {error}", self.settings.secrets)

    def not_found(self) -> SourceError:
        """Return the error for a version that no place has."""
        return SourceError(
            f"No index has an sdist of {self._name} {self._wanted}",
            where=f"{self._name}=={self._wanted}",
            why="\n".join(self.reasons) or "pip's configuration sets no-index and has no find-links",
            hint="Check the version, add an index to pip's configuration, or take the component from git.",
        )


def _download(
    link: SdistLink, expected: str | None, search: _Search, folder: Path, on_progress: Progress
) -> DownloadedSdist:
    """Download one file, whose hash must be the expected one and the listed one."""
    if expected and link.sha256 and link.sha256 != expected:
        raise _Undelivered(f"wrong sha256: expected {expected}, the index lists {link.sha256}")
    path = folder / link.filename
    part = path.with_name(f"{path.name}.part")
    try:
        found, size = _transfer(link, search, part, on_progress)
        if found != (expected or link.sha256 or found):
            raise _Undelivered(f"wrong sha256: expected {expected or link.sha256}, the file has {found}")
        with _writing(path):
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return DownloadedSdist(path, link.filename, found, size, link.url, link.index, link.notes)


def _transfer(link: SdistLink, search: _Search, part: Path, on_progress: Progress) -> tuple[str, int]:
    from npu_rl.stack.sources.index_session import FAILURES

    def fetch() -> tuple[str, int]:
        # the archive's bytes, undecoded, whatever encoding the server declares
        headers = {"Accept-Encoding": "identity"}
        with search.session.get_stream(link.link.normalized, headers=headers) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            return _write(response.iter_raw(), part, total, on_progress)

    try:
        if not link.link.is_file:
            return search.session.with_retries(fetch)
        with open_file(link.link.file_path) as file:
            return _write(iter(lambda: file.read(_CHUNK), b""), part, None, on_progress)
    except FAILURES as error:
        raise _Undelivered(search.shown(error)) from None


def _write(chunks: Iterator[bytes], part: Path, total: int | None, on_progress: Progress) -> tuple[str, int]:
    """Write the chunks and return their SHA-256 and size."""
    digest = hashlib.sha256()
    size = 0
    with _writing(part):
        file = part.open("wb")
    with file:
        for chunk in chunks:
            size += len(chunk)
            if size > LARGEST:
                raise _Undelivered(f"it is larger than {LARGEST} bytes")
            digest.update(chunk)
            with _writing(part):
                file.write(chunk)
            on_progress(size, total)
        with _writing(part):
            file.flush()
    return digest.hexdigest(), size


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into HostError, to separate it from errors of the index."""
    try:
        yield
    except OSError as error:
        hint = store_hint(error.errno or 0, str(path)) or "Free some space, or make the folder writable."
        raise HostError(
            "The download can't be written", where=str(path), why=error.strerror, hint=hint
        ) from error


def is_safe_sdist_name(name: str) -> bool:
    """Return whether a name is that of an sdist and can't lead out of a folder."""
    return name.lower().endswith(SUFFIX) and _FILENAME.fullmatch(name) is not None


def _as_url(place: str) -> str:
    """Return a place as a URL; pip also accepts plain paths."""
    if "://" in place:
        return place
    return user_path(place, "find-links of pip's configuration").absolute().as_uri()
