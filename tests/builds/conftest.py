"""A stack with a component that is built: a C extension, by a script that can also do what no build should."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.in_process import run_here
from tests.support import File, Repo, clean_env, ok

NATIVE = """\
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
"""
BUILD = """\
import os, pathlib, subprocess, sys, sysconfig, time

mode, work = os.environ.get("BUILD_MODE", ""), pathlib.Path(os.environ.get("BUILD_WORKSPACE", ""))
print("building", mode, os.environ["BUILD_FLAG"], os.environ["SHELL_TOKEN"], flush=True)
assert sys.argv[1:] == ["two words"] and "PYTHONPATH" not in os.environ
assert pathlib.Path(os.environ["TMPDIR"]).is_relative_to(pathlib.Path.cwd().parent)
name = "ext/_native" + sysconfig.get_config_var("EXT_SUFFIX")
if mode == "fails":
    pathlib.Path(name).write_text("half of it")
    sys.exit("undefined reference to aclrtMalloc")
if mode == "waits":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    sign = pathlib.Path(os.environ["BUILD_SIGN"])
    sign.write_text(str(os.getpid()))
    while sign.exists():
        time.sleep(0.05)
if mode == "elsewhere":
    (work / "code/ext/evil.py").write_text("import os")
    (work / "code/other/__init__.py").unlink()
    (work / "code/other/run.sh").chmod(0o600)
    (work / "activate").write_text("rm -rf /")
if mode == "nothing":
    sys.exit()
include = sysconfig.get_paths()["include"]
subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "native.c", "-o", name], check=True)
pathlib.Path("made.txt").write_text("a product that is not taken")
pathlib.Path("ext/left.o").write_text("no product")
pathlib.Path("ext/__init__.py").write_text("changed, and no product")
"""
MANIFEST = """\
schema: 1
name: {name}
title: A component with a C extension
device: cpu
components:
  ext:
    sources: [{{git: "file://{home}/ext.git"}}]
    ref: refs/tags/{tag}
    checkout: full
    take: [{{from: ext, to: ext}}]
    build:
      - run: ["{{python}}", build.py, two words]
        env: {{BUILD_FLAG: {flag}}}
        products: ["ext/_native*.so", made.txt]
  other:
    sources: [{{git: "file://{home}/other.git"}}]
    ref: refs/heads/main
    take: [{{from: other, to: other}}]
env: {{OF_THE_MANIFEST: "1"}}
"""


@dataclass(frozen=True)
class BuiltStack:
    """home: where everything is. Locks lie beside one.yaml, flag.yaml (another command), two.yaml (other sources)."""

    home: Path
    env: Mapping[str, str]

    def setup(
        self, workspace: Path, *options: str, manifest: str = "one", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        named = ["setup", "-m", self.home / f"{manifest}.yaml", "-w", workspace, *options]
        return run_here(named, {**self.env, "BUILD_WORKSPACE": str(workspace), **variables})

    def start(self, workspace: Path, sign: Path) -> subprocess.Popen[str]:
        """A build that waits in a process of its own: it writes its process id to `sign`, and ends with that file."""
        named = ["setup", "-m", self.home / "one.yaml", "-w", workspace, "--build"]
        return subprocess.Popen(
            [sys.executable, "-m", "npu_rl", *map(str, named)],
            env={**self.env, "BUILD_MODE": "waits", "BUILD_SIGN": str(sign)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture(scope="session")
def built_stack(tmp_path_factory: pytest.TempPathFactory) -> BuiltStack:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    home = tmp_path_factory.mktemp("built")
    env = {**clean_env(home / "machine"), "SHELL_TOKEN": "hf_0123456789abcdefghij"}
    ext = Repo(home / "ext.git")
    ext.commit({"ext/__init__.py": "", "native.c": NATIVE, "build.py": BUILD}, "one")
    ext.tag("one")
    ext.commit({"native.c": NATIVE.replace("42", "43")}, "two")
    ext.tag("two")
    files = {"other/__init__.py": "O = 1\n", "other/run.sh": File("#!/bin/sh\n", "100755")}
    Repo(home / "other.git").commit(files, "other")
    stack = BuiltStack(home, env)
    for name, tag, flag in (("one", "one", "a"), ("flag", "one", "b"), ("two", "two", "a")):
        (home / f"{name}.yaml").write_text(MANIFEST.format(home=home, name=name, tag=tag, flag=flag))
        ok(run_here(["lock", "-m", home / f"{name}.yaml"], env))
    ok(stack.setup(home / "bare"))
    ok(stack.setup(home / "built", "--build"))
    return stack


@pytest.fixture
def bare(built_stack: BuiltStack, tmp_path: Path) -> WorkspacePaths:
    """A workspace of which nothing is built."""
    shutil.copytree(built_stack.home / "bare", tmp_path / "w", symlinks=True)
    return WorkspacePaths(tmp_path / "w")


@pytest.fixture
def built(built_stack: BuiltStack, tmp_path: Path) -> WorkspacePaths:
    """A workspace with the products of a build."""
    shutil.copytree(built_stack.home / "built", tmp_path / "b", symlinks=True)
    return WorkspacePaths(tmp_path / "b")
