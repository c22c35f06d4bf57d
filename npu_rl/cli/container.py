"""The command `npu-rl container`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Manifest, PythonVersion
from npu_rl.cli.show import say_text, tell


@examples(
    "npu-rl container --manifest today > Dockerfile",
    "npu-rl container -m today --run-line          # with 16 dies of an A3",
    "npu-rl container -m today --run-line --kind a2",
)
def container(
    manifest: Manifest,
    run_line: Annotated[
        bool,
        typer.Option("--run-line", help="Print the docker run line instead: devices, driver, limits."),
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Atlas generation of an NPU image: a3 or a2.  [default: that of the manifest's image, else a3]",
        ),
    ] = None,
    python: PythonVersion = None,
) -> None:
    """Print a Dockerfile for a manifest.

    Its image has the tree, the locked packages, npu-rl and jemalloc; the driver stays the host's. Nothing is built or
    started here.
    """
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.training.container import container_notes
    from npu_rl.training.container.base_image import container_machine
    from npu_rl.training.container.dockerfile import dockerfile
    from npu_rl.training.container.run_line import docker_run

    loaded = load_manifest(manifest)
    machine = container_machine(loaded, kind)
    if run_line:
        text, notes = docker_run(loaded, machine), container_notes.of_run(loaded, kind)
    else:
        text, notes = dockerfile(loaded, manifest, python), container_notes.of_build(loaded)
    for note in notes:
        tell(f"note: {note}")
    say_text(text)
