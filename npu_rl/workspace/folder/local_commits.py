"""The user's work in a workspace's git repositories: commits, branches, stashes, staged changes, hooks, settings.

git writes new objects only into a repository's own object folder; those of setup are in its alternate. So an empty
object folder means that there are no commits to lose, and needs no git process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.printable import counted
from npu_rl.stack.git.command import ATTRIBUTES, Git, bare_settings
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import short
from npu_rl.workspace.folder.laid_files import ALTERNATES, REPOSITORY_SETTINGS
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name

# What git writes by itself, and what the look at refs and objects covers. Anything else is the user's.
_OF_GIT = re.compile(
    r"HEAD|index|packed-refs|shallow|gc\.\w+|AUTO_MERGE|[A-Z_]+_(HEAD|MSG|EDITMSG|MODE|RR)|BISECT_\w+"
    r"|(objects|refs|logs|reftable)/.+|(info/refs|sharedindex\.\w+|hooks/.+\.sample|.+\.lock|fsmonitor--daemon.*)"
)
_OF_SETUP = {
    "config": {*REPOSITORY_SETTINGS.splitlines(), *bare_settings(bare=False).splitlines()},
    "info/attributes": {ATTRIBUTES.rstrip("\n")},
    "info/exclude": set[str](),
    "description": set[str](),
}
_NOTES = ('[branch "', "[gui]")  # sections of a configuration that git and editors write by themselves


def git_of(repository: Path, objects: Path | None = None) -> Git:
    """Return git on a user's repository, for reading: it runs no hook, filter or monitor, and fetches nothing.

    Args:
        objects: The only objects to see; the repository's own and those it borrows by default.
    """
    limits = {"GIT_ALLOW_PROTOCOL": "none"}  # a promisor's objects are fetched by a program that it names
    if objects is not None:
        limits["GIT_OBJECT_DIRECTORY"] = str(objects)
    return Git(repository, extra=limits)


def own_history(git_home: Path, root: str, commit: str) -> list[str]:
    """Return the user's commits, branches, stashes and staged changes in a root's repository, one line each.

    Args:
        commit: The one that setup created.
    """
    repository = _repository(git_home, root)
    try:
        return [] if repository is None else list(_history(git_home, repository, root, commit))
    except (GitError, OSError) as error:
        why = error.why if isinstance(error, GitError) else error
        return [f"{root}: the git repository, which can't be read ({why})"]


def own_files(git_home: Path, root: str) -> Iterator[str]:
    """Yield the files in a root's repository that neither git nor setup has written, such as a hook or a setting."""
    repository = _repository(git_home, root)
    for folder, _, names in os.walk(repository) if repository is not None else ():
        for path in sorted(Path(folder, name) for name in names):
            inner = path.relative_to(git_home).as_posix().partition("/")[2]
            if _OF_GIT.fullmatch(inner) is None and not _is_of_setup(path, inner):
                yield f"{root}: {inner} in its git repository"


def _repository(git_home: Path, root: str) -> Path | None:
    """Return a root's repository; None if it is missing, or if a link leads to it: then it stays where it is."""
    repository = git_home / repository_name(root)
    return None if git_home.is_symlink() or repository.is_symlink() or not repository.is_dir() else repository


def _is_of_setup(path: Path, inner: str) -> bool:
    """Return whether a file has only comments, lines that setup writes, and notes of editors."""
    known, content = _OF_SETUP.get(inner), read_if_file(path)
    if known is None or content is None:
        return False
    section = ""
    for line in content.decode("utf-8", "replace").splitlines():
        section = line if line.startswith("[") else section
        if line.strip() and line[0] != "#" and line not in known and not section.startswith(_NOTES):
            return False
    return True


def _history(git_home: Path, repository: Path, root: str, commit: str) -> Iterator[str]:
    git = git_of(repository)
    for line in git.text("for-each-ref", "--format=%(objectname) %(refname)").splitlines():
        oid, _, name = line.partition(" ")
        if (name, oid) != ("refs/heads/main", commit) and not name.startswith("refs/bisect/"):
            yield f"{root}: {_kind(name)} at {short(oid)}"
    if not _has_objects(repository / "objects"):
        return
    if (repository / "objects/info/alternates").read_bytes() != ALTERNATES.encode():
        raise OSError("objects/info/alternates was changed")
    reached = ("rev-list", "--objects", "--no-object-names", "--all", "--reflog", "--indexed-objects")
    found = git.run(*reached, "--not", commit).stdout
    laid = git_of(repository, git_home / "objects")
    checked = laid.run("cat-file", "--batch-check=%(objectname)", input=found).stdout.splitlines()
    own = [line.split()[0].decode() for line in checked if line.endswith(b" missing")]
    commits = list(git.batch_check("objecttype", own).values()).count("commit")
    if commits:
        yield f"{root}: {counted(commits, 'commit')} of your own (git log --all, git reflog)"
    elif own:
        yield f"{root}: changes staged with git add"


def _kind(name: str) -> str:
    for prefix, kind in (("refs/heads/", "branch "), ("refs/tags/", "tag ")):
        if name.startswith(prefix):
            return kind + name[len(prefix) :]
    return "the stash" if name == "refs/stash" else name


def _has_objects(folder: Path) -> bool:
    return any(folder.glob("[0-9a-f][0-9a-f]/*")) or any(folder.glob("pack/*.pack"))


def are_carried(paths: WorkspacePaths, coming: Mapping[str, str]) -> bool:
    """Return whether each root's HEAD has the tree in `coming`, and branches and stashes have no other commits."""
    commits = read_receipt(paths).commits.items()
    changed = [(root, commit) for root, commit in commits if own_history(paths.git, root, commit)]
    return all(_is_carried(paths, root, commit, coming.get(root)) for root, commit in changed)


def _is_carried(paths: WorkspacePaths, root: str, commit: str, tree: str | None) -> bool:
    git = git_of(paths.git / repository_name(root))
    try:
        others = git.text("rev-list", "--max-count=1", "--all", "--not", "HEAD", commit, "--")
        return not others and git.text("rev-parse", "--verify", "HEAD^{tree}") == tree
    except GitError:
        return False
