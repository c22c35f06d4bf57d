"""`setup --install` with the real uv, from an index that the tests start, into real environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, SourceError
from npu_rl.stack.installation import install
from npu_rl.stack.installation.install_plan import InstallPlan
from npu_rl.stack.installation.move_journal import FOLDER
from npu_rl.stack.installation.target_python import read_target
from tests.installation.made_packages import HERE, Stack, sdist, tree, wheel

ONE = {"one/__init__.py": "def main():\n    print('one 1')\n", "one/old.py": "OLD = 1\n"}
ONE_NEW = {"one/__init__.py": "def main():\n    print('one 2')\n", "one/new/deep.py": "DEEP = 2\n"}
BACKEND = """\
import pathlib

def build_wheel(folder, settings=None, metadata=None):
    {body}
"""


def installed(stack: Stack, **options: object) -> InstallPlan:
    request = stack.asks(**options)  # type: ignore[arg-type]
    return install.install(request, install.plan(request, stack.folder), lambda _: None, stack.folder)


def lists_one(stack: Stack) -> None:
    """Two packages in one namespace, one with a program and with data beside the libraries."""
    stack.lists("one", *wheel("one", "2.0", ONE_NEW, scripts={"one-says": "one:main"}))
    data = {"space/two.py": "TWO = 2\n", "two-1.0.data/data/share/two/table.txt": "2\n"}
    stack.lists("two", *wheel("two", "1.0", data))
    stack.lists("three", *wheel("three", "1.0", {"space/three.py": "THREE = 3\n"}))


def test_programs_data_and_namespaces_are_where_pip_puts_them(stack: Stack) -> None:
    lists_one(stack)
    stack.writes()
    plan = installed(stack)
    assert plan.versions == {"one": "2.0", "two": "1.0", "three": "1.0"}
    assert stack.runs("import space.two, space.three, one.new.deep; print(one.new.deep.DEEP)") == "2"
    program = stack.python.with_name("one-says")
    assert program.read_text().startswith(f"#!{stack.python}\n") and program.stat().st_mode & 0o111
    assert (stack.folder / "env/share/two/table.txt").read_text() == "2\n"
    assert not (stack.folder / "env" / FOLDER).exists()
    everything = tree(stack.folder / "env")
    assert installed(stack).versions == {}
    assert tree(stack.folder / "env") == everything


def test_another_version_goes_out_with_all_its_files_and_byte_code(stack: Stack) -> None:
    stack.has(wheel("one", "1.0", ONE, scripts={"one-said": "one:main"}))
    stack.runs("import one.old")  # writes byte code
    (stack.site / "one/mine.txt").write_text("of somebody else\n")
    lists_one(stack)
    stack.writes()
    plan = installed(stack)
    assert [(old.name, old.version, new) for old, new in plan.replaced] == [("one", "1.0", "2.0")]
    left = {path.relative_to(stack.site / "one").as_posix() for path in (stack.site / "one").rglob("*")}
    assert left == {"__init__.py", "mine.txt", "new", "new/deep.py"}
    assert not stack.python.with_name("one-said").exists()
    assert [path.name for path in stack.site.glob("one-*")] == ["one-2.0.dist-info"]
    assert stack.runs("import one; one.main()") == "one 2"


def test_the_hosts_packages_stay_and_come_from_named_wheels_or_the_index(
    stack: Stack, tmp_path: Path
) -> None:
    stack.has(wheel("torch", "2.8.0"))
    before = tree(stack.site / "torch")
    stack.lists("torch", *wheel("torch", "2.5.1"), locked=False)
    stack.lists("torchaudio", *wheel("torchaudio", "2.5.1"), locked=False)
    stack.lists("apex", *wheel("apex", "0.1"), locked=False)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, data in (wheel("triton-ascend", "3.2.0+mine"), wheel("apex", "0.1+ascend")):
        (wheels / name).write_bytes(data)
    lists_one(stack)
    stack.writes(torch="2.5.1", torchaudio="2.5.1", triton_ascend="3.2.0", apex="0.1", torch_npu="2.5.1")
    plan = installed(stack, wheels=[wheels])
    assert plan.versions == {
        "one": "2.0", "two": "1.0", "three": "1.0", "torchaudio": "2.5.1", "triton-ascend": "3.2.0+mine"
    }  # fmt: skip
    notes = "\n".join(plan.notes)
    assert "torch 2.8.0 is kept as the host's; the manifest wants 2.5.1" in notes
    assert f"apex 0.1 is not installed: it comes only from a file that you name: --wheels {wheels}" in notes
    assert "torch-npu 2.5.1 is not installed: no CANN is here" in notes
    assert tree(stack.site / "torch") == before
    again = installed(stack, wheels=[wheels, next(wheels.glob("apex*"))])
    assert again.versions == {"apex": "0.1+ascend"}
    assert "apex" in read_target(str(stack.python)).packages


@pytest.mark.parametrize("fault", ["hash", "build", "absent"])
def test_what_fails_leaves_the_environment_as_it_was(stack: Stack, fault: str) -> None:
    stack.has(wheel("one", "1.0", ONE))
    lists_one(stack)
    name, data = sdist("built", "1.0", BACKEND.format(body="raise SystemExit('no compiler here')"))
    stack.lists("built", name, data)
    if fault != "build":
        stack.locked.pop("built==1.0")
    stack.writes()
    if fault == "hash":
        stack.index.projects["two"][0].data = wheel("two", "1.0", {"evil.py": ""})[1]
    elif fault == "absent":
        stack.index.projects.pop("two")
    before = tree(stack.folder / "env")
    with pytest.raises(SourceError, match="environment is as it was") as caught:
        installed(stack)
    assert {"hash": "two", "build": "no compiler here", "absent": "two"}[fault] in str(caught.value)
    assert stack.index.host not in str(caught.value)
    assert ("refuses the user or the password" in str(caught.value)) == (fault == "absent")
    assert tree(stack.folder / "env") == before
    if fault == "absent":  # the same command goes on
        stack.lists("two", *wheel("two", "1.0", {"space/two.py": ""}), locked=False)
        stack.index.projects["two"] = stack.index.projects["two"][-1:]
        stack.locked.pop("two==1.0")
        stack.manifest.unlink()
        stack.writes()
        assert installed(stack).versions == {"one": "2.0", "three": "1.0"}


def test_a_package_may_not_overwrite_the_hosts_files(stack: Stack) -> None:
    stack.has(wheel("torch", "2.5.1", {"torch/__init__.py": "HOST = 1\n", "torchgen/__init__.py": ""}))
    stack.lists("evil", *wheel("evil", "1.0", {"torch/__init__.py": "HOST = 0\n"}))
    stack.writes(torch="2.5.1")
    before = tree(stack.folder / "env")
    with pytest.raises(HostError, match="overwrite files of the host's torch"):
        installed(stack)
    assert tree(stack.folder / "env") == before


def test_an_environment_is_made_and_gone_again_after_an_error(stack: Stack) -> None:
    (stack.folder / "env").rename(stack.folder / "other")
    lists_one(stack)
    stack.writes()
    page = stack.index.projects.pop("two")
    plan = install.plan(stack.asks(venv=True), stack.folder)
    assert plan.target.absent and not (stack.folder / "env").exists()
    with pytest.raises(SourceError):
        installed(stack, venv=True)
    assert not (stack.folder / "env").exists()
    stack.index.projects["two"] = page
    assert installed(stack, venv=True).target.short == HERE
    assert stack.runs("import one; one.main()") == "one 2"
    assert not (stack.folder / "env" / FOLDER).exists()
    assert installed(stack, venv=True).versions == {}


def test_named_wheels_are_enough_without_an_index(stack: Stack, tmp_path: Path) -> None:
    lists_one(stack)
    stack.writes(torch="2.5.1")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for files in stack.index.projects.values():
        (wheels / files[0].filename).write_bytes(files[0].data)
    name, data = wheel("torch", "2.5.1+cpu")
    (wheels / name).write_bytes(data)
    asked = len(stack.index.requests)
    assert installed(stack, wheels=[wheels], offline=True).versions["torch"] == "2.5.1+cpu"
    assert len(stack.index.requests) == asked
    assert stack.runs("import one; one.main()") == "one 2"


def test_no_file_gets_the_address_of_an_index(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.index.auth = ("someone", "s3cret-Pa55")
    monkeypatch.setenv("PIP_INDEX_URL", stack.index.url_with("someone", "s3cret-Pa55"))
    lists_one(stack)
    stack.writes()
    assert installed(stack).versions
    assert stack.index.authorised
    for path in stack.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"s3cret-Pa55" not in content and stack.index.host.encode() not in content, path
