"""The command `npu-rl bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.next_steps import STARTS_OVER, command_line, if_interrupted
from npu_rl.cli.options import Jobs, Json, Offline, Rewrite, VerifyWith, manifest_names, network
from npu_rl.cli.show import amount, print_json, say, watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_rl.stack.bundles.read_bundle import OpenBundle
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.pylocks.pylock_targets import Target

app = group(
    "Set up hosts without a network.",
    {"create": "bundle:create", "show": "bundle:show"},
    "npu-rl bundle create quickstart -o quickstart.tar",
    "npu-rl bundle show quickstart.tar",
    "npu-rl setup --bundle quickstart.tar   # on the other host",
)


@examples(
    "npu-rl bundle create quickstart -o quickstart.tar",
    "npu-rl bundle create today newest -o both.tar --wheels --platform aarch64",
    "npu-rl bundle create ./mine.yaml -o mine.tar --sign ~/.ssh/id_ed25519",
)
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
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign it with this SSH key, by ssh-keygen."),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Write stacks into one file.

    The file has the manifests with their locks, git objects, sdists and patches, and npu-rl's own wheel with all that
    it needs. `npu-rl bundle show FILE` prints how a host without a network starts from it.
    """
    from functools import partial

    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.create_bundle import BundleOrder, create_bundle
    from npu_rl.stack.bundles.program_packages import add_program
    from npu_rl.stack.manifest.load_manifest import load_manifest

    ordered = []
    for named in manifests:
        loaded = load_manifest(named)
        ordered.append((named, loaded, _targets(loaded, python or [None], platform or [None])))
    key = user_path(sign, "--sign") if sign is not None else None
    order = BundleOrder(ordered, wheels, user_path(output, "--output"), key, jobs)
    if_interrupted(STARTS_OVER)
    with watcher() as shown:
        program = partial(add_program, offline=offline, installer=wheels)
        made = create_bundle(order, network(rewrite, offline=offline), shown, program)
    if json:
        print_json({"path": str(order.output), "id": made.id, "bytes": made.size, "kinds": dict(made.sizes)})
        return
    for kind, size in made.sizes.items():
        say(f"  {kind:<10} {amount(size):>10}")
    say(f"{order.output}: {amount(made.size)}, id {made.id}")
    say(f"Next: {command_line('bundle', 'show', order.output)}")


def _targets(
    loaded: LoadedManifest, pythons: Sequence[str | None], machines: Sequence[str | None]
) -> list[Target]:
    from npu_rl.stack.pylocks.pylock_targets import choose_target, targets

    known = targets(loaded.manifest.device, loaded.manifest.host.python)
    options = ("--python", "--platform")
    found = [choose_target(known, python, machine, options) for python in pythons for machine in machines]
    return list(dict.fromkeys(found))


@examples(
    "npu-rl bundle show quickstart.tar",
    "npu-rl bundle show quickstart.tar --verify-with allowed_signers",
    "npu-rl bundle show quickstart.tar --json",
)
def show(
    bundle_file: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle.")],
    verify_with: VerifyWith = None,
    json: Json = False,
) -> None:
    """Show a bundle and its use.

    The whole bundle is read and checked against its list of hashes. Two printed lines set it up on a host with only
    Python and git.
    """
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.create_bundle import sizes_by_kind
    from npu_rl.stack.bundles.read_bundle import open_bundle
    from npu_rl.stack.bundles.start_lines import host_line, packages_line, start_lines
    from npu_rl.stack.requirements.host_requirements import named_host_requirements

    signers = user_path(verify_with, "--verify-with") if verify_with is not None else None
    with open_bundle(user_path(bundle_file), signers) as bundle:
        kinds = sizes_by_kind(bundle.facts.sizes)
        lines = start_lines(bundle.facts, bundle_file, str(verify_with) if verify_with is not None else None)
        packages = packages_line(bundle.facts)
        lock = bundle.locks[bundle.facts.stacks[0].name]
        missing = list(map(str, named_host_requirements(lock.host, lock.requirements).values()))
        if json:
            print_json(_json(bundle, kinds, [*lines, *([packages] if packages else [])], missing))
            return
    say(f"{bundle_file}: {amount(bundle.size)}, made by npu-rl {bundle.facts.npu_rl}; all of its hashes hold")
    say(f"  id        {bundle.facts.id}")
    say(f"  list      {bundle.list_hash}")
    say(f"  signed    {_signed(bundle)}")
    for stack in bundle.facts.stacks:
        say(f"  manifest  {stack.name}  lock {stack.lock}")
    for host in bundle.facts.hosts:
        say(f"  host      Python {host.python} on {host.machine}")
    for kind, size in kinds.items():
        say(f"  {kind:<9} {amount(size)}")
    say("On a host with Python and git:")
    for line in lines:
        say(line, whole=True)
    if packages:
        say("The packages to train with, into the same environment:")
        say(packages, whole=True)
    if packages and missing:
        say(f"Not in it, since the host brings them: {', '.join(missing)}. With wheels of your own:")
        say(host_line(bundle.facts), whole=True)


def _signed(bundle: OpenBundle) -> str:
    if bundle.signer is not None:
        return f"by {bundle.signer}"
    return "yes; --verify-with names the signer" if bundle.is_signed else "no"


def _json(bundle: OpenBundle, kinds: dict[str, int], lines: list[str], missing: list[str]) -> dict[str, Any]:
    facts = bundle.facts
    return {
        "path": str(bundle.path),
        "id": facts.id,
        "bytes": bundle.size,
        "npu_rl": facts.npu_rl,
        "list": bundle.list_hash,
        "signed": bundle.is_signed,
        "signer": bundle.signer,
        "manifests": [
            {"name": one.name, "lock": one.lock, "path": one.path, "shipped": one.shipped}
            for one in facts.stacks
        ],
        "hosts": [{"python": one.python, "machine": one.machine} for one in facts.hosts],
        "kinds": kinds,
        "files": [
            {"name": name, "bytes": size, "sha256": bundle.hashes[name]}
            for name, size in sorted(facts.sizes.items())
        ],
        "start": lines,
        "of_the_host": missing,
    }
