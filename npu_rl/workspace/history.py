"""What a person did with git in a workspace: commits, branches, stashes, staged changes.

git writes new objects only into a repository's own object folder; what setup laid lies beside it, in
the one it borrows. So an empty folder of its own means there is nothing to lose, and no process is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npu_rl.git import Git, GitError


def repository_name(root: str) -> str:
    """The folder of a root's repository under `.npu-rl/git`."""
    return root.replace("/", "-")


def own_history(git_home: Path, root: str, commit: str) -> list[str]:
    """What of a root's repository only this workspace has, one line each. commit: what setup laid there."""
    repository = git_home / repository_name(root)
    if not (repository / "HEAD").is_file():
        return []
    found = [
        f"{root}: {_kind(name)} at {oid[:12]}"
        for name, oid in _refs(repository)
        if not (name == "refs/heads/main" and oid == commit) and not name.startswith("refs/bisect/")
    ]
    if (repository / "reftable").is_dir() or _has_objects(repository / "objects"):
        found += [line for line in _own_objects(git_home, repository, root, commit) if line not in found]
    return found


def _kind(name: str) -> str:
    for prefix, kind in (("refs/heads/", "branch "), ("refs/tags/", "tag ")):
        if name.startswith(prefix):
            return kind + name[len(prefix) :]
    return "the stash" if name == "refs/stash" else name


def _refs(repository: Path) -> Iterator[tuple[str, str]]:
    """Every ref with its id, read from files: no git process for a question asked on every setup."""
    try:
        lines = (repository / "packed-refs").read_text(errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    refs = {name: oid for oid, _, name in (line.partition(" ") for line in lines if line[:1] not in "#^")}
    for path in (repository / "refs").rglob("*"):
        if path.is_file() and not path.name.endswith(".lock"):
            refs[path.relative_to(repository).as_posix()] = path.read_text(errors="surrogateescape").strip()
    yield from sorted(refs.items())


def _has_objects(folder: Path) -> bool:
    return any(folder.glob("[0-9a-f][0-9a-f]/*")) or any(folder.glob("pack/*.pack"))


def _own_objects(git_home: Path, repository: Path, root: str, commit: str) -> list[str]:
    """Commits and staged content that setup did not lay, if any ref, reflog or index still names them."""
    here = Git(repository)
    laid = Git(repository, extra={"GIT_OBJECT_DIRECTORY": str(git_home / "objects")})
    try:
        named = here.run(
            "rev-list", "--objects", "--no-object-names", "--all", "--reflog", "--indexed-objects",
            "--not", commit,
        ).stdout  # fmt: skip
        asked = laid.run("cat-file", "--batch-check=%(objectname)", input=named).stdout
        own = [line.split()[0] for line in asked.splitlines() if line.endswith(b" missing")]
        kinds = here.run("cat-file", "--batch-check=%(objecttype)", input=b"\n".join([*own, b""])).stdout
    except GitError as error:
        return [f"{root}: its git repository, which git can't read ({error.why})"]
    commits = kinds.split().count(b"commit")
    if commits:
        return [
            f"{root}: {commits} commit{'s' if commits > 1 else ''} of your own (git log --all, git reflog)"
        ]
    return [f"{root}: changes staged with git add"] if own else []
