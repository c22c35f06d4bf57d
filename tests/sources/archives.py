"""Source releases as archives, member by member."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping


def member(
    name: str, data: bytes = b"", mode: int = 0o644, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.linkname, info.size = mode, kind, link, len(data)
    return info, data


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=format, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def sdist(name: str, version: str, files: Mapping[str, str | bytes]) -> bytes:
    """A source release as a package index has it."""
    contents = {"setup.py": "raise SystemExit('executed')\n", **files}
    data = {path: text.encode() if isinstance(text, str) else text for path, text in contents.items()}
    return gzip.compress(
        tar_bytes(*(member(f"{name}-{version}/{path}", each) for path, each in data.items()))
    )
