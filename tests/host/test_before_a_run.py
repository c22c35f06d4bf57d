"""`train` on devices examines its host before it starts anything, and `doctor` says the same from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from npu_rl.common.errors import HostError
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.run.host_check import require_host, wanted_by_manifest
from npu_rl.training.run.prepare import prepare
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.host.made_host import ASCEND, MadeHost
from tests.in_process import run_here
from tests.support import clean_env

RECIPE = "deepseek-v3-cann-256die"


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    (tmp_path / "host").mkdir()
    return MadeHost(tmp_path / "host", RECIPE)


def require(host: MadeHost, recipe: str = RECIPE) -> list[str]:
    """Return what is told of a host that a run may use."""
    loaded = load_recipe(recipe)
    stack = wanted_by_manifest(loaded.manifest)
    lock = SimpleNamespace(
        manifest=stack.manifest,
        device=stack.device,
        host=stack.versions,
        requirements=stack.requirements,
        env=stack.env,
    )
    told: list[str] = []
    python = host.training_python()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in host.environ.items():
            patch.setenv(name, value)
        require_host(loaded.recipe, cast("Any", lock), python, told.append, host.root, host.root)
    return told


def test_a_healthy_host_is_told_in_one_line(host: MadeHost) -> None:
    assert require(host) == ["examining this host"]


def test_what_may_work_all_the_same_is_a_warning(host: MadeHost) -> None:
    host.replace(f"{ASCEND}/nnal/atb/latest/version.info", "8.2.RC1", "8.1.RC1")
    told = require(host)
    assert len(told) == 2
    assert told[1].startswith(
        "warning: this host: NNAL (ATB): 8.1.RC1; wanted: 8.2.RC1 (manifest deepseek-v3-cann)"
    )


@pytest.mark.pypi
def test_train_asks_before_it_starts_anything(
    quickstart_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("NPU_RL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "host/dev").mkdir(parents=True)
    (tmp_path / "host/dev/davinci0").touch()
    loaded = load_recipe("quickstart", ["device=npu", "cluster.dies=2"])
    with pytest.raises(HostError) as refused:
        prepare(
            loaded, WorkspacePaths(quickstart_workspace), None, print, rehearse=False, root=tmp_path / "host"
        )
    assert "quickstart can't run on this host" in str(refused.value)
    assert "devices: 1 of /dev/davinciN; wanted: 2 (cluster.dies of quickstart)" in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_the_command_ends_with_3_for_a_red_line(tmp_path: Path) -> None:
    """This machine has no dies; hosts that have are MadeHosts."""
    ill = run_here(["doctor", "--recipe", RECIPE], clean_env(tmp_path), tmp_path)
    assert ill.returncode == 3
    against = f"npu-rl doctor: recipe {RECIPE}, manifest deepseek-v3-cann; Atlas A3"
    rows = ill.stdout.splitlines()
    assert rows[0].startswith(against) and " red, " in rows[-1]
    at = next(
        number for number, row in enumerate(rows) if row.startswith("red       devices: 0 of /dev/davinciN")
    )
    assert [row.split(":")[0].strip() for row in rows[at + 1 : at + 4]] == ["wanted", "shown by", "do"]
    unknown = run_here(["doctor", "--recipe", "deepseek-r1-zero-256dies"], clean_env(tmp_path), tmp_path)
    assert unknown.returncode == 2 and "deepseek-r1-zero-256die" in unknown.stderr


def test_a_recipe_of_another_machine_is_red(host: MadeHost) -> None:
    red = {line.id: line for line in host.report(replace(host.wanted, kind="a2", dies=8)).red}
    assert (red["machine"].found, red["machine"].wanted) == ("Atlas A3", f"Atlas A2 (recipe {RECIPE})")
    assert "devices" not in red


def test_a_chip_that_fell_off_is_red(host: MadeHost) -> None:
    host.table(chips=15, phy_id=True, name="Ascend910")
    (line,) = [line for line in host.report().red if line.id == "devices"]
    assert line.found == "16 of /dev/davinciN, 15 in npu-smi's table"


def test_a_preloaded_file_that_is_missing_is_red(host: MadeHost) -> None:
    host.environ["LD_PRELOAD"] = "/usr/lib64/none.so /usr/lib/aarch64-linux-gnu/libjemalloc.so.2"
    (line,) = host.report().red
    assert line.found == "missing: /usr/lib64/none.so (this shell)"


def test_limits_and_memory_are_red(host: MadeHost) -> None:
    host.replace("proc/self/limits", "Max open files            1048576", "Max open files            1024   ")
    host.replace("proc/mounts", "size=524288000k", "size=65536k")
    host.table(chips=16, phy_id=True, name="Ascend910", used=50_000)
    red = {line.id: line.found for line in host.report().red}
    assert set(red) == {"nofile", "shm", "hbm-free"}
    assert red["shm"] == "64 MiB"


def test_an_interface_that_is_down_is_red(host: MadeHost) -> None:
    host.write("sys/class/net/bond0/operstate", "down\n")
    (line,) = host.report(replace(host.wanted, interface="bond0")).red
    assert line.id == "interface" and "enp67s0f5" in line.fix
