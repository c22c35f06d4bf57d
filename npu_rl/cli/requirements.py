"""The command `npu-rl requirements`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import ManifestOrWorkspace, PythonVersion, Workspace
from npu_rl.cli.show import STARTS_OVER, if_interrupted, say, say_text, tell


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
