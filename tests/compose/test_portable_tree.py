"""What a lock refuses to lay: colliding names, files that Python runs by itself, Git LFS pointers."""

from __future__ import annotations

import pytest

from npu_rl.common.errors import ComposeError
from npu_rl.stack.compose.portable_tree import check_collisions, check_started_by_python
from tests.resolve.world import World, component, takes

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n"
NFC, NFD = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("paths", "collide"),
    [
        (["a/README", "a/readme"], "'a/README' and 'a/readme'"),
        (["a/x.py", "A/y.py"], "'a' and 'A'"),  # folders
        (["a/x", "A"], "'a' and 'A'"),
        ([f"{NFC}.py", f"{NFD}.py"], r"'caf\xe9.py' and 'cafe\u0301.py'"),
        (["STRASSE", "stra\u00dfe"], "'STRASSE'"),
        (["\u212b", "\u00c5", "a"], r"'\u212b' and '\xc5'"),  # angstrom
        (["a/README", "b/readme", "readme/a", "a/b/README"], ""),
        (["a/b", "a/B/../c"][:1], ""),
        (["b\udcff", "B\udcfe", "README", "readme.md"], ""),
    ],
)
def test_names_that_are_one_elsewhere(paths: list[str], collide: str) -> None:
    if not collide:
        check_collisions(paths, "x")
        return
    with pytest.raises(ComposeError, match="x has two paths that collide on some file systems") as error:
        check_collisions(paths, "x")
    assert collide in str(error.value)


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        ("sitecustomize.py", True),
        ("usercustomize/__init__.py", True),
        ("SiteCustomize.cpython-311-x86_64-linux-gnu.so", True),
        ("Paths.PTH", True),
        ("pkg/sitecustomize.py", False),
        ("pkg/weights.pth", False),
        ("sitecustomizes.py", False),
        ("encodings/__init__.py", True),
        ("codecs.py", True),
        ("io.cpython-310-x86_64-linux-gnu.so", True),
        ("site", True),  # a link
        ("site/index.md", False),
        ("abc.txt", False),
        ("pkg/io.py", False),
    ],
)
def test_files_that_python_runs_by_itself(path: str, runs: bool) -> None:
    if not runs:
        check_started_by_python([path])
        return
    with pytest.raises(ComposeError, match="The code tree has a file that Python runs at start-up") as error:
        check_started_by_python(["a.py", path])
    assert f"where: {path}\n" in str(error.value)


def refused(world: World, entry: object) -> str:
    return world.refused({"up": entry}, ComposeError)


def test_what_a_lock_refuses(world: World) -> None:
    up = world.repo()
    files = {
        "sitecustomize.py": "import os\n",
        "pkg/README": "a\n",
        "pkg/readme": "b\n",
        "docs/a.png": POINTER,
    }
    up.commit({**files, "pkg/weights.bin": POINTER, "pkg/about.md": "# " + POINTER})
    assert "'pkg/README' and 'pkg/readme'" in refused(world, component(up))
    up.commit({"pkg/readme": None})
    assert "where: sitecustomize.py\n" in refused(world, component(up, take=takes((".", "."))))
    said = refused(world, component(up, checkout="full"))
    assert (
        "The code tree has Git LFS pointers in place of files" in said and "where: pkg/weights.bin\n" in said
    )
    delete = "".join(f"-{line}\n" for line in POINTER.splitlines())
    patch = f"--- a/pkg/weights.bin\n+++ /dev/null\n@@ -1,3 +0,0 @@\n{delete}"  # as the hint advises
    world.write("x.patch", patch)
    assert world.locked({"up": component(up, checkout="full", patches=[{"path": "./x.patch"}])})
    assert "src/up has Git LFS pointers in place of files: docs/a.png" in world.told


@pytest.mark.parametrize(
    "pointer",
    [
        POINTER.replace("https://git-lfs.github.com/spec/v1", "https://hawser.github.com/spec/v1"),
        POINTER.replace("https://git-lfs.github.com/spec/v1", "http://git-media.io/v/2"),
        POINTER.replace("\n", "\r\n"),
        "\n" + POINTER,
    ],
)
def test_pointers_that_git_lfs_takes_too(pointer: str, world: World) -> None:
    up = world.upstream({"pkg/a.py": "a = 1\n", "pkg/weights.bin": pointer})
    assert "Git LFS pointers in place of files" in refused(world, component(up))
