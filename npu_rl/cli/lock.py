"""npu-rl lock"""

from __future__ import annotations

from pathlib import Path

from npu_rl.cli.show import say, tell, watcher
from npu_rl.errors import ManifestError, UsageError
from npu_rl.git.objects import short
from npu_rl.lock.lock_model import Lock
from npu_rl.resolve.relock import Options, check, write
from npu_rl.sources.git_fetch import Network
from npu_rl.sources.url_rewriting import load_rewrites
from npu_rl.workspace.lock_summary import patch_line

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
    _demand_environment(manifest)
    network = Network.from_environment(load_rewrites(rewrite), offline=offline)
    with watcher() as shown:
        options = Options(manifest, network, shown, tell, jobs, output)
        if only_check:
            lock, path = check(options)
        else:
            lock, path = write(options, update)
    _print(lock)
    say(f"{path} {'is up to date' if only_check else 'written'}")


def _demand_environment(manifest: str) -> None:
    """Raise ManifestError for a variable that no run could have; tell of one that is likely a typing error.

    What only the tree's code reads is judged with a recipe, when there is a tree.
    """
    from npu_rl.judgement.environment_check import environment_faults
    from npu_rl.manifest.load_manifest import load_manifest

    loaded = load_manifest(manifest)
    faults = environment_faults(loaded.manifest.env, None)
    lines = [
        f"{loaded.where('env', one.name)}: env.{one.name}: {one.message}; fix: {one.fix}" for one in faults
    ]
    wrong = [line for line, one in zip(lines, faults, strict=True) if one.certain]
    if wrong:
        raise ManifestError(
            f"The environment of {loaded.manifest.name} has {len(wrong)} invalid value{'s' * (len(wrong) > 1)}",
            where=loaded.where("env"),
            why="\n".join(wrong),
            hint="correct these lines and run the command again",
        )
    for line in lines:
        tell(f"note: {line}")


def _print(lock: Lock) -> None:
    for name, component in lock.components.items():
        say(f"{name}: {component.shown_pin()}")
        for merge in component.merges:
            inside, outside = len(merge.inside), len(merge.outside)
            say(
                f"  {merge.how} {merge.ref} at {short(merge.head)}: {merge.count} commits, drift {merge.drift}"
            )
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
