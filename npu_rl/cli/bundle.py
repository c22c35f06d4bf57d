"""The command `npu-rl bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Jobs, Json, Offline, Rewrite, manifest_names, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import STARTS_OVER, amount, if_interrupted, print_json, say

app = group("Set up hosts without a network.", {"create": "bundle:create"})


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
        start = create_bundle(ordered, place, reached, shown, program, wheels=wheels, jobs=jobs)
    size = place.stat().st_size
    if json:
        print_json({"path": str(place), "bytes": size, "start": list(start)})
        return
    say(f"{place}: {amount(size)}")
    say("On a host with Python, tar and git:")
    for line in start:
        say(line)
