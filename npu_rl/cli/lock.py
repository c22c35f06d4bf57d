"""npu-rl lock"""

from __future__ import annotations

from pathlib import Path

from npu_rl.cli.show import tell, watcher
from npu_rl.errors import UsageError
from npu_rl.locking.command import Options, check, write
from npu_rl.manifest.lock import Lock
from npu_rl.sources.git import Network
from npu_rl.sources.urls import load_rewrites


def run(
    manifest: str,
    update: list[str],
    only_check: bool,
    output: Path | None,
    jobs: int,
    offline: bool,
    rewrite: list[str],
) -> None:
    if only_check and update:
        raise UsageError("--check writes nothing, so there is nothing to --update", hint="Give one of them.")
    network = Network.from_environment(load_rewrites(rewrite), offline=offline)
    with watcher() as shown:
        options = Options(manifest, network, shown, tell, jobs, output)
        if only_check:
            lock, path = check(options)
        else:
            lock, path = write(options, update)
    _print(lock)
    print(f"{path} {'is up to date' if only_check else 'written'}")


def _print(lock: Lock) -> None:
    for name, component in lock.components.items():
        print(f"{name}: {component.shown_pin()}")
        for merge in component.merges:
            inside, outside = len(merge.inside), len(merge.outside)
            print(
                f"  {merge.how} {merge.ref} at {merge.head[:12]}: {merge.count} commits, drift {merge.drift}"
            )
            print(f"    {inside} files inside what is taken, {outside} outside" + (":" if outside else ""))
            for path in merge.outside[:10]:
                print(f"      outside: {path}")
        for patch in component.patches:
            offset = f", offsets {patch.offsets}" if patch.offsets else ""
            print(f"  patch {patch.name}: {patch.hunks} hunks{offset}")
    print(f"tree {lock.tree}  commit {lock.commit}")
