"""An installation with the real uv, from an index that the tests start, into real environments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, SourceError, UsageError
from npu_rl.common.interpreter import read_interpreter
from npu_rl.stack.installation import install_plan
from npu_rl.stack.installation.install_plan import plan_installation, plan_lines
from npu_rl.stack.installation.unfinished import begin, unfinished_packages
from tests.installation.made_packages import HERE, MACHINE, OTHER, Stack, sdist, tree, wheel

pytestmark = pytest.mark.second  # each makes an environment with uv

BACKEND = "def build_wheel(folder, settings=None, metadata=None):\n    raise SystemExit('no compiler here')\n"


def write(folder: Path, *wheels: tuple[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in wheels:
        (folder / name).write_bytes(data)
    return folder


def test_the_lock_comes_and_what_a_person_has_stays(stack: Stack) -> None:
    stack.has(wheel("one", "1.0"), wheel("same", "1.0"), wheel("torch", "2.8.0"), wheel("own", "1"))
    (stack.site / "mine.py").write_text("MINE = 1\n")
    for name, version in (("one", "2.0"), ("same", "1.0"), ("new", "3.0")):
        stack.lists(name, *wheel(name, version))
    stack.writes(torch="2.5.1")
    before = tree(stack.folder / "env")
    *lines, last = plan_lines(stack.plans())
    assert lines == [
        "install new 3.0 by its hash",
        "install one 2.0 by its hash in place of 1.0",
        "keep    2 packages",
        "note: torch 2.8.0 is kept as the host's; the manifest wants 2.5.1",
    ]
    assert last.startswith(f"2 packages to install into {stack.python} (Python {HERE}")
    assert tree(stack.folder / "env") == before
    plan = stack.installs()
    assert (plan.changes.installed, plan.changes.replaced) == ({"one": "2.0", "new": "3.0"}, {"one": "1.0"})
    assert plan.changes.kept == {"same": "1.0", "torch": "2.8.0"}
    code = "import one, own, mine, torch; print(one.VERSION, own.VERSION, mine.MINE, torch.VERSION)"
    assert stack.runs(code) == "2.0 1 1 2.8.0"
    after = tree(stack.folder / "env")
    assert stack.installs().changes.installed == {} and tree(stack.folder / "env") == after


def test_packages_that_a_kill_left_in_part_come_again(stack: Stack) -> None:
    """uv counts a package as installed once its metadata is there."""
    stack.lists("one", *wheel("one", "2.0"))
    stack.lists("two", *wheel("two", "1.0"))
    stack.writes(torch="2.5.1")
    wheels = write(stack.folder / "wheels", wheel("torch", "2.5.1"))
    stack.installs(wheels)
    begin(stack.folder / "env", ["one", "torch"])
    for name in ("one", "torch"):
        (stack.site / name / "__init__.py").unlink()
    assert stack.installs(wheels).changes.installed == {"one": "2.0", "torch": "2.5.1"}
    assert stack.runs("import one, two, torch; print(one.VERSION, torch.VERSION)") == "2.0 2.5.1"
    assert not unfinished_packages(stack.folder / "env")


@pytest.mark.parametrize("fault", ["hash", "build", "absent"])
def test_what_fails_leaves_the_environment_as_it_was(stack: Stack, fault: str) -> None:
    stack.has(wheel("one", "1.0"))
    stack.lists("one", *wheel("one", "2.0"))
    stack.lists("two", *wheel("two", "1.0"))
    if fault == "build":
        stack.lists("built", *sdist("built", "1.0", BACKEND))
    stack.writes()
    if fault == "hash":
        stack.index.projects["two"][0].data = wheel("two", "1.0", {"evil.py": ""})[1]
    elif fault == "absent":
        stack.index.projects.pop("two")
    before = tree(stack.folder / "env")
    with pytest.raises(SourceError) as caught:
        stack.installs()
    assert {"hash": "two", "build": "no compiler here", "absent": "two"}[fault] in str(caught.value)
    assert stack.index.host not in str(caught.value)
    assert ("refuses the user or the password" in str(caught.value)) == (fault == "absent")
    assert tree(stack.folder / "env") == before


def test_the_hosts_packages_come_from_named_wheels_or_an_index(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchaudio", "apex", "torch-npu"):
        stack.lists(name, *wheel(name, "0.1"), locked=False)
    wheels = write(stack.folder / "wheels", wheel("triton-ascend", "3.2.0+mine"), wheel("apex", "0.1+ascend"))
    stack.lists("one", *wheel("one", "2.0"))
    stack.has(wheel("one", "2.0"))
    stack.writes(torchaudio="0.1", triton_ascend="3.2.0", apex="0.1", torch_npu="0.1")
    plan = stack.installs(wheels)
    assert plan.changes.installed == {"torchaudio": "0.1", "triton-ascend": "3.2.0+mine"}
    apex, torch_npu = sorted(plan.changes.notes)
    assert f"it comes only from a file that you name: --wheels {wheels}/apex" in apex
    assert "no CANN is here" in torch_npu  # beside torch_npu, `import torch` itself loads CANN's libraries
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann")
    again = stack.installs(wheels, next(wheels.glob("apex*")))
    assert again.changes.installed == {"apex": "0.1+ascend", "torch-npu": "0.1"}
    assert read_interpreter(str(stack.python)).packages["apex"] == "0.1+ascend"


def test_torch_for_cuda_is_refused_and_that_for_cpus_taken(stack: Stack) -> None:
    """PyPI's torch is built for CUDA: without NVIDIA's packages it can't be imported."""
    stack.lists("torch", *wheel("torch", "2.5.1", requires=["nvidia-cudnn==9.1"]), locked=False)
    stack.lists("nvidia-cudnn", *wheel("nvidia-cudnn", "9.1"), locked=False)
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes(torch="2.5.1")
    with pytest.raises(HostError, match="for CUDA") as caught:
        stack.installs()
    assert "--wheels FILE" in str(caught.value) and "extra-index-url" in str(caught.value)
    assert read_interpreter(str(stack.python)).packages == {}
    stack.lists("torch", *wheel("torch", "2.5.1+cpu"), locked=False)
    stack.installs()
    assert read_interpreter(str(stack.python)).packages == {"one": "2.0", "torch": "2.5.1+cpu"}
    stack.writes(device="cuda", torch="2.6.0")
    if MACHINE == "x86_64":
        (stack.site / "torch-2.5.1+cpu.dist-info").rename(stack.folder / "gone")
        with pytest.raises(HostError, match="image of a GPU host"):
            stack.plans()


def test_an_environment_is_made_and_never_emptied(stack: Stack) -> None:
    (stack.folder / "env").rename(stack.folder / "other")
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes()
    page = stack.index.projects.pop("one")
    assert stack.plans(venv=True).target.absent and not (stack.folder / "env").exists()
    with pytest.raises(SourceError):
        stack.installs(venv=True)
    (stack.site / "mine.py").write_text("")
    (stack.folder / "env/notes.txt").write_text("mine\n")
    stack.index.projects["one"] = page
    assert stack.installs(venv=True).target.short == HERE
    assert stack.runs("import one, mine; print(one.VERSION)") == "2.0"
    (stack.folder / "env/pyvenv.cfg").unlink()  # killed while uv made it
    with pytest.raises(UsageError, match="no virtual environment"):
        stack.plans(venv=True)
    (stack.folder / "env/notes.txt").unlink()
    stack.installs(venv=True)
    assert stack.runs("import one, mine; print(one.VERSION)") == "2.0"


def test_named_wheels_are_enough_without_an_index(stack: Stack) -> None:
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes(torch="2.5.1")
    wheels = write(stack.folder / "wheels", wheel("one", "2.0"), wheel("torch", "2.5.1+cpu"))
    assert stack.installs(wheels, offline=True).changes.installed["torch"] == "2.5.1+cpu"
    assert not stack.index.requests and stack.runs("import one; print(one.VERSION)") == "2.0"


def test_no_file_gets_the_address_of_an_index(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.index.auth = ("someone", "s3cret-Pa55")
    monkeypatch.setenv("PIP_INDEX_URL", stack.index.url_with("someone", "s3cret-Pa55"))
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes()
    assert stack.installs().changes.installed and stack.index.authorised
    for path in stack.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"s3cret-Pa55" not in content and stack.index.host.encode() not in content, path


def test_interpreters_that_do_not_do_are_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.has(wheel("npu-rl", "0.2.0", requires=["one<2"]))
    stack.lists("one", *wheel("one", "2.0"))
    stack.writes()
    with pytest.raises(HostError, match=r"npu-rl is installed in this Python(.|\n)*one<2 \(2.0 would come\)"):
        stack.plans()
    target = read_interpreter(str(stack.python))
    for other, told in (
        (replace(target, managed=True), "belongs to the operating system"),
        (replace(target, libc=("glibc", "2.17")), "glibc 2.34 or newer"),
        (replace(target, libc=("", "")), "another C library"),
        (replace(target, implementation="pypy"), f"for CPython {HERE} on {MACHINE}"),
    ):
        monkeypatch.setattr(install_plan, "read_interpreter", lambda _, other=other: other)
        with pytest.raises(HostError, match=told):
            stack.plans()
    monkeypatch.undo()
    stack.writes(python=OTHER)
    with pytest.raises(HostError, match=f"for CPython {OTHER}"):
        stack.plans()
    with pytest.raises(HostError, match="is not a usable Python"):
        plan_installation(str(stack.manifest), "/bin/false", None, ())
