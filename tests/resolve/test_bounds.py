"""Declared bounds against a manifest's versions, offline: what is broken has to be named, and what is named, broken."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import LoadedManifest, load_manifest
from npu_rl.stack.requirements.bound_check import Comparison, compare_bounds
from tests.resolve.world import World, component
from tests.support import clean_env, ok, run_cli

# In the form of verl at 88512193628b, vLLM 0.23.0, vllm-ascend v0.23.0 and MindSpeed e4772499f7eb.
VERL = {
    "pkg/a.py": "a\n",
    "requirements.txt": "numpy>=2.0.0\ntransformers>=5.5.3,!=5.6.0,<5.11\n",
    "requirements-npu.txt": "numpy<2.0.0\ntensordict>=0.8.0,<=0.10.0,!=0.9.0\n",
    "setup.py": "setup(install_requires=['numpy>=2.0.0', 'ray[default]>=2.41.0'], python_requires='>=3.10')\n",
}
ASCEND = {
    "pkg/b.py": "b\n",
    "requirements.txt": "torch==2.10.0\ntorch-npu==2.10.0.post4\ntriton-ascend==3.2.2\ntransformers==5.5.4\n",
    "setup.py": "setup(install_requires=read())\n",
}
SPEED = {"pkg/c.py": "c\n", "requirements.txt": "numpy<=1.26.0\nsetuptools<70; python_version > '3.11'\n"}
HOST = {"python": ">=3.11,<3.12", "torch": "2.10.0", "torch_npu": "2.10.0.post4", "triton_ascend": "3.2.2"}
SOUND = [
    "numpy==1.26.4",
    "transformers==5.5.4",
    "tensordict==0.10.0",
    "ray[default]==2.54.1",
    "setuptools==79.0",
]


def override(name: str, file: str, package: str, bound: str) -> dict[str, str]:
    return {"component": name, "file": file, "package": package, "bound": bound, "why": "a test"}


NAMED = [
    override("verl", "setup.py", "numpy", ">=2.0.0"),
    override("verl", "requirements.txt", "numpy", ">=2"),
    override("speed", "requirements.txt", "NumPy", "<=1.26.0"),
]


class Stack:
    """The made stack, locked once; manifests of other versions are compared with that lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        repos = {"verl": VERL, "ascend": ASCEND, "speed": SPEED}
        self.components: dict[str, Any] = {}
        for name, files in repos.items():
            repo = world.upstream(files, name=name)
            path = next(iter(files))
            self.components[name] = component(repo, take=[{"from": path, "to": path.replace("pkg", name)}])
        self.manifest()
        self.lock = world.lock()
        self.place = world.root / "project"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run_cli(args, self.world.env, self.place)

    def manifest(
        self,
        requirements: Sequence[str] = SOUND,
        overrides: Sequence[dict[str, str]] = NAMED,
        host: dict[str, str] = HOST,
        name: str = "m",
        **more: Any,
    ) -> Path:
        body = {"requirements": list(requirements), "overrides": list(overrides), "host": host}
        return self.world.manifest({**self.components, **more}, name, **body, device="npu")

    def compare(self, *args: Any, **more: Any) -> Comparison:
        path = self.manifest(*args, **more)
        return compare_bounds(load_manifest(str(path)), self.lock)

    def errors(self, *args: Any, **more: Any) -> list[str]:
        """What is wrong, without its place and its fix."""
        found = self.compare(*args, **more).errors
        return [re.sub(r"^\S+:\d+: |; fix: .*", "", line, flags=re.S) for line in found]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """One for all tests: each writes the manifest that it compares."""
    root = tmp_path_factory.mktemp("stack")
    env = clean_env(root)
    (root / "project").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for name in ("NPU_RL_STORE", "NPU_RL_CONFIG", "HOME"):
            patched.setenv(name, env[name])
        patched.delenv("NPU_RL_REWRITE", raising=False)
        return Stack(World(root, env))


def changed(requirement: str) -> list[str]:
    """The sound requirements with another version of one package."""
    name = re.split(r"[<=>!~]", requirement)[0]
    return [one for one in SOUND if not re.match(rf"{re.escape(name)}\b", one)] + [requirement]


def test_what_is_broken_and_named_passes(stack: Stack) -> None:
    found = stack.compare()
    assert found.errors == []
    assert found.notes == [
        "ascend: not read, so not compared: setup.py: install_requires is computed (line 1)"
    ]
    assert found.compared == 12  # without setuptools, whose marker does not hold on Python 3.11


@pytest.mark.parametrize(
    "version", ["tensordict==0.9.0", "ray==2.40", "tensordict>0.10.0", "ray<2.41", "numpy==2.*"]
)
def test_a_pin_or_a_range_that_breaks_a_bound(stack: Stack, version: str) -> None:
    assert any(error.startswith(f'{version} breaks "') for error in stack.errors(changed(version)))


@pytest.mark.parametrize("version", ["tensordict>=0.9.0", "tensordict", "ray<2.41.1", "ray!=2.42"])
def test_a_range_that_need_not_break_it_gets_no_verdict(stack: Stack, version: str) -> None:
    assert stack.errors(changed(version)) == []


@pytest.mark.parametrize(
    ("host", "error"),
    [
        ({"torch": "2.9.0"}, 'torch==2.9.0 breaks "torch==2.10.0" of ascend (requirements.txt)'),
        ({"torch_npu": "2.10.0"}, 'torch-npu==2.10.0 breaks "torch-npu==2.10.0.post4" of ascend'),
        ({"triton_ascend": "3.2.1"}, 'triton-ascend==3.2.1 breaks "triton-ascend==3.2.2" of ascend'),
        ({"python": "3.9"}, 'python==3.9.* breaks "python>=3.10" of verl (setup.py)'),
        ({"python": ">=3.8,<3.10"}, 'python<3.10,>=3.8 breaks "python>=3.10" of verl (setup.py)'),
        ({"python": "3.12"}, "setuptools==79.0 breaks \"setuptools<70; python_version > '3.11'\" of speed"),
    ],
)
def test_packages_of_the_host(stack: Stack, host: dict[str, str], error: str) -> None:
    (found,) = stack.errors(host={**HOST, **host})
    assert found.startswith(error)


@pytest.mark.parametrize(
    ("more", "conflict"),
    [
        ("numpy==1.26.0", "numpy==1.26.0 conflicts with numpy==1.26.4"),
        ("Ray>=2.55", "Ray>=2.55 conflicts with ray[default]==2.54.1"),
        ("torch<2.10", "torch==2.10.0 conflicts with torch<2.10"),
        ("wandb<1", "wandb<1 conflicts with wandb>=1"),  # of which no component declares a bound
    ],
)
def test_two_versions_of_a_package_exclude_each_other(stack: Stack, more: str, conflict: str) -> None:
    errors = stack.errors([*SOUND, "wandb>=1", more])
    assert [re.sub(r" \(\S+:\d+\)$", "", line) for line in errors if "conflicts" in line] == [conflict]


@pytest.mark.parametrize(
    ("component", "file", "package", "bound", "reason"),
    [
        ("verl", "pyproject.toml", "numpy", ">=2.0.0", "no file pyproject.toml of verl was read (read: "),
        ("speedd", "setup.py", "numpy", ">=2.1", "unknown component 'speedd'; did you mean 'speed'?"),
        (
            "verl",
            "setup.py",
            "numpy",
            ">=2.1",
            'setup.py of verl does not declare numpy>=2.1; it has "numpy>',
        ),
        ("verl", "setup.py", "tensordict", "<1", "setup.py of verl does not declare tensordict<1; it has no"),
        ("verl", "requirements-npu.txt", "numpy", "<2", "numpy==1.26.4 is not shown to break numpy<2"),
        ("verl", "setup.py", "ray", ">=2.41", "ray[default]==2.54.1 is not shown to break ray>=2.41"),
        ("speed", "requirements.txt", "setuptools", "<70", "setuptools==79.0 is not shown to break setup"),
    ],
)
def test_an_override_that_names_nothing_broken(
    stack: Stack, component: str, file: str, package: str, bound: str, reason: str
) -> None:
    (error,) = stack.errors(overrides=[*NAMED, override(component, file, package, bound)])
    assert error.startswith(f"overrides[3]: {reason}")


def test_a_pin_that_is_not_the_locks_is_not_compared(stack: Stack) -> None:
    found = stack.compare(verl={**stack.components["verl"], "ref": "refs/tags/other"})
    assert found.errors == []
    assert "verl: its requirements were not compared: its pin is not the lock's" in found.notes
    assert "m.yaml has changed since its lock was made, whose bounds are compared" in found.notes


def child(stack: Stack, more: str) -> LoadedManifest:
    stack.manifest(name="parent")
    path = stack.place / "child.yaml"
    path.write_text(f"schema: 1\nname: child\ntitle: C\nextends: ./parent.yaml\n{more}")
    return load_manifest(str(path))


def test_a_child_needs_not_repeat_its_parents_overrides(stack: Stack) -> None:
    """Those of versions that it has changed are noted: it can't remove an item of its parent's list."""
    newer = f"requirements: {json.dumps(changed('numpy==2.0.1'))}\n"
    own = json.dumps(override("verl", "requirements-npu.txt", "numpy", "<2.0.0"))
    found = compare_bounds(child(stack, newer), stack.lock)
    assert len(found.errors) == 1 and 'breaks "numpy<2.0.0" of verl (requirements-npu.txt)' in found.errors[0]
    found = compare_bounds(child(stack, f"{newer}overrides: {{append: [{own}]}}\n"), stack.lock)
    assert found.errors == []
    assert [re.sub(r"^\S+:\d+: ", "", line) for line in found.notes if "no longer" in line] == [
        "no longer needed: numpy==2.0.1 is not shown to break numpy>=2.0.0",
        "no longer needed: numpy==2.0.1 is not shown to break numpy>=2",
    ]
    own_one = json.dumps(override("verl", "setup.py", "ray", ">=2.41"))
    found = compare_bounds(child(stack, f"overrides: {{append: [{own_one}]}}\n"), stack.lock)
    assert len(found.errors) == 1 and "ray>=2.41; fix: remove the override" in found.errors[0]


def test_lock_tells_what_is_broken_and_writes(stack: Stack) -> None:
    stack.manifest(changed("tensordict==0.11.0"))
    done = stack.run("lock", "-m", "./m.yaml", "-o", "other.json")
    assert done.returncode == 0 and "tensordict==0.11.0 breaks" in done.stderr
    assert lock_model.read(stack.place / "other.json").components == stack.lock.components


def test_lock_check_fails_before_it_fetches(stack: Stack) -> None:
    stack.manifest(changed("tensordict==0.11.0"), NAMED[:2])
    done = stack.run("lock", "--check", "--offline", "-m", "./m.yaml")
    assert done.returncode == 1 and "needs its source" not in done.stderr
    assert "m: 2 errors in its versions and overrides" in done.stderr
    assert 'tensordict==0.11.0 breaks "tensordict>=0.8.0,<=0.10.0,!=0.9.0" of verl' in done.stderr
    assert 'numpy==1.26.4 breaks "numpy<=1.26.0" of speed' in done.stderr


def test_manifests_check_names_the_fix_which_passes(stack: Stack) -> None:
    stack.manifest(changed("tensordict==0.11.0"))
    done = stack.run("manifests", "check", "./m.yaml")
    line = next(line for line in done.stdout.splitlines() if "breaks" in line)
    assert done.returncode == 1 and line.startswith("./m.yaml:")
    assert "m: 1 error, checked against its schema, the known variables and 12 declared bounds" in done.stdout
    fix = re.search(r"overrides: \{component: (.*), package: (.*), file: (.*), bound: \"(.*)\", why: ", line)
    assert fix is not None
    name, package, file, bound = fix.groups()
    stack.manifest(changed("tensordict==0.11.0"), [*NAMED, override(name, file, package, bound)])
    assert stack.run("manifests", "check", "./m.yaml").returncode == 0
    said = json.loads(stack.run("manifests", "check", "./m.yaml", "--json").stdout)
    assert (said["ok"], said["bounds"]) == (True, 12)


def test_without_a_lock_nothing_is_compared(stack: Stack) -> None:
    stack.manifest(changed("tensordict==0.11.0"), name="alone")
    done = ok(stack.run("manifests", "check", "./alone.yaml"))
    note = "note: alone.lock.json does not exist, so nothing was compared with what the components require"
    assert note in done.stderr
    assert "alone: no error, checked against its schema and the known variables\n" in done.stdout
    said = json.loads(stack.run("manifests", "check", "./alone.yaml", "--json").stdout)
    assert said["bounds"] is None
