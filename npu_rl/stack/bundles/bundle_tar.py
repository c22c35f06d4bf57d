"""The only form of tar that bundles use: regular files in order, with headers that depend on name and size alone.

Any tar program can read it. The reader here accepts no other form: a header must be, byte for byte, the one that the
writer makes for that name and size, so that no link, device, mode, owner or extension of the format has to be judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

BLOCK = 512
END = bytes(2 * BLOCK)
LARGEST_MEMBER = 8**11 - 1  # bytes: what 11 octal digits state
MOST_MEMBERS = 20_000
_LONGEST_NAME = 255  # characters; beyond 100 the name gets an extended header
_CHUNK = 1 << 20
_LINKS = (b"1", b"2")
_NAME = re.compile(r"[!-~]+")


class TarFault(ValueError):
    """The reason why a file is not a bundle's tar."""


@dataclass(frozen=True)
class TarMember:
    """One file in a tar; its content starts at `offset`."""

    name: str
    size: int
    offset: int


class Content(Protocol):
    """The content of a new member."""

    def size(self) -> int:
        """Return its size in bytes."""

    def write_to(self, file: BinaryIO) -> None:
        """Write it."""


@dataclass(frozen=True)
class Bytes:
    """Content in memory."""

    data: bytes

    def size(self) -> int:
        """Return its size in bytes."""
        return len(self.data)

    def write_to(self, file: BinaryIO) -> None:
        """Write it."""
        file.write(self.data)


@dataclass(frozen=True)
class FileContent:
    """Content of a file that must not change while it is written: its size is written first."""

    path: Path

    def size(self) -> int:
        """Return its size in bytes."""
        return self.path.stat().st_size

    def write_to(self, file: BinaryIO) -> None:
        """Write it."""
        from npu_rl.common.bounded import chunks, open_file

        with open_file(self.path) as source:
            for chunk in chunks(source):
                file.write(chunk)


def header(name: str, size: int) -> bytes:
    """Return the header blocks of a member. Raises TarFault for a name or size that a member can't have."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise TarFault(f"{name[:300]!a} can't be the name of a member")
    if not 0 <= size <= LARGEST_MEMBER:
        raise TarFault(f"{name} is larger than {LARGEST_MEMBER} bytes")
    if len(name) <= 100:
        return _block(name, size, b"0")
    line = _extension(name)
    padded = line + bytes(-len(line) % BLOCK)
    return _block("@LongName", len(line), b"x") + padded + _block(name[:100], size, b"0")


def _block(name: str, size: int, kind: bytes) -> bytes:
    fields = (
        name.encode().ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % 0,
        b" " * 8,
        kind,
        bytes(100),
        b"ustar\x0000",
        bytes(64),
        b"0000000\0" * 2,
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _extension(name: str) -> bytes:
    """Return the record `LENGTH path=NAME` of an extended header; the length counts its own digits."""
    rest = len(f" path={name}\n")
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return f"{length} path={name}\n".encode()


def write_tar(file: BinaryIO, members: Sequence[tuple[str, Content]]) -> int:
    """Write members, sorted by name, and return the number of bytes. Raises TarFault, OSError."""
    for name, content in sorted(members, key=lambda member: member[0]):
        size = content.size()
        file.write(header(name, size))
        start = file.tell()
        content.write_to(file)
        if file.tell() != start + size:
            raise TarFault(f"{name} changed while it was read")
        file.write(bytes(-size % BLOCK))
    file.write(END)
    return file.tell()


def read_tar(file: BinaryIO) -> Iterator[TarMember]:
    """Yield the members in order, with the file positioned at the content of each. Raises TarFault, OSError."""
    end = os.fstat(file.fileno()).st_size
    seen: set[str] = set()
    last = ""
    while (block := _read(file, BLOCK)) != bytes(BLOCK):
        name, size = _parse(file, block)
        if name in seen:
            raise TarFault(f"it has {name} twice")
        if name < last:
            raise TarFault(f"{name} is out of order")
        if len(seen) >= MOST_MEMBERS:
            raise TarFault(f"it has more than {MOST_MEMBERS} members")
        seen.add(name)
        last, offset = name, file.tell()
        if offset + size > end:
            raise TarFault(f"it is cut short: {name} has {size} bytes, of which {end - offset} are there")
        yield TarMember(name, size, offset)
        file.seek(offset + size)
        if any(_read(file, -size % BLOCK)):
            raise TarFault(f"unexpected data after {name}")
    if any(_read(file, BLOCK)) or file.read(1):
        raise TarFault("unexpected data after its end")


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise TarFault("it is cut short")
    return data


def _parse(file: BinaryIO, block: bytes) -> tuple[str, int]:
    """Return the name and size of the member whose header starts with `block`."""
    kind, size = block[156:157], _stated_size(block)
    if kind == b"x":
        if not 0 < size <= BLOCK:
            raise TarFault("a name is too long")
        record = _read(file, BLOCK)
        found = re.fullmatch(rb"[0-9]+ path=([!-~]+)\n\0*", record)
        if found is None:
            raise TarFault("an extended header has more than a name")
        name = found[1].decode("ascii")
        last = _read(file, BLOCK)
        block, size = block + record + last, _stated_size(last)
    else:
        name = block[:100].rstrip(b"\0").decode("ascii", "replace")
    if kind in _LINKS:
        raise TarFault(f"{name[:300]!a} is a link")
    if kind not in (b"0", b"x"):
        raise TarFault(f"{name[:300]!a} is not a regular file")
    if header(name, size) != block:
        raise TarFault(f"the header of {name!a} is damaged, or not one that npu-rl writes")
    return name, size


def _stated_size(block: bytes) -> int:
    text = block[124:135]
    if not re.fullmatch(rb"[0-7]{11}", text):
        raise TarFault("a header is damaged")
    return int(text, 8)


def copy_content(file: BinaryIO, member: TarMember) -> Iterator[bytes]:
    """Yield the content of a member in chunks. Raises TarFault if the file has become shorter, OSError."""
    file.seek(member.offset)
    left = member.size
    while left:
        chunk = _read(file, min(left, _CHUNK))
        left -= len(chunk)
        yield chunk
