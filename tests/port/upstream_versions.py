"""An upstream with two versions, and a patch of each kind: what `patches port` makes of it is known."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.in_process import run_here
from tests.support import Files, Repo, clean_env, ok

MANIFEST = """\
schema: 1
name: m
title: one component
device: cpu
runtime: false
components:
  up:
    sources: [{{git: "{url}"}}]
    ref: refs/tags/v1
    patches: [./patches/up/v1]
    take: [{{from: pkg, to: lib}}]
"""


def module(name: str, **changed: str) -> str:
    """A Python file with three functions of its own; a keyword replaces the value of a line."""
    lines = []
    for function in ("first", "second", "third"):
        lines += [f"def {name}_{function}(x):", f'    """The {function} of {name}."""']
        for step in range(6):
            value = changed.get(f"{function}_{step}", f"x + {step}")
            lines.append(f"    {name}_{function}_{step} = {value}")
        lines += [f"    return {name}_{function}_5", "", ""]
    return "\n".join(lines[:-2]) + "\n"


# What each version has, and what the patch makes of the first one.
ONE = {
    f"pkg/{name}.py": module(name) for name in ("exact", "moved", "merged", "upstream", "conflict", "gone")
}
TWO = {
    "pkg/exact.py": module("exact", third_5="x * 2"),
    "pkg/moved.py": "# A new first line.\n\n" + module("moved"),
    "pkg/merged.py": module("merged", second_0="x - 1"),
    "pkg/upstream.py": module("upstream", second_2="x * 7"),
    "pkg/conflict.py": module("conflict", second_2="x * 99"),
    "pkg/gone.py": None,
    "pkg/new_home.py": module("gone", first_1="x * 3"),
}
PATCHED = {
    "0001-exact": {"pkg/exact.py": module("exact", first_2="x * 7")},
    "0002-moved": {"pkg/moved.py": module("moved", second_2="x * 7")},
    "0003-merged": {"pkg/merged.py": module("merged", second_2="x * 7")},
    "0004-upstream": {"pkg/upstream.py": module("upstream", second_2="x * 7")},
    "0005-conflict": {"pkg/conflict.py": module("conflict", second_2="x * 7")},
    "0006-renamed": {"pkg/gone.py": module("gone", second_2="x * 7")},
    "0007-new": {"pkg/added.py": "ADDED = 1\n"},
}


def header(name: str) -> str:
    """The header of a patch."""
    fields = f"Why: the reason of {name}.\nHow: by a seven.\nRetire-When: upstream has it.\n"
    return f"Subject: Patch {name}\n\n{fields}---\n"


@dataclass
class Versions:
    """root: where everything is; the manifest is in `project`, and commands run in `project`."""

    root: Path
    upstream: Repo
    env: dict[str, str]

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def manifest(self) -> Path:
        return self.project / "m.yaml"

    @property
    def patches(self) -> Path:
        """The folder of the old patches."""
        return self.project / "patches/up/v1"

    @property
    def result(self) -> Path:
        """The folder of the new ones."""
        return self.project / "patches/up/2"

    @property
    def folder(self) -> Path:
        """The repository of a port that needs a person."""
        return self.project / "npu-rl-port-up"

    def run(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        return run_here(args, self.env, self.project)

    def port(self, *options: str | Path) -> subprocess.CompletedProcess[str]:
        """`npu-rl patches port up`, to v2 of ./m.yaml unless the options say otherwise."""
        given = any(word in ("--finish", "--to") for word in options)
        begin = [] if given else ["--to", "v2", "--manifest", "m.yaml"]
        return self.run("patches", "port", "up", *begin, *options)

    def finish(self, *options: str | Path) -> subprocess.CompletedProcess[str]:
        return self.port("--finish", *options)

    def keep(self, *names: str) -> None:
        """Keep only these patches, by the first letters of their names, and lock."""
        series = self.patches / "series"
        kept = [line for line in series.read_text().splitlines() if line.startswith(tuple(names))]
        series.write_text("".join(f"{line}\n" for line in kept))
        for path in self.patches.glob("*.patch"):
            if path.name not in kept:
                path.unlink()
        ok(self.run("lock", "-m", "m.yaml"))

    def git(self, *args: str) -> str:
        """The user's git in the repository of the port, with the configuration of their HOME and nothing else."""
        env = {"PATH": os.environ["PATH"], "HOME": self.env["HOME"]}
        done = subprocess.run(
            ["git", *args], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or args[0] == "rebase", done.stderr
        return done.stdout

    def add_patch(self, name: str, before: str, files: Files) -> None:
        """Add a patch at the end of the series that changes files of a revision, and lock."""
        up = self.upstream
        up.commit(files, on=f"patched-{name}", parents=[before])
        diff = up.git("diff", "--full-index", before, f"patched-{name}")
        (self.patches / f"{name}.patch").write_text(f"{header(name)}{diff}\n")
        with (self.patches / "series").open("a") as series:
            series.write(f"{name}.patch\n")
        ok(self.run("lock", "-m", "m.yaml"))

    def resolve(self, path: str) -> None:
        """Take the patch's side of every conflict in a file, and add it."""
        place = self.folder / path
        lines, side = [], "both"
        for line in place.read_text().splitlines(keepends=True):
            if line.startswith(("<<<<<<< ", "=======\n", ">>>>>>> ")):
                side = {"<": "ours", "=": "theirs", ">": "both"}[line[0]]
            elif side != "ours":
                lines.append(line)
        place.write_text("".join(lines))
        self.git("add", path)

    def contents(self, folder: Path) -> dict[str, bytes]:
        """Every file below a folder but those of git."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".git" not in path.parts)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def build_versions(root: Path) -> Versions:
    """Make the upstream, the patches and their lock."""
    up = Repo(root / "up.git")
    up.commit({**ONE, "pkg/__init__.py": "", "README.md": "one\n"}, "one")
    up.tag("v1")
    for name in PATCHED:
        up.commit(PATCHED[name], name, on=f"patched-{name}", parents=["v1"])
    up.commit({"pkg/upstream.py": TWO["pkg/upstream.py"]}, "take seven upstream")
    up.commit({"pkg/gone.py": None, "pkg/new_home.py": TWO["pkg/new_home.py"]}, "move gone")
    up.commit(TWO, "two")
    up.tag("v2", annotated=True)
    made = Versions(root, up, clean_env(root / "machine"))
    made.env["XDG_STATE_HOME"] = str(root / "state")
    made.patches.mkdir(parents=True)
    for name in PATCHED:
        diff = up.git("diff", "--full-index", "v1", f"patched-{name}")
        (made.patches / f"{name}.patch").write_text(f"{header(name)}{diff}\n")
    names = "".join(f"{name}.patch\n" for name in PATCHED)
    (made.patches / "series").write_text(f"# In order.\n{names}")
    made.manifest.write_text(MANIFEST.format(url=up.url))
    ok(made.run("lock", "-m", "m.yaml"))
    return made


def copy_versions(made: Versions, root: Path) -> Versions:
    """A copy of project and store, over the same upstream, which stays as it is."""
    shutil.copytree(made.project, root / "project")
    shutil.copytree(made.root / "machine", root / "machine")
    env = clean_env(root / "machine")
    env["XDG_STATE_HOME"] = str(root / "state")
    return Versions(root, made.upstream, env)
