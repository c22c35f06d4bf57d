"""The one command that is printed where packages are missing."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.installation.move_journal import FOLDER
from npu_rl.stack.sources.pip_config import TORCH_FOR_CPUS
from npu_rl.training.run.host_check import examine
from npu_rl.training.run.interpreter import Interpreter, require
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import (
    InstallPython,
    first_install_command,
    install_command,
    interrupted_line,
    keep_bundle,
)


def command(folder: Path, python: str, version: str, *, managed: bool = False) -> list[str]:
    setup = {"manifest": str(bundled_manifests()["quickstart"])}
    paths = WorkspacePaths(folder / "my work")
    said = install_command(paths, setup, InstallPython(python, version, ">=3.11,<3.12", managed=managed))
    assert "\n" not in said
    return shlex.split(said)


def test_it_names_the_interpreter_or_an_environment_where_that_one_does_not_do(tmp_path: Path) -> None:
    start = ["npu-rl", "setup", "--manifest", "quickstart", "--workspace", f"{tmp_path}/my work", "--install"]
    assert command(tmp_path, "/opt/my python", "3.11.7") == [*start, "--python", "/opt/my python"]
    beside = ["--venv", f"{tmp_path}/my work-python"]
    assert command(tmp_path, "/usr/bin/python3", "3.12.3") == [*start, *beside]
    assert command(tmp_path, "/usr/bin/python3", "3.11.7", managed=True) == [*start, *beside]


def test_before_there_is_a_workspace_the_command_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(python: str, version: str, *, managed: bool = False) -> list[str]:
        return shlex.split(
            first_install_command(
                "./my own.yaml", InstallPython(python, version, "==3.11.*", managed=managed)
            )
        )

    start = ["npu-rl", "setup", "--manifest", "./my own.yaml", "--install"]
    assert said("/opt/my python", "3.11.7") == [*start, "--python", "/opt/my python"]
    beside = ["--venv", f"{tmp_path}/npu-rl-workspace-python"]
    assert said("/opt/my python", "3.12.3") == [*start, *beside]
    assert said("/usr/bin/python3", "3.11.2", managed=True) == [*start, *beside]


def test_doctor_prints_the_command_that_fits_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://index.example.org/simple")  # so that none is named
    report = examine("pai-megatron-deepseek-v3", None, None, Path("/"), smi_seconds=120)
    fixes = {line.id: line.fix for line in report.lines}
    start = "npu-rl setup --manifest pai-megatron-deepseek-v3 --install"
    fits = sys.version_info[:2] == (3, 12)
    where = f"--python {sys.executable}" if fits else f"--venv {tmp_path}/npu-rl-workspace-python"
    assert fixes["requirements"] == f"{start} {where}"


def test_of_a_workspace_from_a_bundle_it_names_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    setup = {"manifest": str(bundled_manifests()["quickstart"]), "lock": "1" * 64}
    paths, bundle = WorkspacePaths(tmp_path / "my work"), tmp_path / "my bundle.tar"
    paths.root.mkdir()
    bundle.write_text("")

    def said(*, has_torch: bool = True) -> str:
        return install_command(paths, setup, InstallPython("/opt/python", "3.11.7", has_torch=has_torch))

    assert "--bundle" not in said()
    keep_bundle(paths, bundle, "1" * 64)
    start = f"npu-rl setup --manifest quickstart --workspace '{paths.root}' --bundle '{bundle}' --install"
    assert said() == f"{start} --python /opt/python"
    command, explained = said(has_torch=False).splitlines()
    assert command == f"{start} --python /opt/python --wheels WHEELS" and "torch" in explained
    keep_bundle(paths, bundle, "2" * 64)  # of another lock
    assert "--bundle" not in said()
    keep_bundle(paths, bundle, "1" * 64)
    bundle.unlink()
    assert "--bundle" not in said()


def test_it_installs_uv_first_where_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    first = [sys.executable, "-m", "pip", "install", "--no-deps", "uv", "&&", "npu-rl"]
    assert command(tmp_path, "/opt/python", "3.11.7")[: len(first)] == first


def test_what_is_lacking_is_told_with_it() -> None:
    found = Interpreter("/opt/python", (3, 11, 7), {})
    with pytest.raises(Exception, match="lacks 1 of 1") as caught:
        require(found, ["ray==2.42.1"], npu=True, install="npu-rl setup --install --python /opt/python")
    lines = str(caught.value).splitlines()
    assert "         npu-rl setup --install --python /opt/python" in lines
    assert "pip install" not in str(caught.value)


def test_an_interrupted_installation_is_seen_through_the_interpreters_link(tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    program = tmp_path / "env/bin/python"
    program.write_text("")
    program.chmod(0o755)
    paths, setup = WorkspacePaths(tmp_path / "work"), {"manifest": str(bundled_manifests()["quickstart"])}
    goes_on = f"npu-rl setup --manifest quickstart --workspace {tmp_path}/work --install --python"

    def said(python: Path) -> str:
        return interrupted_line(paths, setup, str(python)) or ""

    assert interrupted_line(paths, setup) is None
    assert said(program) == ""
    (tmp_path / "env" / FOLDER).mkdir()
    assert f"before a change; what goes on: {goes_on} {program}" in said(program)
    (tmp_path / "env" / FOLDER / "journal.json").write_text("{}")
    assert f"what finishes it: {goes_on} {program}" in said(program)
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/python"
    link.symlink_to(program)
    assert f"what finishes it: {goes_on} {link}" in said(link)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyPI's torch for other machines is for CPUs")
def test_on_x86_64_it_names_the_index_of_torch_for_cpus_where_torch_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def said(python: str = "3.11.7", **words: bool) -> str:
        setup = {"manifest": str(bundled_manifests()["quickstart"])}
        paths = WorkspacePaths(tmp_path)
        return install_command(paths, setup, InstallPython("/opt/p", python, ">=3.11,<3.12", **words))

    index = f"PIP_EXTRA_INDEX_URL={TORCH_FOR_CPUS} npu-rl setup "
    assert index in said(cpu_torch=True, has_torch=False)
    assert index in said("3.12.3", cpu_torch=True)  # a new environment has none
    assert index not in said(cpu_torch=True)
    assert index not in said(has_torch=False)  # CUDA's comes with the image
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://user:secret@index.example.org/simple")
    assert "PIP_" not in said(cpu_torch=True, has_torch=False)
