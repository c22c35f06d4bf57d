"""Reading of bundles: everything is proven before anything is used."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError, LockError, UsageError
from npu_rl.stack.bundles.bundle_facts import BundleFacts, content_id, parse_facts, parse_list
from npu_rl.stack.bundles.bundle_names import FACTS, LIST, SIGNATURE, is_member_name
from npu_rl.stack.bundles.bundle_signature import LARGEST_SIGNATURE, verify
from npu_rl.stack.bundles.bundle_tar import TarFault, TarMember, copy_content, read_tar
from npu_rl.stack.bundles.locked_content import check_content
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock

T = TypeVar("T")

_LARGEST_TEXT = 16 << 20  # bytes of the list, and of the facts


@dataclass(frozen=True)
class OpenBundle:
    """An open bundle whose content was verified.

    Attributes:
        locks: The lock of each of its manifests, by the manifest's name.
        hashes: SHA-256 of each member except the list and its signature.
        list_hash: SHA-256 of the list, and so of the whole content.
        signer: Who signed it, if that was verified.
        size: Size of the file in bytes.
    """

    path: Path
    facts: BundleFacts
    locks: Mapping[str, Lock]
    hashes: Mapping[str, str]
    list_hash: str
    is_signed: bool
    signer: str | None
    size: int
    _file: BinaryIO = field(repr=False)
    _members: Mapping[str, TarMember] = field(repr=False)

    def read(self, name: str) -> bytes:
        """Return the content of a member. Raises BundleError if the file has changed since it was proven."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member, and check its hash once more, as `read` does."""
        with disk_errors(self.path), _faults(self.path):
            yield from _hashed(self._file, self._members[name], self.hashes[name])

    def lock_of(self, digest: str) -> Lock | None:
        """Return the lock with a digest, if the bundle is made for it."""
        return next((self.locks[one.name] for one in self.facts.stacks if one.lock == digest), None)


@contextlib.contextmanager
def open_bundle(path: Path, allowed_signers: Path | None = None) -> Iterator[OpenBundle]:
    """Verify a bundle, and keep it open.

    Its signature comes first, if one is required; then the form of the file, each member's name, size and hash, the
    id, and that its units are those of its locks. Nothing is written.

    Args:
        allowed_signers: The file of signers, one of whom must have signed it; None if no signature is required.

    Raises:
        BundleError: If anything is not as it should be.
        HostError: If the file can't be read.
        UsageError: If it does not exist.
    """
    if not path.exists():
        raise UsageError(
            "No such bundle",
            where=str(path.absolute()),
            hint="Create one: npu-rl bundle create MANIFEST -o FILE",
        )
    with disk_errors(path):
        file = open_file(path)
    with file:
        with disk_errors(path), _faults(path):
            bundle = _proven(path, file, allowed_signers)
        yield bundle


@contextlib.contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except TarFault as error:
        raise _refused(path, str(error)) from error


def _refused(path: Path, why: str) -> BundleError:
    first = why.partition(" ")[0]  # not capitalized where it is the name of a member
    return BundleError(
        "The file is not a whole bundle that npu-rl made",
        where=str(path),
        why=f"{first.capitalize() if first.isalpha() else first}{why[len(first) :]}.",
        hint="Copy it again, and compare `sha256sum FILE` where it was made and here.",
    )


def _proven(path: Path, file: BinaryIO, allowed_signers: Path | None) -> OpenBundle:
    size = os.fstat(file.fileno()).st_size
    tar = read_tar(file)
    first = next(tar, None)
    if first is None or first.name != LIST:
        raise TarFault(f"it does not begin with {LIST}")
    listed = _small(file, first, _LARGEST_TEXT)
    second = next(tar, None)
    signature = None
    if second is not None and second.name == SIGNATURE:
        signature = _small(file, second, LARGEST_SIGNATURE)
        second = next(tar, None)
    signer = _signer(path, listed, signature, allowed_signers) if allowed_signers is not None else None
    hashes = _parsed(LIST, parse_list, listed)
    if second is None or second.name != FACTS or FACTS not in hashes:
        raise TarFault(f"it has no {FACTS} behind its list")
    text = _small(file, second, _LARGEST_TEXT)
    if hashlib.sha256(text).hexdigest() != hashes[FACTS]:
        raise TarFault(f"{FACTS} is not as the list has it")
    facts = _parsed(FACTS, parse_facts, text)
    if facts.sizes.keys() != hashes.keys() - {FACTS}:
        raise TarFault(f"{FACTS} and {LIST} name different members")
    members = {member.name: member for member in _checked(file, tar, facts, hashes)}
    missing = sorted(facts.sizes.keys() - members.keys())
    if missing:
        raise TarFault(f"{missing[0]} is missing")
    if content_id(hashes) != facts.id:
        raise TarFault("its id is not that of its content")
    locks = _locks(file, members, facts, hashes)
    list_hash = hashlib.sha256(listed).hexdigest()
    return OpenBundle(
        path, facts, locks, hashes, list_hash, signature is not None, signer, size, file, members
    )


def _small(file: BinaryIO, member: TarMember, most: int) -> bytes:
    if member.size > most:
        raise TarFault(f"{member.name} is larger than {most} bytes")
    return b"".join(copy_content(file, member))


def _signer(path: Path, listed: bytes, signature: bytes | None, allowed_signers: Path) -> str:
    if signature is None:
        raise BundleError(
            "The bundle is not signed",
            where=str(path),
            hint="Have its maker sign it: npu-rl bundle create ... --sign KEY",
        )
    return verify(listed, signature, allowed_signers)


def _parsed(name: str, parse: Callable[[bytes], T], data: bytes) -> T:
    try:
        return parse(data)
    except ValueError as error:
        raise TarFault(f"{name} is damaged: {error}") from error


def _checked(
    file: BinaryIO, tar: Iterator[TarMember], facts: BundleFacts, hashes: Mapping[str, str]
) -> Iterator[TarMember]:
    """Yield the remaining members, each after its name, size and hash have been checked."""
    for member in tar:
        if not is_member_name(member.name) or member.name not in facts.sizes:
            raise TarFault(f"{member.name[:300]!a} is not a member that its list has")
        stated = facts.sizes[member.name]
        if member.size != stated:
            larger = "larger" if member.size > stated else "smaller"
            raise TarFault(f"{member.name} is {larger} than stated: {member.size} bytes in place of {stated}")
        for _ in _hashed(file, member, hashes[member.name]):
            pass
        yield member


def _hashed(file: BinaryIO, member: TarMember, expected: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in copy_content(file, member):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != expected:
        raise TarFault(f"{member.name} is damaged: its SHA-256 is not the listed one")


def _locks(
    file: BinaryIO,
    members: Mapping[str, TarMember],
    facts: BundleFacts,
    hashes: Mapping[str, str],
) -> dict[str, Lock]:
    """Return the locks by manifest name, after checking that the bundle has exactly the content that they name."""
    locks: dict[str, Lock] = {}
    for stack in facts.stacks:
        place = str(lock_model.lock_path(Path(stack.path)))
        if place not in members or stack.path not in members or stack.name in locks:
            raise TarFault(f"the manifest {stack.name} or its lock is missing, or there twice")
        text = _small(file, members[place], lock_model.MAXIMUM_SIZE)
        try:
            lock, digest = lock_model.parse_with_digest(text.decode(), place)
        except (LockError, UnicodeDecodeError) as error:
            raise TarFault(f"{place} is not a lock: {error}") from error
        if (digest, lock.manifest) != (stack.lock, stack.name):
            raise TarFault(f"{place} is another lock than {FACTS} names")
        locks[stack.name] = lock
    if not locks:
        raise TarFault("it is for no manifest")
    check_content(locks, hashes)
    return locks
