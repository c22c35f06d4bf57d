"""A PyPI sdist as objects: what is kept of it becomes one git tree, and nothing of it is ever run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from npu_rl.errors import SourceError
from npu_rl.git import Git
from npu_rl.manifest.lock import Component, Source
from npu_rl.sources.git import GitRequest, Network, missing
from npu_rl.sources.pip_config import read_pip_settings
from npu_rl.sources.progress import Watcher
from npu_rl.sources.pypi import DownloadedSdist, download_sdist
from npu_rl.sources.sdist import SdistFile, read_sdist, select
from npu_rl.store import Store, Unit


@dataclass(frozen=True)
class Imported:
    """An sdist in a repository: the tree of its kept files, and what the archive was."""

    tree: str
    sdist: DownloadedSdist


def import_sdist(
    repository: Git,
    component: str,
    source: Source,
    keep: Sequence[str],
    network: Network,
    watcher: Watcher,
) -> Imported:
    """Download, check the hash, and write the kept files into the repository as one pack.

    Raises SourceError: not found, another hash, an unsafe archive, a `drop` or kept path it doesn't have.
    """
    assert source.pypi is not None
    name, version = split_requirement(source.pypi)
    watcher.begin(component, source.pypi)

    def progress(done: int, total: int | None) -> None:
        network.pause(0)
        of = f" of {total / 1e6:.1f}" if total else ""
        watcher.advance(component, f"{done / 1e6:.1f}{of} MB", done / total if total else None)

    settings = read_pip_settings()
    settings = replace(settings, retries=min(settings.retries, network.retries))
    with tempfile.TemporaryDirectory(prefix="npu-rl-", dir=repository.git_dir) as folder:
        sdist = download_sdist(
            name,
            version,
            sha256=source.sha256,
            settings=settings,
            folder=Path(folder),
            on_progress=progress,
            pause=network.pause,
        )
        for note in sdist.notes:
            watcher.note(component, note)
        chosen = select(read_sdist(sdist.path, keep=keep), keep, source.drop)
        lacking = [*chosen.unmatched_keep, *chosen.unmatched_drop]
        if lacking:
            raise SourceError(
                f"{sdist.filename} does not have {', '.join(lacking)}",
                where=component,
                hint="Look at `take:` and `drop:` of this component.",
            )
        tree = _import_files(repository, chosen.files)
    return Imported(tree, sdist)


def split_requirement(text: str) -> tuple[str, str]:
    """ "vllm==0.9.1" as name and version."""
    requirement = Requirement(text)
    (version,) = requirement.specifier
    return requirement.name, version.version


def _import_files(repository: Git, files: Sequence[SdistFile]) -> str:
    """One `git fast-import` makes the pack: a thousand loose objects would cost a second."""
    stream = [b"commit refs/npu-rl/sdist\ncommitter npu-rl <npu-rl@invalid> 0 +0000\ndata 0\n"]
    for file in files:
        mode = "100755" if file.executable else "100644"
        stream.append(f"M {mode} inline {_quoted(file.path)}\ndata {len(file.data)}\n".encode())
        stream.append(file.data)
        stream.append(b"\n")
    stream.append(b"done\n")
    fast = replace(
        repository,
        extra={
            **repository.extra,
            "GIT_CONFIG_PARAMETERS": "'fastimport.unpackLimit=0' 'pack.compression=1'",
        },
    )
    fast.run("fast-import", "--quiet", "--done", input=b"".join(stream))
    return repository.text("rev-parse", "refs/npu-rl/sdist^{tree}")


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def fetch_sdist(
    store: Store,
    request: GitRequest,
    source: Source,
    component: Component,
    network: Network,
    watcher: Watcher,
) -> tuple[Unit, int]:
    """Bring a component into the store from its sdist; the unit, and the bytes received.

    Raises SourceError if the sdist does not stand for what is locked.
    """
    with store.quarantine() as folder:
        repository = Git(folder)
        keep = [take.path for take in component.take]
        imported = import_sdist(repository, request.component, source, keep, network, watcher)
        lacking = missing(repository, request.wants)
        if imported.tree != component.tree or lacking:
            raise SourceError(
                f"{source.pypi} does not stand for what is locked",
                why=f"It gives tree {imported.tree[:12]} where {component.tree[:12]} is locked."
                if imported.tree != component.tree
                else "It has not what the merges need; only git has.",
            )
        facts = {"component": request.component, "wants": list(request.wants), "source": source.pypi}
        return store.publish(folder, request.key, facts), imported.sdist.size
