"""Source distributions from package indexes, found and downloaded as pip does, without running their code."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import SourceError
from npu_rl.common.user_path import user_path
from npu_rl.stack.sources.credentials import HIDDEN, scrub, strip_credentials
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.sdist import LARGEST, SUFFIX

if TYPE_CHECKING:
    from packaging.version import Version
    from unearth.link import Link

    from npu_rl.stack.sources.index_session import IndexSession

Progress = Callable[[int, "int | None"], None]  # bytes so far, bytes in all if known

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True)
class DownloadedSdist:
    """An sdist on disk with a checked hash.

    Attributes:
        size: In bytes.
        notes: Facts for people: a yanked release, an index that could not be reached.
    """

    path: Path
    sha256: str
    size: int
    notes: tuple[str, ...] = ()


class _Undelivered(Exception):
    """The reason why a place or a link did not deliver the sdist, without credentials."""


def download_sdist(
    name: str,
    version: str,
    *,
    sha256: str | None,
    settings: PipSettings,
    folder: Path,
    on_progress: Progress = lambda _done, _total: None,
    pause: Callable[[float], None] = time.sleep,
) -> DownloadedSdist:
    """Download the sdist of exactly this version into `folder`, which is created if necessary.

    It is taken from the first that delivers it: find-links, then the index, then the extra indexes; a yanked release,
    too. A file is renamed into place when it is complete and checked; partial files are removed.

    Args:
        sha256: The required digest in hex; None uses the index's digest, if it has one.
        on_progress: Called with the received and the total bytes; starts again from 0 with each try.
        pause: Called to wait between tries, with seconds.

    Raises:
        SourceError: No index delivers it; it lists each one with the reason.
        HostError: For invalid settings, or a folder that can't be written.
    """
    from packaging.version import InvalidVersion, Version

    from npu_rl.stack.sources.index_session import open_session

    try:
        wanted = Version(version)
    except InvalidVersion:
        raise SourceError("Not a version", where=f"{name}: {version!a}") from None
    reasons: list[str] = []
    notes: list[str] = []
    with open_session(settings, pause) as session:
        for kind, place in _places(settings):
            shown = strip_credentials(place)
            try:
                links = _links(session, settings, kind, place, name, wanted)
            except _Undelivered as error:
                reasons.append(f"{shown}: {error}")
                notes.append(f"could not be reached: {reasons[-1]}")
                continue
            for link in links:
                try:
                    path = folder / link.filename
                    found, size = _download(link, sha256, session, settings, path, on_progress)
                    return DownloadedSdist(path, found, size, (*notes, *_yanked(link, settings)))
                except _Undelivered as error:
                    host = urlsplit(strip_credentials(link.url)).netloc or "this machine"
                    reasons.append(f"{link.filename} from {host} (listed by {shown}): {error}")
            if not links:
                reasons.append(f"{shown}: has no {name} {version}")
    raise SourceError(
        f"No index delivered the sdist of {name} {version}" + (" with the locked SHA-256" if sha256 else ""),
        where=f"{name}=={version}",
        why="\n".join(reasons) or "pip's configuration sets no-index and has no find-links",
        hint="Check the version, the network and pip's settings, or take the component from git. A wrong SHA-256 is\n"
        "that of another file of the same name: use another index, or review the file before you make a new lock.",
    )


def _places(settings: PipSettings) -> Iterator[tuple[str, str]]:
    """Yield places in pip's order: find-links, local ones first, then the indexes."""
    places = [_as_url(place) for place in settings.find_links]
    yield from (("find_links", p) for p in sorted(places, key=lambda p: not p.startswith("file:")))
    yield from (("index_urls", _as_url(place)) for place in settings.index_urls)


def _as_url(place: str) -> str:
    """Return a place as a URL; pip also accepts plain paths."""
    if "://" in place:
        return place
    return user_path(place, "find-links of pip's configuration").absolute().as_uri()


def _links(
    session: IndexSession, settings: PipSettings, kind: str, place: str, name: str, wanted: Version
) -> list[Link]:
    """Return the sdists of a version that one place lists; _Undelivered if it has it in other forms only."""
    from packaging.version import Version
    from unearth import PackageFinder, TargetPython

    from npu_rl.stack.sources.index_session import FAILURES, NOT_TRUSTED, BadStatus

    local = place.startswith("file:")
    if strip_credentials(place) == HIDDEN:
        raise _Undelivered("it is not a valid URL; a password's special characters are written as %XX")
    if not local and not session.trusts(place):
        raise _Undelivered(NOT_TRUSTED)
    client: Any = session  # see IndexSession.trusts
    urls: dict[str, Any] = {"index_urls": [], "find_links": [], kind: [place]}
    finder = PackageFinder(session=client, target_python=TargetPython(), ignore_compatibility=True, **urls)
    try:
        packages = session.with_retries(lambda: list(finder.find_all_packages(name, allow_yanked=True)))
    except BadStatus as error:
        if error.status != 404:
            raise _Undelivered(str(error)) from None
        return []
    except FAILURES as error:
        raise _Undelivered(scrub(f"{type(error).__name__}: {error}", settings.secrets)) from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
        # unearth does not check a page's JSON and headers; a malformed page raises one of these
        raise _Undelivered(f"its page can't be read ({type(error).__name__})") from None
    files = {
        p.link.filename: p.link
        for p in packages
        if p.version and Version(p.version) == wanted
        if local or not p.link.is_file  # a remote page must not name local files
    }
    safe = sorted(filter(_FILENAME.fullmatch, files))
    sdists = [files[each] for each in safe if each.lower().endswith(SUFFIX)]
    if safe and not sdists:
        raise _Undelivered(f"has it only as {', '.join(safe)}, and an sdist is a {SUFFIX} (PEP 625)")
    return sdists


def _yanked(link: Link, settings: PipSettings) -> tuple[str, ...]:
    if link.yank_reason is None:
        return ()
    reason = scrub(str(link.yank_reason), settings.secrets)
    return ("this release was yanked" + (f": {reason}" if reason not in ("", "True") else ""),)


def _download(
    link: Link,
    sha256: str | None,
    session: IndexSession,
    settings: PipSettings,
    path: Path,
    on_progress: Progress,
) -> tuple[str, int]:
    """Download one file, and return its SHA-256, which must be the expected or the listed one, and its size."""
    from npu_rl.stack.sources.index_session import FAILURES

    listed = (link.hash_option or {}).get("sha256", [""])[0].lower()
    expected = sha256 or (listed if _SHA256.fullmatch(listed) else None)
    part = path.with_name(f"{path.name}.part")

    def fetch() -> tuple[str, int]:
        # the archive's bytes, undecoded, whatever encoding the server declares
        with session.get_stream(link.normalized, headers={"Accept-Encoding": "identity"}) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            return _write(response.iter_raw(), part, total, on_progress)

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found, size = session.with_retries(fetch)
        if found != (expected or found):
            raise _Undelivered(f"wrong sha256: expected {expected}, the file has {found}")
        with disk_errors(path):
            part.replace(path)
    except FAILURES as error:
        raise _Undelivered(scrub(f"{type(error).__name__}: {error}", settings.secrets)) from None
    finally:
        part.unlink(missing_ok=True)
    return found, size


def _write(chunks: Iterator[bytes], part: Path, total: int | None, on_progress: Progress) -> tuple[str, int]:
    """Write the chunks and return their SHA-256 and size."""
    digest = hashlib.sha256()
    size = 0
    with disk_errors(part):
        file = part.open("wb", buffering=0)
    with file:
        for chunk in chunks:
            size += len(chunk)
            if size > LARGEST:
                raise _Undelivered(f"it is larger than {LARGEST} bytes")
            digest.update(chunk)
            with disk_errors(part):
                while chunk:
                    chunk = chunk[file.write(chunk) :]
            on_progress(size, total)
    return digest.hexdigest(), size
