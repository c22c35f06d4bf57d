"""Real diffs from git, real applications by git, and files that change at random."""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import strategies as st

PATH = "pkg/a.py"


def git(folder: Path, *args: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "LC_ALL": "C",
    }
    return subprocess.run(["git", *args], cwd=folder, input=input, env=env, capture_output=True, check=False)


def git_diff(old: bytes | None, new: bytes | None, *options: str, path: str = PATH) -> bytes:
    """`git diff --no-index` with the names a/path and b/path; None is an absent file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = []
        for side, content in (("a", old), ("b", new)):
            file = folder / side / path
            if content is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            sides.append(os.devnull if content is None else f"{side}/{path}")
        done = git(folder, "diff", "--no-index", "--no-prefix", "--text", *options, "--", *sides)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout


def work_tree_diff(folder: Path, name: str, old: str, new: str, *options: str, python: bool = False) -> bytes:
    """`git diff` of a file that has changed since it was added; `python`: with git's pattern for that language."""
    git(folder, "init", "-q")
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("*.py diff=python\n" if python else "")
    (folder / name).write_text(old)
    git(folder, "add", name)
    (folder / name).write_text(new)
    done = git(folder, "diff", "--no-color", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def git_apply(
    content: bytes | None, patch: bytes, *options: str, path: str = PATH
) -> tuple[bool, bytes | None]:
    """Whether `git apply` took it, and the file after."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / path
        if content is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        done = git(Path(name), "apply", "--whitespace=nowarn", *options, "-", input=patch)
        return done.returncode == 0, file.read_bytes() if file.exists() else None


def plain_diff(old: bytes | None, new: bytes | None, *, path: str = PATH, context: int = 3) -> bytes:
    """What GNU `diff -u` writes: faster than a process, for examples by the hundred."""
    sides = [[line + b"\n" for line in (c or b"").split(b"\n")] for c in (old, new)]
    for side in sides:
        side[-1:] = [side[-1][:-1]] if side[-1] != b"\n" else []
    names = [b"/dev/null" if c is None else p + path.encode() for p, c in ((b"a/", old), (b"b/", new))]
    out = b""
    for line in difflib.diff_bytes(difflib.unified_diff, sides[0], sides[1], names[0], names[1], n=context):
        out += line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
    return out


# Few enough that lines repeat, as blank lines, `return` and `)` do.
COMMON = [b"", b"    return x", b")", b"\tpass", b"x = 1\r", b"    x = 1", b"\xff latin", "é".encode()]


def contents(rich: bool = True) -> st.SearchStrategy[bytes]:
    """Text files: repeated lines, CRLF, bytes that are no UTF-8, with or without a last newline, empty."""
    unique = st.integers(0, 400).map(lambda n: b"line %d" % n)
    line = st.one_of(unique, st.sampled_from(COMMON)) if rich else unique
    lines = st.lists(line, max_size=40) if rich else st.lists(line, max_size=40, unique=True)
    return st.tuples(lines, st.booleans()).map(lambda t: b"\n".join(t[0]) + (b"\n" if t[0] and t[1] else b""))


@st.composite
def edits(draw: st.DrawFn, content: bytes, *, rich: bool = True) -> bytes:
    """The content after one to three insertions, deletions or replacements of a few lines."""
    lines = content.split(b"\n")
    new = st.one_of(st.integers(1000, 9999).map(lambda n: b"new %d" % n), st.sampled_from(COMMON))
    if not rich:
        new = st.integers(1000, 10**9).map(lambda n: b"new %d" % n)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines)))
        gone = draw(st.integers(0, 3))
        lines[at : at + gone] = draw(st.lists(new, max_size=3))
    return b"\n".join(lines)
