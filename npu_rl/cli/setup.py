"""npu-rl setup"""

from __future__ import annotations

import time
from pathlib import Path

from npu_rl.cli.show import amount, print_json, tell, watcher
from npu_rl.errors import UsageError
from npu_rl.manifest import lock as lock_file
from npu_rl.manifest.find import find_manifest
from npu_rl.workspace.current import Outcome, untouched
from npu_rl.workspace.layout import DEFAULT_NAME, Layout
from npu_rl.workspace.summary import manifest_changed, setup_json


def run(
    manifest: str, workspace: Path | None, lock: Path | None, jobs: int, offline: bool,
    rewrite: list[str], discard: bool, python: str | None, as_json: bool,
) -> None:  # fmt: skip
    path = find_manifest(manifest)
    place = lock or lock_file.file_for(path)
    text = lock_file.read_text(place)
    found = lock_file.parse(text, str(place))
    if manifest_changed(found, path):
        tell(f"note: {path.name} has changed since its lock was made; the lock is what is set up.")
    layout = Layout((workspace or Path(DEFAULT_NAME)).expanduser().absolute())
    started = time.monotonic()
    python = _absolute(python)
    if untouched(layout, text, python):
        outcome = Outcome(False, seconds=time.monotonic() - started)
    else:
        outcome = _set_up(found, layout, path, jobs, offline, rewrite, discard, python)
    if as_json:
        print_json(setup_json(found, layout, outcome))
    else:
        _print(found, layout, outcome)


def _absolute(python: str | None) -> str | None:
    """The interpreter by its path; links are not followed, since a virtual environment's is one."""
    import os
    import shutil

    if python is None:
        return None
    found = shutil.which(os.path.expanduser(python))  # noqa: PTH111
    if found is None:
        raise UsageError(
            f"There is no program {python!r}", hint="--python takes the path or name of a Python"
        )
    return os.path.abspath(found)  # noqa: PTH100  Path.resolve would follow the link


def _set_up(
    lock: lock_file.Lock,
    layout: Layout,
    manifest: Path,
    jobs: int,
    offline: bool,
    rewrite: list[str],
    discard: bool,
    python: str | None,
) -> Outcome:
    from npu_rl.sources.git import Network
    from npu_rl.sources.urls import load_rewrites
    from npu_rl.workspace import setup

    network = Network.from_environment(load_rewrites(rewrite), offline=offline)
    with watcher() as shown:
        return setup.run(setup.Request(lock, layout, manifest, network, shown, jobs, discard, python), tell)


def _print(lock: lock_file.Lock, layout: Layout, outcome: Outcome) -> None:
    if not outcome.changed:
        print(f"{layout.root} is {lock.manifest} already; nothing to do.")
        print(f"tree {lock.tree}  commit {lock.commit}")
        return
    for name, component in lock.components.items():
        done = [f"{m.how} {m.ref.removeprefix('refs/')}" for m in component.merges]
        done += [f"patch {p.name}" for p in component.patches]
        pin = component.pin[:12] if component.pin else component.sources[0].pypi
        print(f"  {name:<16} {pin:<24} {', '.join(done)}".rstrip())
    if outcome.kept:
        print(f"Local changes were moved to {outcome.kept}")
    print(f"tree {lock.tree}  commit {lock.commit}")
    print(f"{layout.root} is ready: {amount(outcome.received)} received, {outcome.seconds:.1f} s.")
    print(f"Next: npu-rl verify --workspace {layout.root}; source {layout.root}/activate")
