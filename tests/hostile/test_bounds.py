"""Small inputs that ask for much: each is refused, or done, in bounded memory and time."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, Entry, MalformedObject, nested
from npu_rl.stack.lock import lock_model
from tests.hostile.limits import limited_cli
from tests.resolve.world import World, component
from tests.support import assert_told, cpu_below

ZEROS = base64.b64encode(zlib.compress(bytes(8_000_000), 9)).decode()


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[Trees]:
    init_bare(tmp_path)
    with Trees(Git(tmp_path)) as trees:
        yield trees


def seal(body: dict[str, Any]) -> str:
    """The text of a lock, forged: its digest fits."""
    body.pop("digest", None)
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    body["digest"] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps(body)


def small(world: World) -> Path:
    """The manifest of a world with one component of one file."""
    up = world.repo()
    up.commit({"pkg/a.py": "a = 1\n"})
    return world.manifest({"up": component(up, up.id("main"))})


def zero_proofs(body: dict[str, Any]) -> None:
    body["components"]["up"]["proof"] += [ZEROS] * 600


def zero_record(body: dict[str, Any]) -> None:
    """A merged file of a quarter gigabyte."""
    packing = zlib.compressobj(9)
    packed = b"".join(packing.compress(bytes(1 << 24)) for _ in range(16)) + packing.flush()
    up = body["components"]["up"]
    content = base64.b64encode(packed).decode()
    record = {"path": "pkg/a.py", "mode": "100644", "id": up["tree"], "content": content}
    merge = {"ref": "refs/pull/1/head", "how": "merge", "base_ref": "refs/heads/main", "drift": 0}
    merge |= dict.fromkeys(("head", "base_tip", "merge_base"), up["pin"])
    merge |= {"commits": [], "inside": [], "outside": [], "records": [record], "tree": up["tree"]}
    up["merges"] = [merge]


@pytest.mark.second
@pytest.mark.parametrize("bomb", [zero_proofs, zero_record])
def test_a_lock_that_unpacks_to_gigabytes(bomb: Any, world: World, tmp_path: Path) -> None:
    small(world)
    body = json.loads(lock_model.dump(world.lock()))
    bomb(body)
    world.write("m.lock.json", seal(body))
    manifest = world.root / "project" / "m.yaml"
    with cpu_below(20):
        done = limited_cli(["setup", "-m", manifest, "-w", tmp_path / "ws"], world.env)
    assert_told(done, "unpacks to more than")


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_tree_too_deep_to_be_checked_out(depth: int, trees: Trees) -> None:
    path = "/".join(["d"] * depth) + "/f"
    blob = Entry(FILE, "0" * 40)
    with pytest.raises(MalformedObject, match="deep"):
        list(nested([(path, blob)]))
    with pytest.raises(MalformedObject, match="deep"):
        trees.put(EMPTY_TREE, path, blob)
