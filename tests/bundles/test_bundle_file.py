"""A bundle is checked before anything of it is used: whatever somebody did to the file, it is refused."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.errors import BundleError
from npu_rl.stack.bundles.bundle_file import LIST, unpack_bundle, write_bundle
from tests.bundles.made import MadeStack, Members, members_of, sealed, tar_of

MANIFEST = "manifests/m/m.yaml"
WHEEL = "npu-rl/pip-1-py3-none-any.whl"


@pytest.fixture(scope="module")
def members(made_stack: MadeStack) -> Members:
    return members_of(made_stack.file)


def refused(tmp_path: Path, data: bytes) -> str:
    """The reason why a bundle of these bytes is refused; nothing leaves the folder that it is unpacked into."""
    (tmp_path / "bad.tar").write_bytes(data)
    (folder := tmp_path / "deep/in/here").mkdir(parents=True, exist_ok=True)
    with pytest.raises(BundleError) as caught:
        unpack_bundle(tmp_path / "bad.tar", folder)
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(folder) and not path.is_dir()]
    assert outside == [tmp_path / "bad.tar"]
    assert all(path.is_dir() or (path.is_file() and not path.is_symlink()) for path in folder.rglob("*"))
    return str(caught.value)


def test_what_was_written_is_unpacked(tmp_path: Path) -> None:
    data = {"wheels/" + "n" * 150 + ".whl": b"x" * 3000, MANIFEST: b"", WHEEL: b"w" * 512}
    for number, content in enumerate(data.values()):
        (tmp_path / str(number)).write_bytes(content)
    write_bundle(tmp_path / "b.tar", {name: tmp_path / str(number) for number, name in enumerate(data)})
    (tmp_path / "to").mkdir()
    unpack_bundle(tmp_path / "b.tar", tmp_path / "to")
    assert {name: (tmp_path / "to" / name).read_bytes() for name in data} == data
    assert next(iter(members_of(tmp_path / "b.tar"))) == LIST


def entry(name: str, kind: bytes, target: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, size
    return found


def sparse(members: Members) -> bytes:
    """A member of 512 bytes that would unpack to a terabyte."""
    found = entry("wheels/x-1-py3-none-any.whl", tarfile.REGTYPE, size=512)
    found.pax_headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": str(1 << 40)}
    return tar_of(members, found, content=b"x" * 512)


def renamed(name: str) -> Callable[[Members], bytes]:
    """A bundle whose list has a file of this name, too."""
    return lambda members: sealed({**members, name: b"x"})


BAD: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "damaged": (lambda m: tar_of({**m, MANIFEST: m[MANIFEST][::-1]}), "is damaged"),
    "replaced wheel": (lambda m: tar_of({**m, WHEEL: b"other"}), "is damaged"),
    "missing": (lambda m: tar_of({n: m[n] for n in m if n != MANIFEST}), "manifests/m/m.yaml is missing"),
    "unlisted": (lambda m: tar_of({**m, "wheels/x.whl": b""}), "not in SHA256SUMS"),
    "twice": (lambda m: tar_of(m, entry(MANIFEST, tarfile.REGTYPE)), "or there twice"),
    "symbolic link": (lambda m: tar_of(m, entry(MANIFEST, tarfile.SYMTYPE, "/etc")), "not a regular file"),
    "hard link": (lambda m: tar_of(m, entry("npu-rl/x.whl", tarfile.LNKTYPE, WHEEL)), "not a regular file"),
    "pipe": (lambda m: tar_of(m, entry("npu-rl/x.whl", tarfile.FIFOTYPE)), "not a regular file"),
    "sparse": (sparse, "not a regular file"),
    "above": (renamed("manifests/m/../../../../x"), "invalid or repeated line"),
    "absolute": (renamed("/tmp/npu-rl-x"), "invalid or repeated line"),
    "hidden": (renamed("manifests/m/.git/config"), "invalid or repeated line"),
    "listed twice": (lambda m: tar_of({**m, LIST: m[LIST] * 2}), "invalid or repeated line"),
    "no list": (lambda m: tar_of({n: m[n] for n in m if n != LIST}), "the first member is not"),
    "empty": (lambda m: b"", "empty file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_bundle_is_refused(members: Members, tmp_path: Path, name: str) -> None:
    make, reason = BAD[name]
    assert reason in refused(tmp_path, make(members))


def test_one_cut_short_anywhere_is_refused(stack: MadeStack, tmp_path: Path) -> None:
    whole = stack.file.read_bytes().rstrip(b"\0")
    for end in range(0, len(whole), 512 * max(1, len(whole) // 512 // 60)):
        (tmp_path / str(end)).mkdir()
        assert "next:" in refused(tmp_path / str(end), whole[:end])


def test_a_changed_bit_is_refused_or_changes_nothing(
    stack: MadeStack, members: Members, tmp_path: Path
) -> None:
    """Bits of padding and of the headers' times and owners mean nothing: then every file is the same."""
    whole = stack.file.read_bytes()
    chosen = random.Random(45)
    for number in range(150):
        data = bytearray(whole)
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        (tmp_path / "b.tar").write_bytes(data)
        (folder := tmp_path / str(number)).mkdir()
        try:
            unpack_bundle(tmp_path / "b.tar", folder)
        except BundleError:
            continue
        assert {name: (folder / name).read_bytes() for name in members} == members
