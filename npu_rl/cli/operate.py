"""The commands for other hosts and for disks: `npu-rl requirements`, `bundle` and `store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import (
    Jobs,
    Json,
    ManifestOrWorkspace,
    Offline,
    PythonVersion,
    Rewrite,
    Workspace,
    manifest_names,
    network,
)
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import STARTS_OVER, amount, if_interrupted, print_json, say, say_text, tell

bundle = group("Set up hosts without a network.", {"create": "operate:create"})
store = group("Free space in the store.", {"gc": "operate:gc"})


@examples(
    "npu-rl requirements --manifest today --format pylock > pylock.toml",
    "npu-rl requirements -m ./mine.yaml --resolve --machine aarch64",
)
def requirements(
    manifest: ManifestOrWorkspace = None,
    workspace: Workspace = None,
    format: Annotated[
        Literal["pip", "pylock"],
        typer.Option("--format", help="Format: pip (name, version, hashes) or pylock (PEP 751)."),
    ] = "pip",
    python: PythonVersion = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", metavar="MACHINE", help="Architecture: aarch64 or x86_64.  [default: this host's]"
        ),
    ] = None,
    resolve: Annotated[
        bool,
        typer.Option(
            "--resolve", help="Resolve them now with uv and pip's configuration, in place of the lock."
        ),
    ] = False,
) -> None:
    """Print the packages a host needs.

    It prints one version of each with its hashes, as locked beside the manifest. Packages that the host brings for
    torch and those that are in the tree are left out. No index is named: pip and uv use their own.
    """
    from npu_rl.common.errors import UsageError
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.stack.pylocks.committed_pylock import committed_pylock
    from npu_rl.stack.pylocks.compile_pylock import compile_pylock
    from npu_rl.stack.pylocks.package_sets import package_set
    from npu_rl.stack.pylocks.pylock_file import dump_pylock
    from npu_rl.stack.pylocks.pylock_targets import choose_target, targets
    from npu_rl.stack.pylocks.requirement_lines import requirement_lines
    from npu_rl.stack.sources.pip_config import read_pip_settings
    from npu_rl.workspace.packages.workspace_manifest import workspace_manifest

    if_interrupted(STARTS_OVER)

    if manifest is not None and workspace is not None:
        raise UsageError("--manifest and --workspace name different stacks", hint="Give one of them.")
    named = manifest if manifest is not None else workspace_manifest(workspace, tell)[0]
    loaded = load_manifest(named)
    host = loaded.manifest.host.python
    target = choose_target(targets(loaded.manifest.device, host), python, machine)
    if resolve:
        pylock = compile_pylock(loaded.manifest.name, package_set(loaded), target, read_pip_settings())
    else:
        pylock = committed_pylock(loaded, target, named)
    if format == "pylock":
        say_text(dump_pylock(pylock))
    else:
        for line in requirement_lines(pylock):
            say(line)


@examples("npu-rl bundle create today newest -o both.tar --wheels --platform aarch64")
def create(
    manifests: Annotated[
        list[str],
        typer.Argument(
            metavar="MANIFEST...",
            help="Bundled names (see `npu-rl manifests list`) or paths.",
            autocompletion=manifest_names,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle, which must not exist.")
    ],
    wheels: Annotated[
        bool, typer.Option("--wheels", help="Add the packages that are locked beside each manifest.")
    ] = False,
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="VERSION",
            help="The hosts' Python, such as 3.11. May be repeated.  [default: the manifest's only one, else this one]",
        ),
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option(
            "--platform",
            metavar="MACHINE",
            help="The hosts' machine: aarch64 or x86_64. May be repeated.  [default: this host's]",
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Write stacks into one file.

    The file is a tar of the manifests with their locks, git objects and patches, and npu-rl's own wheel with all that
    it needs. The printed lines set it up on a host with only Python, tar and git.
    """
    from functools import partial

    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.bundled_packages import add_program
    from npu_rl.stack.bundles.create_bundle import OrderedManifest, create_bundle
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.stack.pylocks.pylock_targets import choose_targets, targets

    ordered = []
    for named in manifests:
        loaded = load_manifest(named)
        known = targets(loaded.manifest.device, loaded.manifest.host.python)
        wanted = choose_targets(known, python, platform, ("--python", "--platform"))
        ordered.append(OrderedManifest(named, loaded, wanted))
    place = user_path(output, "--output")
    if_interrupted(STARTS_OVER)
    with Fetches() as shown:
        program = partial(add_program, offline=offline, installer=wheels)
        reached = network(rewrite, offline=offline)
        made = create_bundle(ordered, place, reached, shown, program, wheels=wheels, jobs=jobs)
    if json:
        print_json(made)
        return
    say(f"{place}: {amount(made.bytes)}")
    say("On a host with Python, tar and git:")
    for line in made.start:
        say(line)


@examples("npu-rl store gc --days 0 --dry-run   # all that no command uses now")
def gc(
    days: Annotated[
        float, typer.Option("--days", min=0.0, metavar="N", help="Drop units unused for N days.")
    ] = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be dropped, and drop nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Drop unused parts of the store.

    Workspaces do not need it: what is dropped is fetched again when a setup or lock asks for it.
    """
    from npu_rl.stack.store import Store

    kept = Store()
    freed = kept.gc(days=days, dry_run=dry_run)
    if json:
        print_json(freed)
        return
    verb = "Would drop" if dry_run else "Dropped"
    say(f"{verb} {len(freed.units)} units, {amount(freed.bytes)}, from {kept.root}")
    for path in freed.foreign:
        say(f"Left a unit, since npu-rl did not write {path}")
