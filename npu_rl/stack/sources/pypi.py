"""Source distributions from package indexes, found and downloaded as pip does, without running their code."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import store_hint
from npu_rl.common.errors import HostError, SourceError
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.sdist_search import (
    SHA256,
    SdistLink,
    SdistSearch,
    Undelivered,
    network_reason,
    status_reason,
)

if TYPE_CHECKING:
    from npu_rl.stack.sources.index_session import IndexSession


Progress = Callable[[int, "int | None"], None]  # bytes so far, bytes in all if known
Pause = Callable[[float], None]  # waits that many seconds

_CHUNK = 256 * 1024
_MINIMUM_RATE = 1000  # bytes per second on average, after the time of so many reads
_RATE_AFTER_READS = 8
_MAXIMUM_SIZE = 2 * 1024**3  # bytes of one archive


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


class _CutOff(Exception):
    """A transfer that was interrupted after it began."""


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
        search = SdistSearch(name, version, settings, session)
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
    on_progress: Progress | None = None,
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

    if sha256 is not None and not SHA256.fullmatch(sha256):
        raise SourceError(
            "Invalid SHA-256", where=f"{name}=={version}", why=f"{sha256!a} is not 64 hex digits"
        )
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with open_session(settings, pause) as session:
        search = SdistSearch(name, version, settings, session)
        reasons = []
        for link in search.links():
            fetch = _Fetch(link, sha256, settings, session, folder, on_progress or _no_progress, pause)
            try:
                return fetch.run()
            except Undelivered as error:
                reasons.append(f"{link.filename} from {_host(link.url)} (listed by {link.index}): {error}")
    if not reasons:
        raise search.not_found()
    raise SourceError(
        f"No index delivered the sdist of {name} {version}" + (" with the locked SHA-256" if sha256 else ""),
        where=f"{name}=={version}",
        why="\n".join([*reasons, *search.reasons]),
        hint="If the SHA-256 is wrong, it is a different file of the same name: use another index, or review the file "
        "before you make a new lock. Otherwise check the network and pip's settings.",
    )


def _no_progress(done: int, total: int | None) -> None:
    pass


def _host(url: str) -> str:
    return urlsplit(url).netloc or "this machine"


@dataclass(frozen=True)
class _Fetch:
    """The download of one link into the folder."""

    link: SdistLink
    expected: str | None
    settings: PipSettings
    session: IndexSession
    folder: Path
    on_progress: Progress
    pause: Pause

    def run(self) -> DownloadedSdist:
        """Download the file. Raises Undelivered with the reason."""
        listed = self.link.sha256
        if self.expected and listed and listed != self.expected:
            raise Undelivered(_wrong_hash(self.expected, listed, "the index lists"))
        wanted = self.expected or listed
        part = self.folder / f"{self.link.filename}.{os.getpid()}-{secrets.token_hex(4)}.part"
        try:
            found, size = self._with_retries(part)
            if wanted and found != wanted:
                raise Undelivered(_wrong_hash(wanted, found, "the file has"))
            path = self.folder / self.link.filename
            with _writing(path):
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        link = self.link
        return DownloadedSdist(path, link.filename, found, size, link.url, link.index, link.notes)

    def _with_retries(self, part: Path) -> tuple[str, int]:
        from npu_rl.stack.sources.index_session import delay

        assert self.link.link is not None
        if self.link.link.is_file:
            return self._copy(self.link.link.file_path, part)
        for attempt in range(self.settings.retries + 1):
            try:
                return self._transfer(self.link.link.normalized, part)
            except _CutOff as error:
                if attempt == self.settings.retries:
                    raise Undelivered(f"{error} ({attempt + 1} tries)") from None
                self.pause(delay(attempt))
        raise AssertionError("the last try returns or raises")

    def _copy(self, source: Path, part: Path) -> tuple[str, int]:
        try:
            with open_file(source) as file:
                return self._write(iter(lambda: file.read(_CHUNK), b""), part, source.stat().st_size)
        except OSError as error:
            raise Undelivered(f"it can't be copied: {error.strerror}") from None

    def _transfer(self, url: str, part: Path) -> tuple[str, int]:
        """Download once. Raises _CutOff if the transfer is interrupted, Undelivered if it can't begin."""
        from npu_rl.stack.sources.index_session import FAILURES, is_transient

        begun = False
        try:
            # the archive's bytes, undecoded, whatever encoding the server declares
            with self.session.get_stream(url, headers={"Accept-Encoding": "identity"}) as response:
                if response.status_code != 200:
                    raise Undelivered(status_reason(response.status_code))
                length = response.headers.get("Content-Length", "")
                begun = True
                total = int(length) if length.isdecimal() else None
                return self._write(response.iter_raw(), part, total)
        except FAILURES as error:
            why = network_reason(error, self.settings)
            raise (_CutOff if begun and is_transient(error) else Undelivered)(why) from None

    def _write(self, chunks: Iterator[bytes], part: Path, total: int | None) -> tuple[str, int]:
        """Write the chunks and return their SHA-256 and size."""
        digest = hashlib.sha256()
        size = 0
        patience = time.monotonic() + _RATE_AFTER_READS * self.settings.timeout
        with _writing(part):
            file = part.open("wb")
        with file:
            for chunk in chunks:
                size += len(chunk)
                if size > _MAXIMUM_SIZE:
                    raise Undelivered(f"it is larger than {_MAXIMUM_SIZE} bytes")
                if (late := time.monotonic() - patience) > 0 and size < late * _MINIMUM_RATE:
                    raise Undelivered(f"the transfer is slower than {_MINIMUM_RATE / 1000:g} kB/s")
                digest.update(chunk)
                with _writing(part):
                    file.write(chunk)
                self.on_progress(size, total)
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


def _wrong_hash(expected: str, found: str, whose: str) -> str:
    return f"wrong sha256: expected {expected}, {whose} {found}"
