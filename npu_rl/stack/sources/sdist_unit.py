"""Import of a PyPI sdist as git objects: its kept files become one tree, and none of its code is run.

The archive is also kept in the store, by its SHA-256: a lock that is made again, such as after a failed `drop:`, does
not download 20 MB each time.
"""

from __future__ import annotations

import hashlib
import re
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
from npu_rl.stack.sources.pypi import DownloadedSdist, download_sdist, find_sdist, is_safe_sdist_name
from npu_rl.stack.sources.sdist import SdistFile, read_sdist
from npu_rl.stack.store import Store, Unit, pack_loose, unit_key

_ID = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Imported:
    """An sdist in a repository.

    Attributes:
        tree: The tree of its kept files.
        received: The bytes received over the network.
        beside: Files that were read as well, by path; they need not be in the tree.
    """

    tree: str
    sdist: DownloadedSdist
    received: int
    beside: Mapping[str, bytes] = field(default_factory=dict)


def import_sdist(
    repository: Git,
    component: str,
    source: LockedSource,
    keep: Sequence[str],
    network: Network,
    watcher: Watcher,
    store: Store,
    *,
    ask: bool = True,
    beside: Sequence[str] = (),
) -> Imported:
    """Download an sdist, check its hash, and write the kept files into the repository as one pack.

    Args:
        keep: The paths to keep.
        store: The store, which may already have the archive and keeps it.
        ask: Whether to use the store's archive only if an index lists it.
        beside: Files and folders to read as well, kept or not; the sdist need not have them.

    Raises:
        SourceError: If there is no such sdist, it has another hash, is unsafe, or lacks a `drop` or kept path.
    """
    with tempfile.TemporaryDirectory(prefix="npu-rl-", dir=repository.git_dir) as folder:
        place = Path(folder)
        sdist, received = _get_archive(repository, component, source, network, watcher, store, ask, place)
        for note in sdist.notes:
            watcher.note(component, note)
        files = list(read_sdist(sdist.path, keep=[*keep, *beside]))
    paths = [path.rstrip("/") or "." for path in keep]
    inside = [file for file in files if is_inside(file.path, paths)]
    lacking = [path for path in (*paths, *source.drop) if not _has(inside, path)]
    if lacking:
        patterns = any(set("*?[") & set(path) for path in paths if path in lacking)
        raise SourceError(
            f"{sdist.filename} does not have {', '.join(lacking)}",
            where=component,
            hint="Look at `take:` and `drop:` of this component."
            + (" `take:` has no patterns: name a folder, or each file." if patterns else ""),
        )
    tree = _import_files(repository, [file for file in inside if not is_inside(file.path, source.drop)])
    read = {file.path: file.data for file in files if is_inside(file.path, beside)}
    return Imported(tree, sdist, received, read)


def _has(files: Sequence[SdistFile], path: str) -> bool:
    return any(is_inside(file.path, (path,)) for file in files)


def _get_archive(
    repository: Git,
    component: str,
    source: LockedSource,
    network: Network,
    watcher: Watcher,
    store: Store,
    ask: bool,
    folder: Path,
) -> tuple[DownloadedSdist, int]:
    """Return the archive as a file in `folder`, and the bytes received for it."""
    assert source.pypi is not None
    name, version = split_requirement(source.pypi)
    settings = read_pip_settings()
    settings = replace(settings, retries=min(settings.retries, network.retries))
    wanted, notes = source.sha256, tuple[str, ...]()
    if ask:
        link = find_sdist(name, version, settings, pause=network.pause)
        wanted, notes = link.sha256 or source.sha256, link.notes
    if wanted is not None and source.sha256 in (None, wanted):
        kept = _kept_archive(repository, store, wanted, folder)
        if kept is not None:
            return replace(kept, notes=notes), 0
    if network.offline:
        raise SourceError(
            f"The sdist {source.pypi} is not in the local store",
            where=component,
            why="--offline does not allow fetching it.",
            hint="Run the same command once without --offline.",
        )
    watcher.begin(component, source.pypi)

    def progress(done: int, total: int | None) -> None:
        network.pause(0)
        of = f" of {total / 1e6:.1f}" if total else ""
        watcher.advance(component, f"{done / 1e6:.1f}{of} MB", done / total if total else None)

    sdist = download_sdist(
        name,
        version,
        sha256=source.sha256,
        settings=settings,
        folder=folder,
        on_progress=progress,
        pause=network.pause,
    )
    _keep_archive(store, sdist)
    return sdist, sdist.size


def _kept_archive(repository: Git, store: Store, sha256: str, folder: Path) -> DownloadedSdist | None:
    """Return the archive from the store as a file, if it has it; what has another hash is discarded."""
    unit = store.find(_archive_key(sha256))
    if unit is None:
        return None
    facts = unit.facts()
    blob, filename = str(facts.get("blob")), str(facts.get("filename"))
    here = replace(repository, alternates=(*repository.alternates, unit.objects))
    # One becomes a path, the other git's argument.
    known = is_safe_sdist_name(filename) and _ID.fullmatch(blob)
    found = here.run("cat-file", "blob", blob, ok=(0, 128)) if known else None
    if found is None or hashlib.sha256(found.stdout).hexdigest() != sha256:
        store.discard(unit)
        return None
    path = folder / filename
    path.write_bytes(found.stdout)
    return DownloadedSdist(path, filename, sha256, len(found.stdout), "", "the local store")


def _keep_archive(store: Store, sdist: DownloadedSdist) -> None:
    with store.quarantine() as folder:
        repository = Git(folder)
        blob = repository.text("hash-object", "-w", "--no-filters", str(sdist.path))
        pack_loose(repository)
        store.publish(folder, _archive_key(sdist.sha256), {"blob": blob, "filename": sdist.filename})


def locked_archive(
    store: Store, component: str, source: LockedSource, network: Network, watcher: Watcher, folder: Path
) -> DownloadedSdist:
    """Return a locked release as a file in `folder`, from the store or else downloaded.

    Raises:
        SourceError: If the store does not have it and no index delivers it, or `network` is offline.
    """
    with store.quarantine() as scratch:
        return _get_archive(Git(scratch), component, source, network, watcher, store, False, folder)[0]


def _archive_key(sha256: str) -> str:
    return unit_key("sdist", [sha256])


def split_requirement(text: str) -> tuple[str, str]:
    """Split a requirement such as vllm==0.9.1 into name and version."""
    requirement = Requirement(text)
    (version,) = requirement.specifier
    return requirement.name, version.version


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
        imported = import_sdist(
            repository, request.component, source, keep, network, watcher, store, ask=False
        )
        lacking = missing(repository, request.wants)
        if imported.tree != component.tree or lacking:
            why = "It has not what the merges need; only git has."
            if imported.tree != component.tree:
                why = f"It gives tree {short(imported.tree)} where {short(component.tree)} is locked."
            raise SourceError(f"{source.pypi} does not match the lock", why=why)
        facts = {"component": request.component, "wants": list(request.wants), "source": source.pypi}
        return store.publish(folder, request.key, facts), imported.received
