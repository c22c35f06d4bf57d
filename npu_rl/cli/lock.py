"""The command `npu-rl lock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Jobs, Manifest, Offline, Rewrite, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import KEEPS_DOWNLOADS, if_interrupted, say, say_ids, tell, tell_next
from npu_rl.common.errors import ManifestError, UsageError
from npu_rl.common.printable import counted

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock

_LISTED = 10  # paths of a merge outside what is taken


@examples("npu-rl lock --manifest ./my-stack.yaml --update verl   # no other component")
def lock(
    manifest: Manifest,
    update: Annotated[
        list[str] | None,
        typer.Option(
            "--update",
            metavar="COMPONENT",
            help="Resolve only this one again; the others keep their ids. May be repeated.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the lock is not up to date.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="LOCK", help="Path of the lock.  [default: beside the manifest]"
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
) -> None:
    """Resolve a manifest to full ids.

    It resolves every ref, pull request, merge, patch and tree, and writes NAME.lock.json. The exit code is 1 if --check
    finds that file stale.
    """
    from npu_rl.stack.resolve import relock

    if check and update:
        raise UsageError("--check writes nothing, so there is nothing to --update", hint="Give one of them.")
    _demand_environment(manifest)
    if_interrupted(KEEPS_DOWNLOADS)
    with Fetches() as shown:
        fetching = network(rewrite, offline=offline)
        options = relock.Options(manifest, fetching, shown, tell, jobs, output)
        done, path = relock.check(options) if check else relock.write(options, update or [])
    _print(done)
    say(f"{path} {'is up to date' if check else 'written'}")
    tell_next("setup", "--manifest", manifest, *(() if output is None else ("--lock", path)))


def _demand_environment(manifest: str) -> None:
    """Raise ManifestError for a variable that no run may have; print a note on a likely typo."""
    from npu_rl.recipes.environment.manifest_environment import notes_and_errors
    from npu_rl.stack.manifest.load_manifest import load_manifest

    loaded = load_manifest(manifest)
    notes, wrong = notes_and_errors(loaded)
    if wrong:
        raise ManifestError(
            f"The environment of {loaded.manifest.name} has {counted(len(wrong), 'invalid value')}",
            where=loaded.where("env"),
            why="\n".join(wrong),
            hint="Correct these variables under `env:`, then lock again.",
        )
    for line in notes:
        tell(f"note: {line}")


def _print(lock: Lock) -> None:
    from npu_rl.stack.git.objects import short
    from npu_rl.workspace.folder.lock_summary import patch_line

    for name, component in lock.components.items():
        say(f"{name}: {component.shown_pin()}")
        for merge in component.merges:
            outside = len(merge.outside)
            commits = counted(merge.count, "commit")
            say(f"  {merge.how} {merge.ref} at {short(merge.head)}: {commits}, drift {merge.drift}")
            inside = counted(len(merge.inside), "file")
            say(f"    {inside} inside what is taken, {outside} outside{':' if outside else ''}")
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
    say_ids(lock)
