"""Small inputs that ask for much: each is refused, or done, in bounded memory and time."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.recipe.schema_run import Cluster
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, Entry, MalformedObject, nested
from npu_rl.stack.lock import lock_model
from tests.hostile.limits import limited_cli, measured_cli
from tests.resolve.world import World, component
from tests.support import assert_told, clean_env, cpu_below, ok

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


def forged(world: World, change: Any) -> Path:
    """A lock of a small world with `change(body)` done to it."""
    small(world)
    body = json.loads(lock_model.dump(world.lock()))
    change(body)
    return world.write("m.lock.json", seal(body)).with_name("m.yaml")


def test_six_hundred_proofs_of_zeros(world: World, tmp_path: Path) -> None:
    def bomb(body: dict[str, Any]) -> None:
        body["components"]["up"]["proof"] += [ZEROS] * 600

    with cpu_below(20):
        manifest = forged(world, bomb)
        done = limited_cli(["setup", "-m", manifest, "-w", tmp_path / "ws"], world.env)
        assert_told(done, "unpacks to more than", "m.lock.json")


def test_a_record_of_a_quarter_gigabyte_of_zeros(world: World, tmp_path: Path) -> None:
    packing = zlib.compressobj(9)
    packed = b"".join(packing.compress(bytes(1 << 24)) for _ in range(16)) + packing.flush()

    def bomb(body: dict[str, Any]) -> None:
        up = body["components"]["up"]
        oid = up["tree"]
        content = base64.b64encode(packed).decode()
        record = {"path": "pkg/a.py", "mode": "100644", "id": oid, "content": content}
        merge = {"ref": "refs/pull/1/head", "how": "merge", "base_ref": "refs/heads/main", "drift": 0}
        merge |= dict.fromkeys(("head", "base_tip", "merge_base"), up["pin"])
        merge |= {"commits": [], "inside": [], "outside": [], "records": [record], "tree": oid}
        up["merges"] = [merge]

    done = limited_cli(["setup", "-m", forged(world, bomb), "-w", tmp_path / "ws"], world.env)
    assert_told(done, "the record of pkg/a.py is damaged", "unpacks to more than")


@pytest.mark.rehearsal
def test_a_patch_of_ten_thousand_new_files(world: World) -> None:
    up = world.repo()
    up.commit({"pkg/a.py": "a = 1\n"})
    text = "".join(
        f"diff --git a/pkg/f{i}.py b/pkg/f{i}.py\nnew file mode 100644\n--- /dev/null\n+++ b/pkg/f{i}.py\n"
        f"@@ -0,0 +1 @@\n+x = {i}\n"
        for i in range(10_000)
    )
    world.write("big.patch", text)
    world.manifest({"up": component(up, up.id("main"), patches=["./big.patch"])})
    with cpu_below(30):  # it took two minutes
        lock = world.lock()
        assert lock.components["up"].patches[0].hunks == 10_000


def test_a_merge_that_changes_twenty_thousand_files(trees: Trees) -> None:
    """Each change wrote its folder anew: 14 GB and half an hour."""
    blob = Entry(FILE, trees.write_object("blob", b"x\n"))
    with cpu_below(5):
        root = trees.put_all(EMPTY_TREE, ((f"pkg/f{i}.py", blob) for i in range(20_000)))
        half = trees.put_all(root, ((f"pkg/f{i}.py", None) for i in range(0, 20_000, 2)))
    assert len(trees.entries(trees.entries(half)["pkg"].oid)) == 10_000
    assert trees.put(trees.put(EMPTY_TREE, "a/b/c", blob), "a/b/c", None) == EMPTY_TREE


@pytest.mark.parametrize("depth", [300, 3000])
def test_a_tree_too_deep_to_be_checked_out(depth: int, trees: Trees) -> None:
    path = "/".join(["d"] * depth) + "/f"
    blob = Entry(FILE, "0" * 40)
    with pytest.raises(MalformedObject, match="deep"):
        list(nested([(path, blob)]))
    with pytest.raises(MalformedObject, match="deep"):
        trees.put(EMPTY_TREE, path, blob)


def test_little_memory_is_enough_for_every_command_of_a_small_world(tmp_path: Path) -> None:
    """The limit that the other tests set is no hindrance by itself."""
    ok(limited_cli(["list"], clean_env(tmp_path)))


def test_a_cluster_of_a_billion_dies_is_refused() -> None:
    """`plan` counted rank by rank, without end, for a slip of the finger in `cluster.nodes`."""
    for given in ({"nodes": 10**8, "dies": 1}, {"nodes": 7000, "dies": 16}, {"dies": 10**12}):
        assert any("more than 100,000" in why for _, why in Cluster.rules(given)), given
    assert not list(Cluster.rules({"nodes": 6250, "dies": 16}))


@pytest.mark.rehearsal
@pytest.mark.parametrize("command", [["recipes", "check"], ["plan"]])
def test_counts_of_any_size_are_judged_in_time(command: list[str], tmp_path: Path) -> None:
    values = ["cluster.nodes=100000000", "steps=1e15", "rollout.responses=1000000000", "data.batch=1e15"]
    for value in (*values, "cluster.nodes=6250", "rollout.tensor_parallel=6250"):
        cost = measured_cli([*command, "deepseek-r1-zero-256die", value], clean_env(tmp_path))
        assert cost.code in (0, 1, 2), cost


NO_MEMORY = [MemoryError(), OSError(errno.ENOMEM, "x"), ImportError("a.so: failed to map segment from x")]


@pytest.mark.parametrize("error", NO_MEMORY)
def test_too_little_memory_to_import_npu_rl(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    """As with `ulimit -v 20000`, where an import fails before a command begins."""
    from npu_rl.cli import _unexpected

    _unexpected(type(error), error, None)
    told = capfd.readouterr().err
    assert "There is not enough memory" in told and "Traceback" not in told
