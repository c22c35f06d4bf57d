"""The command `npu-rl summary`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Jobs, Json, ManifestOrWorkspace, Offline, Rewrite, Workspace, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import KEEPS_DOWNLOADS, if_interrupted, print_json, say, tell

if TYPE_CHECKING:
    from npu_rl.stack.sources.git_remote import Network
    from npu_rl.workspace.summary.summary_sources import StackObjects


@examples(
    "npu-rl summary --patch 0001-hf-rollout-repeats-once",
    "npu-rl summary -m deepseek-v3-cann --import-time",
)
def summary(
    manifest: ManifestOrWorkspace = None,
    workspace: Workspace = None,
    patch: Annotated[
        str | None, typer.Option("--patch", metavar="NAME", help="Only this patch or pull request.")
    ] = None,
    import_time: Annotated[
        bool,
        typer.Option("--import-time", help="Add what packages rebind in others when they are imported."),
    ] = False,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Print what patches change in Python.

    It lists the classes, methods, functions, attributes and imports that each patch and pull request adds, removes or
    replaces, from the code before and after it. The patches are those of a workspace, or of a manifest's lock.
    """
    from npu_rl.common.errors import UsageError
    from npu_rl.workspace.summary.stack_summary import stack_summary
    from npu_rl.workspace.summary.summary_text import summary_lines

    if_interrupted(KEEPS_DOWNLOADS)
    if manifest is not None and workspace is not None:
        raise UsageError("--manifest and --workspace name different stacks", hint="Give one of them.")
    fetching = network(rewrite, offline=offline)
    with Fetches() as shown, _objects(manifest, workspace, fetching, shown, jobs) as stack:
        found = stack_summary(stack.lock, stack.repository, stack.texts, patch, import_time=import_time)
    if json:
        print_json(found)
        return
    for line in summary_lines(found):
        say(line)


def _objects(
    manifest: str | None, workspace: Path | None, fetching: Network, shown: Fetches, jobs: int
) -> AbstractContextManager[StackObjects]:
    from npu_rl.workspace.summary import summary_sources

    if manifest is None:
        from npu_rl.workspace.folder.discovery import open_workspace

        return summary_sources.of_workspace(open_workspace(workspace, tell))
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.stack.lock import lock_model

    path = find_manifest(manifest)
    lock = lock_model.read(lock_model.lock_path(path))
    return summary_sources.of_manifest(lock, path, fetching, shown, jobs=jobs)
