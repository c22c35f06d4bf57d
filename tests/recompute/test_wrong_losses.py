"""Wrong mathematics in the tree's own actors: each plant is named in the first step where it can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, NPU, REHEARSAL
from tests.code_trees import R1_ZERO_PINS, unpatched, unpatched_cann
from tests.recompute.plants import CANN, FSDP, LATER_FSDP, MEGATRON, Plant
from tests.support import ROOT, byte_code

pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytestmark = pytest.mark.rehearsal

HERE = Path(__file__).parent
Found = dict[str, dict[str, Any]]


def steps(code: Path, program: str, plants: Mapping[str, Plant], usage: Path) -> Found:
    """What each plant leads to in steps of a tree's actor."""
    roots = [NPU, ROOT / "patchsets/witnesses"] if "megatron" in program else []
    given = {name: [plant.changes, plant.options] for name, plant in plants.items()}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / program, json.dumps({"plants": given})],
        cwd=code, capture_output=True, text=True, timeout=900, check=False, env=environment([*roots, code], usage),
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"plant"')]
    assert len(lines) == len(plants), done.stdout[-2000:] + done.stderr[-4000:]
    return {line["plant"]: line for line in lines}


def environment(roots: list[Path], usage: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, [INJECTED, REHEARSAL, *roots]))
    return {
        **os.environ, **byte_code(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "", "NPU_RL_STANDINS": "cpu", "NPU_RL_USAGE": str(usage),
    }  # fmt: skip


def require_named(found: Mapping[str, Any], plant: Plant) -> None:
    error = found["error"]
    if not plant.named:
        assert error == "", error
        return
    assert error.endswith(f": {plant.named}"), error
    assert plant.step == 0 or f", step {plant.step}" in error


@pytest.fixture(scope="module")
def on_fsdp(code_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return steps(code_tree, "fsdp_steps.py", FSDP, tmp_path_factory.mktemp("usage"))


@pytest.mark.pypi
@pytest.mark.parametrize("name", FSDP)
def test_on_fsdp(name: str, on_fsdp: Found) -> None:
    require_named(on_fsdp[name], FSDP[name])


@pytest.fixture(scope="module")
def of_upstreams(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Of the actors of other pins, without a patch: "TREE: PLANT"."""
    found: Found = {}
    for tree, (lay, program, plants) in TREES.items():
        folder = tmp_path_factory.mktemp("tree")
        own = steps(lay(upstreams, folder), program, plants, tmp_path_factory.mktemp("usage"))
        found |= {f"{tree}: {name}": line for name, line in own.items()}
    return found


def at(*pins: tuple[str, str, str]) -> Callable[[Path, Path], Path]:
    return lambda upstreams, folder: unpatched(upstreams, pins, folder)


PLUGIN = ("volcengine+verl", "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e", "verl")
TREES: dict[str, tuple[Callable[[Path, Path], Path], str, Mapping[str, Plant]]] = {
    "796871d, FSDP": (at(PLUGIN), "fsdp_steps.py", LATER_FSDP),
    "55e3c5b, FSDP": (at(R1_ZERO_PINS[0]), "fsdp_steps.py", LATER_FSDP),
    "55e3c5b, Megatron": (at(*R1_ZERO_PINS), "megatron_steps.py", MEGATRON),
    "cann-recipes": (unpatched_cann, "megatron_steps.py", CANN),
}  # fmt: skip


@pytest.mark.upstreams
@pytest.mark.parametrize(
    "tree, name", [(tree, name) for tree, (_, _, plants) in TREES.items() for name in plants]
)
def test_on_other_trees(tree: str, name: str, of_upstreams: Found) -> None:
    require_named(of_upstreams[f"{tree}: {name}"], TREES[tree][2][name])


@pytest.mark.pypi
def test_two_ranks_make_the_update_of_one(code_tree: Path, tmp_path: Path) -> None:
    """Weights after an update, averaged over ranks by the tree's FSDP, against one rank with the whole batch."""

    def start(rank: int, world: int) -> subprocess.Popen[str]:
        words = [HERE / "ranks_steps.py", str(rank), str(world), tmp_path / f"meet{world}"]
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", *words],
            cwd=code_tree, stdout=subprocess.PIPE, text=True, env=environment([code_tree], tmp_path),
        )  # fmt: skip

    running = [start(0, 1), start(0, 2), start(1, 2)]
    one, *two = (json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in running)
    assert all(norms == pytest.approx(one, rel=1e-6) for norms in two)
