"""What components declare is read at their pins, from git, sdists and submodules, and kept in the lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from tests.resolve.test_releases import publish
from tests.resolve.world import World, component
from tests.sources.package_index import PackageIndex
from tests.support import File, Repo

SETUP = "setup(install_requires=['numpy<2', 'wheel'], extras_require={'gpu': ['torch==2.0']})\n"
FILES = {
    "pkg/a.py": "a\n",
    "pkg/requirements.txt": "inner<1\n",
    "requirements.txt": "ray>=2.41\n-r pkg/requirements.txt\n",
    "requirements-cpu.txt": "pandas<3\n",
    "requirements-npu.txt": "pyarrow<25\n",
    "requirements-test.txt": "pytest<9\n",
    "setup.py": SETUP,
}
DECLARED = {
    "requirements.txt": ("ray>=2.41",),
    "requirements-cpu.txt": ("pandas<3",),
    "setup.py": ("numpy<2",),
    "pkg/requirements.txt": ("inner<1",),
}


@pytest.fixture
def up(world: World) -> Repo:
    return world.upstream(FILES)


def test_files_outside_of_what_is_taken(world: World, up: Repo) -> None:
    lock = world.locked({"up": component(up)})
    assert lock.components["up"].declares == DECLARED
    assert lock.components["up"].unread == ()
    world.check()
    assert world.compose(lock).code["pkg/a.py"] == b"a\n"
    assert "setup.py" not in world.compose(lock).code


def test_the_manifest_names_the_files(world: World, up: Repo) -> None:
    entry = component(up, requirements_from=["requirements-npu.txt", "setup.py[gpu]"])
    lock = world.locked({"up": entry})
    assert lock.components["up"].declares == {
        "requirements-npu.txt": ("pyarrow<25",),
        "setup.py": ("numpy<2",),
        "setup.py[gpu]": ("torch==2.0",),
    }
    assert "up has no file gone.txt at this pin" in world.refused(
        {"up": component(up, requirements_from=["gone.txt"])}
    )


def test_a_submodule_is_a_project_of_its_own(world: World) -> None:
    inner = world.repo("inner")
    pin = inner.commit({"lib/a.py": "a\n", "requirements.txt": "inner<1\n"})
    outer = world.upstream(
        {"pkg/a.py": "a\n", "requirements.txt": "outer<1\n", "third/inner": File(pin, "160000")}, name="outer"
    )
    entry = component(
        outer,
        take=[{"from": "third/inner/lib", "to": "lib"}, {"from": "pkg", "to": "pkg"}],
        submodules={"third/inner": {"git": inner.url, "ref": pin}},
    )
    assert world.locked({"outer": entry}).components["outer"].declares == {
        "requirements.txt": ("outer<1",),
        "third/inner/requirements.txt": ("inner<1",),
    }
    world.check()


def test_an_sdist(world: World, index: PackageIndex) -> None:
    files = {
        "demo/a.py": "a\n",
        "requirements/common.txt": "ray>=2.41\n-r more.txt\n",
        "requirements/more.txt": "six<2\n",
        "requirements/cpu.txt": "torch==2.7.0\n",
        "pyproject.toml": "[project]\nrequires-python = '>=3.9'\n",
        "setup.py": "setup(install_requires=[make(), 'attrs<26'])\n",
        "tests/requirements.txt": "pytest<9\n",
    }
    publish(index, files)
    entry = {"sources": [{"pypi": "demo==1.0"}], "take": [{"from": "demo", "to": "demo"}]}
    locked = world.locked({"demo": entry}).components["demo"]
    assert locked.declares == {
        "requirements/common.txt": ("ray>=2.41",),
        "requirements/cpu.txt": ("torch==2.7.0",),
        "setup.py": ("attrs<26",),
        "pyproject.toml": ("python>=3.9",),
        "requirements/more.txt": ("six<2",),
    }
    assert locked.unread == ("setup.py: 1 of 2 entries of install_requires are computed (line 1)",)
    world.check()


def test_a_lock_with_other_bounds_does_not_match(world: World, up: Repo) -> None:
    """Notes of the npu-rl that locked may differ."""
    lock = world.locked({"up": component(up)})
    noted = replace(lock.components["up"], unread=("setup.py: read by another npu-rl",))
    world.write("m.lock.json", lock_model.dump(replace(lock, components={"up": noted})))
    world.check()
    changed = replace(lock.components["up"], declares={**DECLARED, "setup.py": ("numpy<3",)})
    world.write("m.lock.json", lock_model.dump(replace(lock, components={"up": changed})))
    with pytest.raises(LockError, match="does not match its manifest") as error:
        world.check()
    assert "up: declares" in str(error.value.why)
