"""A small stack in a bundle, and bundles that somebody has changed."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from npu_rl.stack.bundles.bundle_file import LIST
from npu_rl.stack.bundles.create_bundle import OrderedManifest, create_bundle
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

    @property
    def manifest(self) -> Path:
        return self.world.root / "project" / "m.yaml"

    def bundle(self, output: Path, *names: str) -> tuple[str, ...]:
        return make_bundle(
            *(self.world.root / "project" / f"{name}.yaml" for name in names or ("m",)), output
        )


def make_bundle(*paths: Path) -> tuple[str, ...]:
    """Make a bundle of manifests whose objects are in the store; the last path is the bundle's."""
    *manifests, output = paths
    ordered = [OrderedManifest(str(path), load_manifest(str(path)), [HERE]) for path in manifests]
    return create_bundle(ordered, output, replace(Network(), offline=True), Silent(), program, jobs=1).start


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
    stack = MadeStack(world, root / "m.tar")
    stack.bundle(stack.file)
    return stack


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
    with tarfile.open(file) as tar:
        found = {}
        for entry in tar:
            content = tar.extractfile(entry)
            assert entry.isreg() and content is not None
            found[entry.name] = content.read()
        return found


def tar_of(members: Mapping[str, bytes], *more: tarfile.TarInfo, **options: bytes) -> bytes:
    """A tar of these members, then of members without content or with that of `options["content"]`."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for entry in more:
            tar.addfile(entry, io.BytesIO(options.get("content", b"")))
    return memory.getvalue()


def sealed(members: Mapping[str, bytes]) -> bytes:
    """The tar of a bundle whose list fits, as somebody could make it who knows how."""
    rest = {name: data for name, data in members.items() if name != LIST}
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in rest.items())
    return tar_of({LIST: "".join(lines).encode(), **rest})
