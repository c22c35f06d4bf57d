"""The commands `lock` and `lock --check`: the earlier lock, the ids to keep, the output file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.disk import disk_errors, named_file, write_named
from npu_rl.common.errors import LockError, SourceError, UsageError
from npu_rl.common.printable import counted
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.manifest.load_manifest import LoadedManifest, load_manifest
from npu_rl.stack.requirements.bound_check import compare_bounds
from npu_rl.stack.resolve.resolve_lock import build_lock, check_lock
from npu_rl.stack.resolve.upstream_repository import Context, kept_ids
from npu_rl.stack.sources.git_remote import Network, ls_remote
from npu_rl.stack.sources.progress import Notify, Watcher
from npu_rl.stack.store import Store


@dataclass(frozen=True)
class Options:
    """Options of the command; `output` None writes the lock next to the manifest."""

    manifest: str
    network: Network
    watcher: Watcher
    notify: Notify
    jobs: int
    output: Path | None


def write(options: Options, update: list[str]) -> tuple[Lock, Path]:
    """Make the lock and write it atomically.

    Args:
        update: Components to resolve again; the others keep their ids.
    """
    loaded = _load(options)
    target = _target(options, loaded)
    _check_target(loaded, target, options)
    unknown = [name for name in update if name not in loaded.manifest.components]
    if unknown:
        raise UsageError(
            f"Unknown component of {loaded.manifest.name}: {', '.join(unknown)}",
            hint=f"Name one of these: {', '.join(loaded.manifest.components)}",
        )
    earlier = lock_model.read(target) if update else None
    keep = [name for name in loaded.manifest.components if update and name not in update]
    context = _context(options, loaded)
    lock = build_lock(context, loaded, earlier=earlier, keep=keep, jobs=options.jobs)
    note_bounds(loaded, lock, options.notify)
    _check_target(loaded, target, options)  # fetching took minutes
    write_named(target, lock_model.dump(lock).encode("utf-8", "surrogateescape"))
    return lock, target


def check(options: Options) -> tuple[Lock, Path]:
    """Rebuild the lock from its ids, and note refs that have moved.

    Raises LockError if it differs, or, before anything is fetched, for a broken bound without an override.
    """
    loaded = _load(options)
    target = _target(options, loaded)
    found = lock_model.read(target)
    require_bounds(loaded, found, options.notify)
    context = _context(options, loaded)
    computed = build_lock(
        context, loaded, earlier=found, keep=list(loaded.manifest.components), jobs=options.jobs
    )
    check_lock(found, _as_read(computed, found))
    if not options.network.offline:
        _report_moved_refs(context, found)
    return found, target


def _as_read(computed: Lock, found: Lock) -> Lock:
    """Return the lock with the notes of the npu-rl that wrote it on what it could not read."""
    components = {
        name: replace(one, unread=found.components[name].unread) if name in found.components else one
        for name, one in computed.components.items()
    }
    return replace(computed, components=components)


def _load(options: Options) -> LoadedManifest:
    """Load the manifest, with a note for each list of a parent that lost entries."""
    loaded = load_manifest(options.manifest)
    for line in loaded.dropped:
        for each in f"note: {line}".splitlines():
            options.notify(each)
    return loaded


def _target(options: Options, loaded: LoadedManifest) -> Path:
    return (options.output or lock_model.lock_path(loaded.path)).absolute()


def _check_target(loaded: LoadedManifest, target: Path, options: Options) -> None:
    if loaded.bundled and options.output is None:
        raise UsageError(
            f"{loaded.manifest.name} is a bundled manifest, whose lock can't be overwritten",
            hint="Write your own lock with --output F (then: npu-rl setup --manifest M --lock F),\n"
            "or copy the manifest and pass its path.",
        )
    named = named_file(target)
    with disk_errors(named):
        if named.exists() and named.stat().st_size and not lock_model.begins_as_lock(named):
            raise UsageError(
                "The output path is taken by a file that is not a lock",
                where=str(target) if target == named else f"{target} -> {named}",
                why='A lock begins with "lock_format". npu-rl overwrites only a lock or an empty file.',
                hint="Move the file away, or choose another path with --output F.",
            )


def _context(options: Options, loaded: LoadedManifest) -> Context:
    store = Store()
    store.sweep()
    return Context(store, options.network, options.watcher, options.notify, loaded.path.parent)


def _report_moved_refs(context: Context, lock: Lock) -> None:
    """Note pull requests and branches that have moved since, by the first mirror that can be read."""
    for name, component in lock.components.items():
        ids = {ref: oid for ref, oid in kept_ids(component).items() if ref.startswith("refs/")}
        reasons: list[str] = []
        for url in (source.git for source in component.sources if source.git and ids):
            try:
                with context.store.quarantine() as folder:
                    now = ls_remote(Git(folder), url, list(ids), context.network, name)
            except SourceError as error:
                reasons.append(error.what)
                continue
            for ref in (ref for ref, oid in ids.items() if now.get(ref) != oid):
                moved = f"moved from {short(ids[ref])} to {short(now.get(ref, ''))} since the lock"
                gone = "no longer exists upstream; the lock still names its commit"
                context.notify(f"note: {name}: {ref} {moved if ref in now else gone}")
            break
        else:
            if reasons:
                unread = "; ".join(reasons)
                context.notify(f"note: {name}: its refs could not be checked for changes: {unread}")


def note_bounds(loaded: LoadedManifest, lock: Lock, notify: Notify) -> None:
    """Note conflicting versions, broken bounds without an override, and bounds that were not compared."""
    comparison = compare_bounds(loaded, lock)
    for line in (*comparison.notes, *comparison.errors):
        notify(f"note: {line}")


def require_bounds(loaded: LoadedManifest, lock: Lock, notify: Notify) -> None:
    """Raise LockError for conflicting versions, a broken bound without an override, or an override without one."""
    comparison = compare_bounds(loaded, lock)
    for line in comparison.notes:
        notify(f"note: {line}")
    if comparison.errors:
        raise LockError(
            f"{loaded.manifest.name}: {counted(len(comparison.errors), 'error')} in its versions and overrides",
            where=str(loaded.path),
            why="\n".join(comparison.errors),
            hint="Correct these, then: npu-rl manifests check M",
        )
