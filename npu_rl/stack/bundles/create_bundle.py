"""Creation of a bundle: everything is gathered in a staging folder, then written to one file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import npu_rl
from npu_rl.common.bounded import hash_file
from npu_rl.common.disk import disk_errors, put_in_place
from npu_rl.common.errors import BundleError, UsageError
from npu_rl.stack.bundles.bundle_facts import BundledHost, BundledStack, BundleFacts, content_id, dump_list
from npu_rl.stack.bundles.bundle_names import FACTS, LIST, PROGRAM, SIGNATURE, WHEELS, is_member_name
from npu_rl.stack.bundles.bundle_signature import sign
from npu_rl.stack.bundles.bundle_tar import Bytes, Content, FileContent, TarFault, write_tar
from npu_rl.stack.bundles.gathered_stack import StackFiles, gather
from npu_rl.stack.manifest.load_manifest import LoadedManifest
from npu_rl.stack.pylocks.pylock_targets import Target
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Watcher
from npu_rl.stack.store import Store

Program = Callable[[Sequence[Target], Path], None]
"""Writes npu-rl's wheel and those that it needs on the targets into a folder."""


@dataclass(frozen=True)
class BundleOrder:
    """The requested content of a bundle.

    Attributes:
        manifests: Each with the name that the user gave, and the hosts that its packages are for.
        wheels: Whether to include the packages locked beside the manifests.
        output: The file, which must not exist.
        key: The key that signs its list of hashes; None for no signature.
    """

    manifests: Sequence[tuple[str, LoadedManifest, Sequence[Target]]]
    wheels: bool
    output: Path
    key: Path | None = None
    jobs: int = 8


@dataclass(frozen=True)
class MadeBundle:
    """A finished bundle: its id, its size in bytes, and the bytes of each kind of file."""

    id: str
    size: int
    sizes: Mapping[str, int]


def create_bundle(order: BundleOrder, network: Network, watcher: Watcher, program: Program) -> MadeBundle:
    """Make a bundle. Missing objects are fetched into the store, and each stack is composed once to prove it.

    Raises:
        UsageError: If the file exists, or two manifests have one name.
        BundleError: If a file's name can't be that of a member.
        SourceError: If something can't be fetched.
    """
    _check(order)
    store = Store()
    store.sweep()
    with disk_errors(order.output), tempfile.TemporaryDirectory(
        prefix=".npu-rl-bundle-", dir=order.output.absolute().parent
    ) as name:  # fmt: skip
        staging = Path(name)
        stacks = [
            gather(store, loaded, network, watcher, staging, jobs=order.jobs)
            for _, loaded, _ in order.manifests
        ]
        members = _merged(stacks)
        program(_program_targets(order), _folder(staging, PROGRAM))
        if order.wheels:
            members |= _add_packages(order, stacks, _folder(staging, WHEELS), offline=network.offline)
        for kind in (PROGRAM, WHEELS):
            for path in sorted((staging / kind).glob("*")):
                members[f"{kind}/{path.name}"] = FileContent(path)
        return _write(order, stacks, members, staging)


def _check(order: BundleOrder) -> None:
    if os.path.lexists(order.output):
        raise UsageError(
            "The file exists", where=str(order.output), hint="Remove it, or choose another with --output."
        )
    if not order.output.absolute().parent.is_dir():
        raise UsageError(
            "The folder does not exist", where=str(order.output.parent), hint="Create it: mkdir -p"
        )
    names = [loaded.manifest.name for _, loaded, _ in order.manifests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"Two of the manifests have the name {twice[0]}", hint="Make a bundle of each.")


def _folder(staging: Path, name: str) -> Path:
    (staging / name).mkdir()
    return staging / name


def _merged(stacks: Sequence[StackFiles]) -> dict[str, Content]:
    members: dict[str, Content] = {}
    for stack in stacks:
        members |= stack.members
    return members


def _program_targets(order: BundleOrder) -> list[Target]:
    """Return one target for each Python and machine among the manifests' hosts, with the oldest glibc among them."""
    found: dict[tuple[str, str], Target] = {}
    for _, _, targets in order.manifests:
        for target in targets:
            known = found.get((target.python, target.machine))
            if known is None or _glibc(target) < _glibc(known):
                found[target.python, target.machine] = target
    return list(found.values())


def _glibc(target: Target) -> tuple[int, ...]:
    return tuple(map(int, target.glibc.split(".")))


def _add_packages(
    order: BundleOrder, stacks: Sequence[StackFiles], folder: Path, *, offline: bool
) -> dict[str, Content]:
    """Download the locked packages; return the locks of those that npu-rl does not ship, as members."""
    from npu_rl.stack.bundles.bundled_packages import add_build_tools, download_packages, require_locked
    from npu_rl.stack.pylocks.committed_pylock import committed_pylock
    from npu_rl.stack.pylocks.pylock_targets import pylock_path

    pylocks, members = [], dict[str, Content]()
    for (named, loaded, targets), stack in zip(order.manifests, stacks, strict=True):
        for target in targets:
            pylocks.append(committed_pylock(loaded, target, named))
            if not stack.shipped:
                path = pylock_path(loaded.path, target)
                members[f"{stack.path.rpartition('/')[0]}/{path.name}"] = FileContent(path)
    for pylock in pylocks:
        download_packages(pylock, folder, offline=offline)
    require_locked(pylocks, folder)
    for pylock in pylocks:
        add_build_tools(pylock, folder, offline=offline)
    return members


def _write(
    order: BundleOrder, stacks: Sequence[StackFiles], members: dict[str, Content], staging: Path
) -> MadeBundle:
    for name in members:
        if not is_member_name(name):
            raise BundleError(
                "A bundle can't have a file of this name",
                where=name,
                why="Names of manifests in it have letters, digits and _ . + ! - only.",
                hint="Rename the file.",
            )
    hashes = {name: _hash(content) for name, content in members.items()}
    facts = BundleFacts(
        id=content_id(hashes),
        npu_rl=npu_rl.__version__,
        stacks=tuple(_stack(stack) for stack in sorted(stacks, key=lambda one: one.lock.manifest)),
        hosts=tuple(BundledHost(one.python, one.machine) for one in _program_targets(order)),
        sizes={name: content.size() for name, content in members.items()},
    )
    members[FACTS] = Bytes(facts.dump())
    hashes[FACTS] = _hash(members[FACTS])
    members[LIST] = Bytes(dump_list(hashes))
    if order.key is not None:
        members[SIGNATURE] = Bytes(sign(dump_list(hashes), order.key))
    whole = staging / "bundle.tar"
    try:
        with whole.open("wb") as file:
            size = write_tar(file, list(members.items()))
            file.flush()
            os.fsync(file.fileno())
    except TarFault as error:
        raise BundleError("The bundle can't be written", where=str(order.output), why=str(error)) from error
    _publish(whole, order.output.absolute())
    return MadeBundle(facts.id, size, sizes_by_kind(facts.sizes))


def _publish(whole: Path, output: Path) -> None:
    """Give a finished file its final name, unless another file has taken it meanwhile."""
    try:
        os.link(whole, output)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        put_in_place(whole, output)


def _stack(stack: StackFiles) -> BundledStack:
    return BundledStack(stack.lock.manifest, stack.path, stack.digest, stack.shipped)


def _hash(content: Content) -> str:
    import hashlib

    if isinstance(content, Bytes):
        return hashlib.sha256(content.data).hexdigest()
    assert isinstance(content, FileContent)
    return hash_file(content.path)


def sizes_by_kind(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each kind of member."""
    from npu_rl.stack.bundles.bundle_names import kind_of

    found: dict[str, int] = {}
    for name, size in sorted(sizes.items()):
        found[kind_of(name)] = found.get(kind_of(name), 0) + size
    return found
