"""`train` on devices examines its host before it starts anything, and `doctor` says the same from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from npu_rl.common.errors import HostError
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.host.examine_host import examine_host
from npu_rl.training.host.line import NOTE, OK, UNKNOWN
from npu_rl.training.run.host_check import require_host, stack_of_manifest
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
    host.report()  # writes its environment
    loaded = load_recipe(recipe)
    stack = stack_of_manifest(loaded.manifest)
    lock = SimpleNamespace(
        manifest=stack.name,
        device=stack.device,
        host=stack.versions,
        requirements=stack.requirements,
        env=stack.env,
    )
    told: list[str] = []
    python = f"/{host.python}/bin/python3"
    require_host(loaded.recipe, cast("Any", lock), python, told.append, host.root, host.root)
    return told


def test_a_healthy_host_is_told_in_one_line(host: MadeHost) -> None:
    assert require(host) == ["examining this host"]


def test_fifteen_of_sixteen_dies_end_it(host: MadeHost) -> None:
    host.remove("dev/davinci15")
    with pytest.raises(HostError) as refused:
        require(host)
    said = str(refused.value)
    assert refused.value.exit_code == 3
    assert f"{RECIPE} can't run on this host" in said
    assert "devices: 15 of /dev/davinciN" in said and "wanted: 16 (cluster.dies" in said
    assert f"npu-rl doctor --recipe {RECIPE} --python" in said


def test_no_torch_ends_it(host: MadeHost) -> None:
    for name in ("torch-2.5.1", "torch_npu-2.5.1.post1.dev20250619"):
        host.remove(f"{host.site.relative_to(host.root)}/{name}.dist-info/METADATA")
    with pytest.raises(HostError, match="can't run") as refused:
        require(host)
    said = str(refused.value)
    assert "torch: not installed; wanted: 2.5.1 (manifest deepseek-v3-cann)" in said
    assert "torch_npu: not installed" in said


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


def doctor(host: MadeHost, folder: Path, *words: str) -> Any:
    host.report()
    return run_here(["doctor", "--root", str(host.root), *words], clean_env(folder), folder)


def test_the_command_ends_with_3_for_a_red_line(host: MadeHost, tmp_path: Path) -> None:
    well = doctor(host, tmp_path, "--recipe", RECIPE)
    assert well.returncode == 0, well.stdout
    against = f"npu-rl doctor: recipe {RECIPE}, manifest deepseek-v3-cann; Atlas A3"
    assert well.stdout.splitlines()[0].startswith(against)
    assert well.stdout.splitlines()[-1].startswith("0 red, 0 not known, ")
    host.remove("dev/davinci15")
    ill = doctor(host, tmp_path, "--recipe", RECIPE)
    assert ill.returncode == 3
    first = ill.stdout.splitlines()[1:5]
    assert first[0].startswith("red       devices: 15 of /dev/davinciN")
    assert [row.split(":")[0].strip() for row in first[1:]] == ["wanted", "shown by", "do"]


def test_the_command_prints_the_same_for_programs(host: MadeHost, tmp_path: Path) -> None:
    done = doctor(host, tmp_path, "--manifest", "deepseek-v3-cann", "--json")
    said = json.loads(done.stdout)
    assert (said["ok"], said["kind"], done.returncode) == (True, "a3", 0)
    assert {"id", "state", "what", "found", "wanted", "command", "fix", "stops"} == set(said["lines"][0])
    assert done.stdout.isascii()


def test_a_root_that_is_none_and_a_recipe_that_is_none(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    assert run_here(["doctor", "--root", str(tmp_path / "none")], env, tmp_path).returncode == 2
    unknown = run_here(["doctor", "--recipe", "deepseek-r1-zero-256dies"], env, tmp_path)
    assert unknown.returncode == 2 and "deepseek-r1-zero-256die" in unknown.stderr


def test_a_recipe_of_another_machine_is_red(host: MadeHost) -> None:
    red = {line.id: line for line in host.report(replace(host.wanted, kind="a2", dies=8)).red}
    assert (red["machine"].found, red["machine"].wanted) == ("Atlas A3", f"Atlas A2 (recipe {RECIPE})")
    assert "devices" not in red


def test_of_an_ascend_950_nothing_is_proven(host: MadeHost) -> None:
    host.table(chips=16, phy_id=False, name="Ascend950PR")
    lines = {line.id: line for line in host.report().lines}
    assert lines["machine"].state == NOTE and "unproven" in lines["machine"].fix
    assert "kernels-for" not in lines and "hbm-free" not in lines


def test_a_container_may_have_some_of_the_devices(host: MadeHost) -> None:
    for number in range(8, 16):
        host.remove(f"dev/davinci{number}")
    assert host.report(replace(host.wanted, dies=8)).red == ()


def test_a_chip_that_fell_off_is_red(host: MadeHost) -> None:
    host.table(chips=15, phy_id=True, name="Ascend910")
    (line,) = [line for line in host.report().red if line.id == "devices"]
    assert line.found == "16 of /dev/davinciN, 15 in npu-smi's table"


def test_without_time_for_every_process_holders_are_not_known(host: MadeHost) -> None:
    report = host.report()
    cut = examine_host(replace(report.host, all_processes=False), host.wanted)
    states = [{line.id: line.state for line in one.lines}["holders"] for one in (report, cut)]
    assert states == [OK, UNKNOWN]


def test_the_space_of_the_documents_is_found(host: MadeHost) -> None:
    host.write("root/.bashrc", "export LD_PRELOAD=/usr/lib64/libjemalloc.so.2 $LD_PRELOAD\n")
    (line,) = host.report().red
    assert (line.id, line.found) == ("preload", "a space before $LD_PRELOAD in /root/.bashrc")
    host.write("root/.bashrc", 'export LD_PRELOAD="/usr/lib64/libjemalloc.so.2:$LD_PRELOAD"\n')
    assert host.report().red == ()
    host.environ["LD_PRELOAD"] = "/usr/lib64/none.so /usr/lib/aarch64-linux-gnu/libjemalloc.so.2"
    (line,) = host.report().red
    assert line.found == "missing: /usr/lib64/none.so (this shell)"


def test_limits_ports_and_memory_are_red(host: MadeHost) -> None:
    host.replace("proc/self/limits", "Max open files            1048576", "Max open files            1024   ")
    host.replace("proc/mounts", "size=524288000k", "size=65536k")
    host.write("proc/net/tcp", "  sl  local_address\n   0: 0:FAFA 0:0 0A\n")  # 64250 of 64247 to 64262
    host.table(chips=16, phy_id=True, name="Ascend910", used=50_000)
    wanted = replace(host.wanted, env={**host.wanted.env, "HCCL_IF_BASE_PORT": "64247"})
    red = {line.id: line.found for line in host.report(wanted).red}
    assert set(red) == {"nofile", "shm", "ports", "hbm-free"}
    assert red["ports"] == "in use: 64250" and red["shm"] == "64 MiB"


def test_an_interface_that_is_down_is_red(host: MadeHost) -> None:
    host.write("sys/class/net/bond0/operstate", "down\n")
    (line,) = host.report(replace(host.wanted, interface="bond0")).red
    assert line.id == "interface" and "enp67s0f5" in line.fix
