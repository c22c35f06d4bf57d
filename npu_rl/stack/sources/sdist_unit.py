"""Import of a PyPI sdist as git objects: its kept files become one tree, and none of its code is run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import is_inside, short
from npu_rl.stack.lock.lock_model import LockedComponent, LockedSource
from npu_rl.stack.sources.git_fetch import GitRequest, missing
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.pip_config import read_pip_settings
from npu_rl.stack.sources.progress import Watcher
from npu_rl.stack.sources.pypi import DownloadedSdist, download_sdist
from npu_rl.stack.sources.sdist import SdistFile, read_sdist
from npu_rl.stack.store import Store, Unit


@dataclass(frozen=True)
class Imported:
    """An sdist in a repository.

    Attributes:
        tree: The tree of its kept files.
        source: The source, with file name, SHA-256 and size.
        beside: Files that were read as well, by path; they need not be in the tree.
    """

    tree: str
    source: LockedSource
    beside: Mapping[str, bytes] = field(default_factory=dict)


def import_sdist(
    repository: Git,
    component: str,
    source: LockedSource,
    keep: Sequence[str],
    network: Network,
    watcher: Watcher,
    *,
    beside: Sequence[str] = (),
) -> Imported:
    """Download an sdist, check its hash, and write the kept files into the repository as one pack.

    Args:
        keep: The paths to keep.
        beside: Files and folders to read as well, kept or not; the sdist need not have them.

    Raises:
        SourceError: If there is no such sdist, it has another hash, is unsafe, or lacks a `drop` or kept path.
    """
    with tempfile.TemporaryDirectory(prefix="npu-rl-", dir=repository.git_dir) as folder:
        sdist = _download(component, source, network, watcher, Path(folder))
        files = list(read_sdist(sdist.path, keep=[*keep, *beside]))
    paths = [path.rstrip("/") or "." for path in keep]
    inside = [file for file in files if is_inside(file.path, paths)]
    lacking = [p for p in (*paths, *source.drop) if not any(is_inside(file.path, (p,)) for file in inside)]
    if lacking:
        raise SourceError(
            f"{sdist.path.name} does not have {', '.join(lacking)}",
            where=component,
            hint="Correct `take:` and `drop:` of this component; they name folders and files, not patterns.",
        )
    tree = _import_files(repository, [file for file in inside if not is_inside(file.path, source.drop)])
    locked = replace(source, filename=sdist.path.name, sha256=sdist.sha256, size=sdist.size)
    return Imported(tree, locked, {file.path: file.data for file in files if is_inside(file.path, beside)})


def _download(
    component: str, source: LockedSource, network: Network, watcher: Watcher, folder: Path
) -> DownloadedSdist:
    assert source.pypi is not None
    requirement = Requirement(source.pypi)
    (version,) = requirement.specifier
    settings = read_pip_settings()
    watcher.begin(component, source.pypi)

    def progress(done: int, total: int | None) -> None:
        network.pause(0)
        of = f" of {total / 1e6:.1f}" if total else ""
        watcher.advance(component, f"{done / 1e6:.1f}{of} MB", done / total if total else None)

    sdist = download_sdist(
        requirement.name,
        version.version,
        sha256=source.sha256,
        settings=replace(settings, retries=min(settings.retries, network.retries)),
        folder=folder,
        on_progress=progress,
        pause=network.pause,
    )
    for note in sdist.notes:
        watcher.note(component, note)
    return sdist


def _import_files(repository: Git, files: Sequence[SdistFile]) -> str:
    """Import the files by one `git fast-import`, which makes a pack: a thousand loose objects would cost a second."""
    stream = [b"commit refs/npu-rl/sdist\ncommitter npu-rl <npu-rl@invalid> 0 +0000\ndata 0\n"]
    for file in files:
        mode = "100755" if file.executable else "100644"
        stream.append(f"M {mode} inline {_quoted(file.path)}\ndata {len(file.data)}\n".encode())
        stream.append(file.data)
        stream.append(b"\n")
    stream.append(b"done\n")
    settings = {"GIT_CONFIG_PARAMETERS": "'fastimport.unpackLimit=0' 'pack.compression=1'"}
    fast = replace(repository, extra={**repository.extra, **settings})
    fast.run("fast-import", "--quiet", "--done", input=b"".join(stream))
    return repository.text("rev-parse", "refs/npu-rl/sdist^{tree}")


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def fetch_sdist(
    store: Store,
    request: GitRequest,
    source: LockedSource,
    component: LockedComponent,
    network: Network,
    watcher: Watcher,
) -> tuple[Unit, int]:
    """Import a component into the store from its sdist; return the unit and the bytes received.

    Raises:
        SourceError: If the sdist's tree is not the locked one.
    """
    with store.quarantine() as folder:
        repository = Git(folder)
        keep = [path for path, _ in component.entries_at_pin()]
        imported = import_sdist(repository, request.component, source, keep, network, watcher)
        lacking = missing(repository, request.wants)
        if imported.tree != component.tree or lacking:
            why = "It has not what the merges need; only git has."
            if imported.tree != component.tree:
                why = f"It gives tree {short(imported.tree)} where {short(component.tree)} is locked."
            raise SourceError(f"{source.pypi} does not match the lock", why=why)
        facts = {"component": request.component, "wants": list(request.wants), "source": source.pypi}
        return store.publish(folder, request.key, facts), imported.source.size or 0
