"""What can't work is refused before anything is downloaded, with what to do."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, UsageError
from npu_rl.stack.installation import install
from npu_rl.stack.installation.install_plan import InstallPlan, plan_lines
from npu_rl.stack.installation.named_wheels import choose_wheel, named_wheels
from npu_rl.stack.installation.target_python import read_target
from tests.installation.made_packages import MACHINE, OTHER, Stack, tree, wheel


def planned(stack: Stack, **options: object) -> InstallPlan:
    return install.plan(stack.asks(**options), stack.folder)  # type: ignore[arg-type]


def downloads(stack: Stack) -> list[str]:
    return [path for path in stack.index.requests if path.endswith(".whl")]


def refused(stack: Stack, **options: object) -> str:
    before = tree(stack.folder / "env")
    with pytest.raises(HostError) as caught:
        planned(stack, **options)
    assert tree(stack.folder / "env") == before
    return str(caught.value)


def test_a_plan_changes_nothing_and_says_everything(stack: Stack) -> None:
    stack.has(
        wheel("one", "1.0"),
        wheel("same", "1.0"),
        wheel("torch", "2.8.0"),
        wheel("stays", "1", requires=["one<2"]),
    )
    stack.lists("one", *wheel("one", "2.0"))
    stack.lists("same", *wheel("same", "1.0"))
    stack.lists("new", *wheel("new", "3.0"))
    stack.writes(torch="2.5.1")
    before = tree(stack.folder / "env")
    lines = list(plan_lines(planned(stack)))
    assert tree(stack.folder / "env") == before
    assert lines[:4] == [
        "keep    torch 2.8.0, the host's",
        "replace one 1.0 by 2.0",
        "install 1 package with their hashes: new 3.0",
        "keep    1 package that is as locked",
    ]
    assert "note: torch 2.8.0 is kept as the host's; the manifest wants 2.5.1" in lines
    assert "note: 1 bound of packages that stay will be broken: stays 1 wants one<2" in lines
    assert lines[-1].startswith(f"2 packages into {stack.python} (Python ")
    assert not downloads(stack)


def test_another_python_is_refused(stack: Stack) -> None:
    stack.lists("one", *wheel("one", "1.0"))
    stack.writes(python=OTHER)
    said = refused(stack)
    assert f"mine's packages are for CPython {OTHER} on {MACHINE}" in said
    assert f"--python python{OTHER}" in said and "--venv DIR" in said


def test_the_systems_python_is_refused(stack: Stack) -> None:
    stack.lists("one", *wheel("one", "1.0"))
    stack.writes()
    request = stack.asks()
    target = read_target(str(stack.python))
    from dataclasses import replace

    from npu_rl.stack.installation.target_checks import check_target

    with pytest.raises(HostError, match="belongs to the operating system") as caught:
        check_target(replace(target, managed=True, venv=False), request.pylock)
    assert "--venv DIR" in str(caught.value)
    with pytest.raises(HostError, match="glibc"):
        check_target(replace(target, libc=("glibc", "2.17")), request.pylock)
    with pytest.raises(HostError, match="another C library"):
        check_target(replace(target, libc=("", "")), request.pylock)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ones_own_is_refused(stack: Stack) -> None:
    stack.lists("one", *wheel("one", "1.0"))
    stack.writes()
    mode = stack.site.stat().st_mode
    stack.site.chmod(mode & ~stat.S_IWUSR)
    try:
        assert f"where: {stack.site}" in refused(stack)
    finally:
        stack.site.chmod(mode)


def test_a_full_disk_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.lists("one", *wheel("one", "1.0"))
    stack.writes()
    usage = shutil.disk_usage(stack.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    assert "Not enough free disk space" in refused(stack)


def test_a_host_package_from_nowhere_is_refused(stack: Stack, tmp_path: Path) -> None:
    """PyPI's torch for x86-64 is built for CUDA: without NVIDIA's packages it can't be imported."""
    stack.lists("one", *wheel("one", "1.0"))
    cuda = wheel("torch", "2.5.1", requires=["nvidia-cudnn-cu12==9.1"])
    stack.lists("torch", *cuda, locked=False)
    stack.lists("nvidia-cudnn-cu12", *wheel("nvidia-cudnn-cu12", "9.1"), locked=False)
    other = tmp_path / f"triton_ascend-3.2.2-cp39-cp39-manylinux_2_17_{MACHINE}.whl"
    other.write_bytes(b"")
    stack.writes(torch="2.5.1", triton_ascend="3.2.2")
    said = refused(stack, wheels=[other])
    assert "torch 2.5.1: the index's wheel is built for CUDA" in said
    assert f"triton-ascend 3.2.2: not found ({stack.index.url}); {other.name} is for another Python" in said
    assert "--wheels FILE" in said and "extra-index-url" in said
    assert not [path for path in downloads(stack) if "/one/" in path]
    if MACHINE == "x86_64":
        stack.lists("torch", *wheel("torch", "2.5.1+cpu"), locked=False)
        stack.lists("triton-ascend", *wheel("triton-ascend", "3.2.2"), locked=False)
        assert planned(stack).versions == {"one": "1.0", "torch": "2.5.1+cpu", "triton-ascend": "3.2.2"}


def test_torch_npu_waits_for_cann(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside torch_npu, `import torch` itself loads CANN's libraries."""
    stack.lists("one", *wheel("one", "1.0"))
    stack.lists("torch-npu", *wheel("torch-npu", "2.5.1.post1"), locked=False)
    stack.writes(torch_npu="2.5.1.post1")
    plan = planned(stack)
    assert plan.versions == {"one": "1.0"} and "no CANN is here" in plan.notes[0]
    (stack.folder / "usr/local/Ascend/ascend-toolkit").mkdir(parents=True)
    assert planned(stack).versions == {"one": "1.0", "torch-npu": "2.5.1.post1"}


def test_a_package_without_a_list_of_its_files_is_refused(stack: Stack) -> None:
    stack.has(wheel("one", "1.0"))
    (stack.site / "one-1.0.dist-info/RECORD").unlink()
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes()
    assert "their lists of files are missing" in refused(stack)


def test_npu_rls_own_environment_is_not_broken(stack: Stack) -> None:
    stack.has(wheel("npu-rl", "0.2.0", requires=["one<2"]))
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes()
    said = refused(stack)
    assert "npu-rl is installed in this Python, too" in said and "one<2 (2.0 would come)" in said


def test_an_interpreter_that_is_none_and_a_folder_that_is_no_environment(
    stack: Stack, tmp_path: Path
) -> None:
    stack.lists("one", *wheel("one", "1.0"))
    stack.writes()
    with pytest.raises(HostError, match="is not a Python"):
        install.requested(str(stack.manifest), "/bin/false", None, (), offline=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine\n")
    request = install.requested(str(stack.manifest), "", other, (), offline=False)
    with pytest.raises(UsageError, match="no virtual environment"):
        install.plan(request)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_wheels_are_chosen_by_what_the_interpreter_takes(stack: Stack, tmp_path: Path) -> None:
    target = read_target(str(stack.python))
    own = f"cp{target.short.replace('.', '')}"
    names = [
        f"torch-2.5.1+cpu-{own}-{own}-manylinux_2_17_{MACHINE}.whl",
        "torch-2.5.1-py3-none-any.whl",
        f"torch-2.5.1-cp39-cp39-manylinux_2_17_{MACHINE}.whl",
        f"torch-2.6.0-{own}-{own}-manylinux_2_17_{MACHINE}.whl",
        "README-1.whl",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    found = named_wheels([tmp_path], target)
    chosen = [choose_wheel(found, "torch", version) for version in ("2.5.1", "2.6.0", "2.7.0", "")]
    assert [one.path.name if one else None for one in chosen] == [names[0], names[3], None, names[0]]
    empty = tmp_path / "empty"
    empty.mkdir()
    for place in (empty, tmp_path / "nowhere.whl", tmp_path / "README-1.whl"):
        with pytest.raises(UsageError, match="--wheels names no wheels"):
            named_wheels([place], target)
