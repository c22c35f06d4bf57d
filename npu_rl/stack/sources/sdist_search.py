"""Search for the sdist of one version in all places that pip would search."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from npu_rl.common.errors import SourceError
from npu_rl.common.user_path import user_path
from npu_rl.stack.sources.credentials import HIDDEN, scrub, strip_credentials
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.sdist import SUFFIX, is_sdist_name

if TYPE_CHECKING:
    from unearth.link import Link

    from npu_rl.stack.sources.index_session import IndexSession

SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_NEARBY = 3  # versions to name on either side of a missing one


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
    notes: tuple[str, ...] = ()
    link: Link | None = field(default=None, repr=False, compare=False)  # may hold credentials: never shown


class Undelivered(Exception):
    """The reason why a place or a link did not deliver the sdist, without credentials."""


class SdistSearch:
    """A search for one version.

    Attributes:
        reasons: The reason for each place that does not have the version.
    """

    def __init__(self, name: str, version: str, settings: PipSettings, session: IndexSession) -> None:
        from packaging.version import InvalidVersion, Version
        from unearth import TargetPython

        if not _NAME.fullmatch(name):
            raise SourceError("Not a package name", where=f"{name!a}", hint="Write it as on PyPI.")
        try:
            self.wanted = Version(version)
        except InvalidVersion:
            raise SourceError("Not a version", where=f"{name}: {version!a}") from None
        self.name = name
        self.version = version
        self.settings = settings
        self.session = session
        self.reasons: list[str] = []  # one for each place without the version
        self._unreachable: list[str] = []  # those of places that could not be reached
        self._python = TargetPython()

    def links(self) -> Iterator[SdistLink]:
        """Yield each sdist of the version. A place is only queried when the caller gets to it."""
        seen = set()
        for kind, place in self._places():
            shown = strip_credentials(place)
            if place.startswith("file:") and not _local_path(place).exists():
                # Common, so not worth a note.
                self.reasons.append(f"{shown}: there is no such file or folder")
                continue
            try:
                packages = self._list_packages(kind, place)
            except Undelivered as error:
                self.reasons.append(f"{shown}: {error}")
                self._unreachable.append(self.reasons[-1])
                continue
            matches = [
                p for p in packages if self._is_wanted(p.version) and is_safe_sdist_name(p.link.filename)
            ]
            if not matches:
                self.reasons.append(f"{shown}: {self._describe_packages(packages)}")
            for package in matches:
                if package.link.url_without_fragment not in seen:
                    seen.add(package.link.url_without_fragment)
                    yield self._sdist_link(package.link, shown)

    def _places(self) -> Iterator[tuple[str, str]]:
        """Yield places in pip's order: find-links, local ones first, then the indexes."""
        places = [_as_url(place) for place in self.settings.find_links]
        yield from (("find_links", p) for p in sorted(places, key=lambda p: not p.startswith("file:")))
        yield from (("index", _as_url(place)) for place in self.settings.index_urls)

    def _list_packages(self, kind: str, place: str) -> list[Any]:
        """Return all packages of this name at one place, every version and format."""
        from unearth import PackageFinder

        from npu_rl.stack.sources.index_session import FAILURES, NOT_TRUSTED, RefusedPage

        local = place.startswith("file:")
        if strip_credentials(place) == HIDDEN:
            raise Undelivered("it is not a valid URL; a password's special characters are written as %XX")
        if not local and not self.session.trusts(place):
            raise Undelivered(NOT_TRUSTED)
        session: Any = self.session  # see IndexSession.trusts
        finder = PackageFinder(
            session=session,
            index_urls=[place] if kind == "index" else [],
            find_links=[place] if kind == "find_links" else [],
            target_python=self._python,
            ignore_compatibility=True,
        )
        self.session.last_status = None
        try:
            packages = list(finder.find_all_packages(self.name, allow_yanked=True))
        except RefusedPage as error:
            raise Undelivered(str(error)) from None
        except FAILURES as error:
            raise Undelivered(network_reason(error, self.settings)) from None
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
            # unearth does not check a page's JSON and headers; a malformed page raises one of these
            raise Undelivered(f"its page can't be read ({type(error).__name__})") from None
        status = self.session.last_status
        if not packages and status is not None and status >= 400 and status != 404:
            raise Undelivered(status_reason(status))
        return [p for p in packages if local or not p.link.is_file]  # a remote page must not name local files

    def _is_wanted(self, version: str | None) -> bool:
        from packaging.version import Version

        return version is not None and Version(version) == self.wanted

    def _sdist_link(self, link: Link, index: str) -> SdistLink:
        notes = [f"could not be reached: {reason}" for reason in self._unreachable]
        if link.yank_reason is not None:
            reason = scrub(str(link.yank_reason), self.settings.secrets)
            notes.append("this release was yanked" + (f": {reason}" if reason and reason != "True" else ""))
        listed = (link.hash_option or {}).get("sha256", [""])[0].lower()
        return SdistLink(
            filename=link.filename,
            url=strip_credentials(link.url),
            index=index,
            sha256=listed if SHA256.fullmatch(listed) else None,
            notes=tuple(notes),
            link=link,
        )

    def _describe_packages(self, packages: list[Any]) -> str:
        from packaging.version import Version

        names = sorted(p.link.filename for p in packages if self._is_wanted(p.version))
        wheels = [name for name in names if name.endswith(".whl")]
        others = [n for n in names if n not in wheels and not is_sdist_name(n) and _FILENAME.fullmatch(n)]
        if others:
            return f"has {self.version} only as {others[0]}, and an sdist is a {SUFFIX} (PEP 625)"
        if wheels:
            return f"has {self.version} only as a wheel ({scrub(wheels[0])}), and a wheel is not the source"
        versions = sorted({Version(p.version) for p in packages if is_safe_sdist_name(p.link.filename)})
        if not versions:
            return f"has {self.name}, but no sdist of it" if packages else f"does not have {self.name}"
        at = bisect(versions, self.wanted)
        near = versions[max(0, at - _NEARBY) : at + _NEARBY]
        return f"has no {self.version}; the nearest sdists are {', '.join(map(str, near))}"

    def not_found(self) -> SourceError:
        """Return the error for a version that no place has."""
        return SourceError(
            f"No index has an sdist of {self.name} {self.version}",
            where=f"{self.name}=={self.version}",
            why="\n".join(self.reasons) or "pip's configuration sets no-index and has no find-links",
            hint="Check the version, add an index to pip's configuration, or take the component from git.",
        )


def network_reason(error: Exception, settings: PipSettings) -> str:
    """Return an HTTP library's error as text for a message."""
    return scrub(f"{type(error).__name__}: {error}", settings.secrets)


def status_reason(status: int) -> str:
    """Return the meaning of an HTTP status other than success."""
    if status in (401, 403):
        return f"it requires other credentials ({status}); give them in the index URL or in netrc"
    return f"it answered with status {status}"


def is_safe_sdist_name(name: str) -> bool:
    """Return whether a name is that of an sdist and can't lead out of a folder."""
    return is_sdist_name(name) and _FILENAME.fullmatch(name) is not None


def _as_url(place: str) -> str:
    """Return a place as a URL; pip also accepts plain paths."""
    if "://" in place:
        return place
    return user_path(place, "find-links of pip's configuration").absolute().as_uri()


def _local_path(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))
