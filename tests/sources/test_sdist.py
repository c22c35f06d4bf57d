"""Reading an sdist: its files as they are, or the archive is refused as a whole."""

from __future__ import annotations

import bz2
import gzip
import tarfile
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.sdist import LARGEST, SdistFile, read_sdist
from tests.sources.archives import member, tar_bytes

Member = tuple[tarfile.TarInfo, bytes]


def write(folder: Path, *members: Member, data: bytes | None = None) -> Path:
    path = folder / "p-1.0.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes(*members), 1) if data is None else data)
    return path


def refusal(path: Path, keep: Sequence[str] = (".",), largest: int = LARGEST) -> str:
    with pytest.raises(SourceError) as caught:
        list(read_sdist(path, keep=keep, largest=largest))
    assert path.name in str(caught.value)
    return str(caught.value)


PLAIN = (
    member("p-1.0", kind=tarfile.DIRTYPE, mode=0o755),
    member("p-1.0/setup.py", b"import os\n"),
    member("p-1.0/p/run.sh", b"#!/bin/sh\n", mode=0o755),
    member("p-1.0/p/ø.txt", b"\x00\xff", mode=0o611),
)


def test_files_and_their_modes(tmp_path: Path) -> None:
    """The owner's bit alone makes an executable; nothing is unpacked; files that are not kept are judged, too."""
    path = write(tmp_path, *PLAIN)
    assert list(read_sdist(path)) == [
        SdistFile("setup.py", b"import os\n", False),
        SdistFile("p/run.sh", b"#!/bin/sh\n", True),
        SdistFile("p/ø.txt", b"\x00\xff", False),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["p-1.0.tar.gz"]
    assert [f.path for f in read_sdist(path, keep=["p/"])] == ["p/run.sh", "p/ø.txt"]
    link = member("p-1.0/docs/x", kind=tarfile.SYMTYPE, link="/etc/passwd")
    assert "neither a file nor a folder" in refusal(write(tmp_path, *PLAIN, link), keep=["p"])


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_that_are_kept(tmp_path: Path, format: int) -> None:
    names = [".gitignore", ".github/x", "git", "a.git/x", "...", "a b", "ü", ".git2", "git~2"]
    names.append("/".join(["folder" * 10] * 5) + "/file.py")
    data = gzip.compress(tar_bytes(*(member(f"p/{n}") for n in names), format=format))
    assert [f.path for f in read_sdist(write(tmp_path, data=data))] == names


UNSAFE = [
    *("/etc/passwd", "p/../../x", "..", "p/./x", "p//x", "p\\x", "p/a\nb", "p/a\x9bb", "p/.GIT/config"),
    *("p/sub/.git", "p/.g\u200cit/hooks/x", "p/GIT~1/x", "p/.git . ./x", "p/.git::$INDEX_ALLOCATION/x"),
    *("p/" + "ø" * 128, "x", "q/x", "p/first", "p/first/below"),
]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names(tmp_path: Path, name: str) -> None:
    """Names that lead out, mean git's folder or something else on another machine, are double or beside the top."""
    for kind in (tarfile.REGTYPE, tarfile.DIRTYPE):
        assert "refused" in refusal(write(tmp_path, member("p/first", b"1"), member(name, kind=kind)))


def _with_headers(name: str, body: bytes, **headers: str) -> Member:
    info, _ = member(name, body)
    info.pax_headers = {key.replace("__", "."): value for key, value in headers.items()}
    return info, body


HOLE = b"1\n0\n1\n".ljust(512, b"\0")
SPARSE = {
    f"GNU__sparse__{k}": v for k, v in (("major", "1"), ("minor", "0"), ("name", "p/h"), ("realsize", "9"))
}
LONG = tarfile.TarInfo("././@LongLink")
LONG.type, LONG.size = tarfile.GNUTYPE_LONGNAME, 2_000_000
WHOLE = gzip.compress(tar_bytes(member("p/a", b"a" * 700), member("p/b", b"b" * 512)))
REFUSED: dict[str, tuple[bytes, str]] = {
    **{
        f"kind {kind!r}": (gzip.compress(tar_bytes(*PLAIN, member("p-1.0/bad", kind=kind, link="x"))), "is neither")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"V")
    },
    "sparse": (gzip.compress(tar_bytes(member("p/1"), _with_headers("p/h", HOLE, **SPARSE))), "is neither"),
    "NUL": (gzip.compress(tar_bytes(member("p/1"), _with_headers("p/x", b"", path="p/x\0y"))), "control"),
    "not text": (gzip.compress(tar_bytes(member("p/a\udcff.py"), format=tarfile.GNU_FORMAT)), "refused"),
    "a bomb": (gzip.compress(tar_bytes(*(member(f"p/{i}", bytes(100_000)) for i in range(10)))), "more bytes"),
    "a long name": (gzip.compress(LONG.tobuf() + bytes(3_000_000)), "more bytes"),
    **{f"cut {n}": (WHOLE[:n], "damaged or truncated") for n in (0, 5, len(WHOLE) - 9, len(WHOLE) - 1)},
    "CRC": (WHOLE[:-6] + bytes([WHOLE[-6] ^ 1]) + WHOLE[-5:], "damaged"),
    "bzip2": (bz2.compress(tar_bytes(*PLAIN)), "damaged"),
    "empty": (gzip.compress(tar_bytes(member("p", kind=tarfile.DIRTYPE))), "holds no files"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_archives_that_are_refused(tmp_path: Path, what: str) -> None:
    data, why = REFUSED[what]
    assert why in refusal(write(tmp_path, data=data), largest=1_000_000)
    assert why in refusal(write(tmp_path, data=data), keep=["nothing"], largest=1_000_000)


# Pieces that attackers build names from, and anything else.
_PIECES = ["..", ".", "", ".git", "GIT~1", "/", "\\", "a", "A", "\u200d", "\x00", "\n", ".git ", "ø", ":"]
pieces = st.sampled_from(_PIECES) | st.text(max_size=6)
names = st.lists(pieces, max_size=6).map("/".join) | st.lists(pieces, max_size=4).map("".join)


def check_safe(path: Path) -> None:
    """The archive is refused, or all paths are safe."""
    try:
        files = list(read_sdist(path))
    except SourceError as error:
        assert path.name in str(error)
        return
    assert len({f.path for f in files}) == len(files)
    for file in files:
        found = PurePosixPath(file.path)
        assert not found.is_absolute() and str(found) == file.path and "\\" not in file.path
        assert not {"..", ".", ""} & set(found.parts)
        assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in file.path)
        for part in found.parts:
            bare = part.replace("\u200d", "").split(":")[0].rstrip(". ").lower()
            assert bare not in (".git", "git~1")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=4))
def test_no_name_in_a_tar_yields_an_unsafe_path(tmp_path: Path, found: list[str]) -> None:
    try:
        path = write(tmp_path, *(member(f"p/{n}") for n in found))
    except (UnicodeEncodeError, ValueError):
        return  # not a name tarfile can write
    check_safe(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2048), st.integers(0, 4096))
def test_any_damage_is_a_source_error(tmp_path: Path, noise: bytes, at: int) -> None:
    whole = gzip.decompress(WHOLE)
    check_safe(write(tmp_path, data=gzip.compress(whole[:at] + noise + whole[at + len(noise) :], 1)))
