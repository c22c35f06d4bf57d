"""A small stack in a bundle, and bundles that somebody has changed."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from npu_rl.stack.bundles.bundle_facts import content_id, dump_list, parse_facts
from npu_rl.stack.bundles.bundle_names import FACTS, LIST, SIGNATURE
from npu_rl.stack.bundles.bundle_tar import BLOCK, Bytes, write_tar
from npu_rl.stack.bundles.create_bundle import BundleOrder, MadeBundle, create_bundle
from npu_rl.stack.bundles.read_bundle import OpenBundle, open_bundle
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.pylocks.pylock_targets import Target
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent
from tests.resolve.world import PATCH, World, component, pull, request
from tests.support import clean_env

HERE = Target("3.11", "x86_64", "2.28")
Members = dict[str, bytes]


def program(targets: Sequence[Target], folder: Path) -> None:
    """A stand-in for npu-rl's wheels, which take minutes: two files under names of wheels."""
    for name in ("npu_rl-0.2.0-py3-none-any.whl", "pip-1-py3-none-any.whl"):
        (folder / name).write_bytes(name.encode() * len(targets))


@dataclass(frozen=True)
class MadeStack:
    """A world with the manifests m and other, both locked, and the bundle of m."""

    world: World
    file: Path
    made: MadeBundle

    @property
    def manifest(self) -> Path:
        return self.world.root / "project" / "m.yaml"

    def bundle(self, output: Path, *names: str, key: Path | None = None) -> MadeBundle:
        return make_bundle(
            *(self.world.root / "project" / f"{name}.yaml" for name in names or ("m",)), output, key=key
        )


def make_bundle(*paths: Path, key: Path | None = None) -> MadeBundle:
    """Make a bundle of manifests whose objects are in the store; the last path is the bundle's."""
    *manifests, output = paths
    ordered = [(str(path), load_manifest(str(path)), [HERE]) for path in manifests]
    order = BundleOrder(ordered, False, output, key, jobs=1)
    return create_bundle(order, replace(Network(), offline=True), Silent(), program)


def make_stack(root: Path) -> MadeStack:
    """Needs the variables of `clean_env(root)` in this process."""
    (root / "project").mkdir(parents=True)
    world = World(root, clean_env(root))
    up = world.upstream({"pkg/a.py": "one\ntwo\n", "pkg/data.bin": bytes(range(256)) * 40, "docs/x": "x\n"})
    pull(up, 1, {"pkg/b.py": "b\n"})
    world.write("fix.patch", PATCH)
    parts = {"up": component(up, merge=[request(1, "pick")], patches=["./fix.patch"], checkout="full")}
    world.manifest(parts)
    world.lock()
    up.commit({"pkg/a.py": "one\ntwo\nthree\n"})
    world.manifest({"up": component(up)}, "other", extends="./parts/base.yaml")
    world.write("parts/base.yaml", "schema: 1\nenv: {A: '1'}\n")
    world.lock(name="other")
    stack = MadeStack(world, root / "m.tar", MadeBundle("", 0, {}))
    return replace(stack, made=stack.bundle(stack.file))


@pytest.fixture(scope="session")
def made_stack(tmp_path_factory: pytest.TempPathFactory) -> MadeStack:
    root = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        _enter(root, patch)
        return make_stack(root)


@pytest.fixture
def stack(made_stack: MadeStack, monkeypatch: pytest.MonkeyPatch) -> MadeStack:
    """The stack, with its environment in this process."""
    _enter(made_stack.world.root, monkeypatch)
    return made_stack


def _enter(root: Path, patch: pytest.MonkeyPatch) -> None:
    for name, value in clean_env(root).items():
        patch.setenv(name, value)
    patch.setenv("NPU_RL_RETRIES", "0")
    patch.delenv("NPU_RL_REWRITE", raising=False)


def members_of(file: Path) -> Members:
    """Name -> content of a bundle's members, by Python's own reader."""
    import tarfile

    with tarfile.open(file) as tar:
        found = {}
        for entry in tar:
            content = tar.extractfile(entry)
            assert entry.isreg() and content is not None
            found[entry.name] = content.read()
        return found


def tar_of(members: Mapping[str, bytes]) -> bytes:
    memory = io.BytesIO()
    write_tar(memory, [(name, Bytes(data)) for name, data in members.items()])
    return memory.getvalue()


def sealed(members: Mapping[str, bytes], **facts: object) -> bytes:
    """The tar of a bundle whose list, sizes and id fit, as somebody could make it who knows how."""
    rest = {name: data for name, data in members.items() if name not in (LIST, SIGNATURE, FACTS)}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in rest.items()}
    old = parse_facts(members[FACTS])
    sizes = {name: len(data) for name, data in rest.items()}
    new = replace(old, **{"id": content_id(hashes), "sizes": sizes, **facts})  # type: ignore[arg-type]
    text = new.dump()
    hashes[FACTS] = hashlib.sha256(text).hexdigest()
    return tar_of({**rest, FACTS: text, LIST: dump_list(hashes)})


def block_of(data: bytes, name: str) -> int:
    """The offset of a member's header."""
    return next(at for at in range(0, len(data), BLOCK) if data[at : at + 100].rstrip(b"\0") == name.encode())


def with_checksum(block: bytes) -> bytes:
    plain = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(plain) + block[156:]


def changed_header(data: bytes, name: str, change: Callable[[bytearray], None]) -> bytes:
    """The tar with another header of one member, whose checksum fits."""
    at = block_of(data, name)
    block = bytearray(data[at : at + BLOCK])
    change(block)
    return data[:at] + with_checksum(bytes(block)) + data[at + BLOCK :]


def opened(file: Path, signers: Path | None = None) -> OpenBundle:
    """The bundle as it was proven; closed again."""
    with open_bundle(file, signers) as bundle:
        return bundle
