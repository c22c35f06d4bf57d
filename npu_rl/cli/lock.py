"""npu-rl lock"""

from __future__ import annotations

from pathlib import Path

from npu_rl.cli.show import say, tell, watcher
from npu_rl.errors import UsageError
from npu_rl.locking.command import Options, check, write
from npu_rl.manifest.lock import Lock
from npu_rl.sources.git import Network
from npu_rl.sources.urls import load_rewrites
from npu_rl.workspace.summary import patch_line

_LISTED = 10  # paths of a merge outside what is taken


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
    say(f"{path} {'is up to date' if only_check else 'written'}")


def _print(lock: Lock) -> None:
    for name, component in lock.components.items():
        say(f"{name}: {component.shown_pin()}")
        for merge in component.merges:
            inside, outside = len(merge.inside), len(merge.outside)
            say(f"  {merge.how} {merge.ref} at {merge.head[:12]}: {merge.count} commits, drift {merge.drift}")
            say(f"    {inside} files inside what is taken, {outside} outside" + (":" if outside else ""))
            for path in merge.outside[:_LISTED]:
                say(f"      outside: {path}")
            if outside > _LISTED:
                say(f"      and {outside - _LISTED} more")
        for patch in component.patches:
            say(f"  {patch_line(patch)}")
    if lock.tree_patches:
        say("tree:")
    for patch in lock.tree_patches:
        say(f"  {patch_line(patch)}")
    say(f"tree {lock.tree}  commit {lock.commit}")
