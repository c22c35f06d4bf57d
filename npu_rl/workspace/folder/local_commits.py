"""The user's work in a workspace's git repositories: commits, branches, stashes, staged changes.

git writes new objects only into a repository's own object folder; those of setup are in its alternate. So an empty
object folder means that there is no work to lose, and needs no git process.

The repository is untrusted. git gets its refs and objects below a repository of our own, so that nothing in its
configuration is read or run, and only if it has nothing but files and folders, so that git can't block on a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.confined_changes import Confined, LinkOnTheWay
from npu_rl.common.disk import remove_tree
from npu_rl.common.printable import counted
from npu_rl.stack.git.command import ATTRIBUTES, Git, bare_settings, init_bare
from npu_rl.stack.git.editor_settings import split_settings
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import short
from npu_rl.stack.git.repository_files import has_gits_content, has_gits_name
from npu_rl.workspace.folder.laid_files import ALTERNATES, REPOSITORY_SETTINGS
from npu_rl.workspace.folder.workspace_paths import repository_name

_LARGEST_REF, _LARGEST_REFS = 4096, 8 << 20  # bytes of a ref, and of packed-refs: it has a line for each
_LARGEST_SUM = 64 << 20  # bytes of all reflogs, and of all files that are judged by their content
_SHARED_WITH_GIT = ("refs", "packed-refs", "index", "reftable", "worktrees")

_OID = "[0-9a-f]{40}"
_REF_CONTENT = re.compile(rf"{_OID}|ref: refs/\S+")

_SETUP_LINES = {
    "config": {*REPOSITORY_SETTINGS.splitlines(), *bare_settings(bare=False).splitlines()},
    "info/attributes": {ATTRIBUTES.rstrip("\n")},
    "info/exclude": set[str](),
    "description": set[str](),
}
_SMALL = 1 << 20


def own_files(git_home: Path) -> Iterator[str]:
    """Yield the files in the repositories that neither git nor setup creates, such as a user's hooks."""
    left = _LARGEST_SUM
    for path in files_below(git_home):
        repository, _, inner = path.partition("/")
        inside, place = (path if repository == "objects" else inner), git_home / path
        if not path.endswith("/"):
            if has_gits_name(inside):
                continue
            left -= min(place.lstat().st_size, _SMALL)
            if left >= 0 and (has_gits_content(place, inside) or _is_of_setup(place, inside)):
                continue
        yield path


def files_below(home: Path) -> Iterator[str]:
    """Yield the path of each file below a folder, without following links.

    A folder that can't be read may have files, too, and is yielded with a slash: its path may be too long.
    """
    unreadable: list[str] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unreadable.append(os.path.relpath(error.filename, home) + "/")

    for folder, _, names in os.walk(home, onerror=note) if not home.is_symlink() else ():
        yield from (Path(folder, name).relative_to(home).as_posix() for name in names)
    yield from unreadable


def _is_of_setup(path: Path, inner: str) -> bool:
    """Return whether a file has only comments and lines that setup writes or keeps."""
    lines = _SETUP_LINES.get(inner)
    if lines is None or not path.is_file():
        return False
    with path.open("rb") as file:
        data = file.read(_SMALL + 1)
    if len(data) > _SMALL:
        return False
    content = data.decode("utf-8", "replace")
    others = split_settings(content)[1] if inner == "config" else content.splitlines()
    return all(not line.strip() or line[0] == "#" or line in lines for line in others)


def own_history(git_home: Path, root: str, commit: str) -> list[str]:
    """Return the user's work in a root's repository, one line each.

    Args:
        commit: The one that setup created.
    """
    repository = git_home / repository_name(root)
    if not repository.is_dir():
        return []
    try:
        Confined(git_home.parent.parent).exists(repository)
    except LinkOnTheWay:
        return []  # what it leads to stays where it is
    problem = unsupported_file(repository) or unsupported_file(git_home / "objects")
    if problem is not None:
        return [_unreadable(root, problem)]
    try:
        refs = list(_refs(repository))
    except OSError as error:  # one that is too large
        return [_unreadable(root, error)]
    found = [
        f"{root}: {_kind(name)} at {short(oid)}"
        for name, oid in refs
        if not (name == "refs/heads/main" and oid == commit)
        and not name.startswith("refs/bisect/")
        and _REF_CONTENT.fullmatch(oid)  # a damaged ref alone has no work in it
    ]
    if (repository / "reftable").is_dir() or _has_objects(repository / "objects"):
        problem = _changed_alternates(git_home, repository)
        if problem is not None:
            return [_unreadable(root, problem)]
        found += [line for line in _own_objects(git_home, repository, root, commit) if line not in found]
    return found


def _unreadable(root: str, why: object) -> str:
    return f"{root}: the git repository, which can't be read ({why})"


def why_unreadable(git_home: Path, root: str) -> str | None:
    """Return why git must not read a root's repository; None if it may. Raises WorkspaceError for a link."""
    repository = git_home / repository_name(root)
    Confined(git_home.parent.parent).exists(repository)
    problem = unsupported_file(repository) or unsupported_file(git_home / "objects")
    return problem or _changed_alternates(git_home, repository)


def _changed_alternates(git_home: Path, repository: Path) -> str | None:
    """Return why the repository's alternates differ from setup's; None if they don't."""
    if (git_home / "objects/info/alternates").exists():
        return "objects/info/alternates was not written by npu-rl"
    try:
        borrowed = Confined(repository).read(repository / "objects/info/alternates", len(ALTERNATES))
    except OSError:
        borrowed = b""
    return None if borrowed == ALTERNATES.encode() else "objects/info/alternates was changed"


def unsupported_file(folder: Path) -> str | None:
    """Return why git can't read a folder (it contains a link, a pipe or an overlong path); None if it can."""
    pending = [os.fspath(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        return f"{os.path.relpath(entry.path, folder.parent)} is neither a file nor a folder"
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return f"{folder.name} has a path that is too long for this file system"
    return None


@contextlib.contextmanager
def view_of_repository(git_home: Path, repository: Path) -> Iterator[Path]:
    """Create a temporary repository with the refs, reflogs and index of another, without its configuration.

    Its name is one that the next setup removes if this process is killed.
    """
    import shutil  # most setups find no history, and don't pay for this

    view = git_home.parent / f"staging-{os.urandom(6).hex()}"
    try:
        init_bare(view, bare=False)
        remove_tree(view / "refs")
        for name in _SHARED_WITH_GIT:
            if (repository / name).exists():
                (view / name).symlink_to(repository.absolute() / name)
        if (repository / "logs").is_dir():  # git takes no link for this one
            shutil.copytree(repository / "logs", view / "logs", copy_function=_Copier().copy)
        (view / "HEAD").write_bytes(Confined(repository).read(repository / "HEAD", 4096))
        if (repository / "reftable").is_dir():
            with (view / "config").open("a") as config:
                config.write("\trepositoryformatversion = 1\n[extensions]\n\trefStorage = reftable\n")
        yield view
    finally:
        remove_tree(view)


class _Copier:
    """Copies files up to a total size."""

    def __init__(self) -> None:
        self._left = _LARGEST_SUM

    def copy(self, source: str, target: str) -> None:
        """Copy one file. Raises OSError beyond the total size."""
        path = Path(source)
        data = Confined(path.parent).read(path, self._left)
        self._left -= len(data)
        Path(target).write_bytes(data)


def _kind(name: str) -> str:
    for prefix, kind in (("refs/heads/", "branch "), ("refs/tags/", "tag ")):
        if name.startswith(prefix):
            return kind + name[len(prefix) :]
    return "the stash" if name == "refs/stash" else name


def _refs(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield every ref with its id, read from files; a git process would slow down every setup."""
    try:
        packed = Confined(repository).read(repository / "packed-refs", _LARGEST_REFS)
    except FileNotFoundError:
        packed = b""
    lines = packed.decode("utf-8", "surrogateescape").splitlines()
    refs = {name: oid for oid, _, name in (line.partition(" ") for line in lines if line[:1] not in "#^")}
    for path in (repository / "refs").rglob("*"):
        if path.is_file() and not path.name.endswith(".lock"):
            text = Confined(repository).read(path, _LARGEST_REF).decode("utf-8", "surrogateescape")
            refs[path.relative_to(repository).as_posix()] = text.strip()
    yield from sorted(refs.items())


def _has_objects(folder: Path) -> bool:
    return any(folder.glob("[0-9a-f][0-9a-f]/*")) or any(folder.glob("pack/*.pack"))


def _own_objects(git_home: Path, repository: Path, root: str, commit: str) -> list[str]:
    """Return the user's commits and staged content that a ref, reflog or index still refers to."""
    try:
        with view_of_repository(git_home, repository) as view:
            repository_view = Git(view, extra={"GIT_OBJECT_DIRECTORY": str(repository / "objects")})
            laid = Git(view, extra={"GIT_OBJECT_DIRECTORY": str(git_home / "objects")})
            named = repository_view.run(
                "rev-list", "--objects", "--no-object-names", "--all", "--reflog", "--indexed-objects",
                "--not", commit,
            ).stdout  # fmt: skip
            looked_up = laid.run("cat-file", "--batch-check=%(objectname)", input=named).stdout
            own = [line.split()[0] for line in looked_up.splitlines() if line.endswith(b" missing")]
            kinds = repository_view.run(
                "cat-file", "--batch-check=%(objecttype)", input=b"\n".join([*own, b""])
            ).stdout
    except (GitError, OSError) as error:
        why = error.why if isinstance(error, GitError) else error
        return [_unreadable(root, why)]
    commits = kinds.split().count(b"commit")
    if commits:
        return [f"{root}: {counted(commits, 'commit')} of your own (git log --all, git reflog)"]
    return [f"{root}: changes staged with git add"] if own else []
