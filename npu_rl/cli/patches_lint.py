"""The command `npu-rl patches lint`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, network
from npu_rl.cli.show import print_json, say, say_labelled, watcher

if TYPE_CHECKING:
    from npu_rl.stack.lint.patch_targets import PatchTarget


@examples(
    "npu-rl patches lint 0001-my-fix.patch",
    "npu-rl patches lint patches/verl --against ../verl   # a checkout",
    "npu-rl patches lint verl/0.5.0 --against quickstart  # bundled, at its pin",
)
def lint(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|FOLDER", help="A patch, a folder of patches, or a bundled patchset."),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="MANIFEST|DIR",
            help="Apply them, too, without writing: to the files of DIR, or at their place in the lock of MANIFEST.",
        ),
    ] = None,
    strip: Annotated[
        int | None,
        typer.Option(
            "--strip",
            min=0,
            max=20,
            metavar="N",
            help="Leading folders to drop from names.  [default: that of the lock or of `series`, else 1]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check patches before they are applied.

    It checks series, header, format and white space, and Python in new files. With --against it applies the patches,
    and checks the Python that they change.
    """
    from npu_rl.common.masking import masked_text
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.lint_patches import lint_patches

    with _against(against) as files:
        report = lint_patches(
            user_path(path, "FILE|FOLDER"), strip=strip, against=files, against_name=against
        )
    if json:
        print_json(report.to_json())
    else:
        for found in report.findings:
            say_labelled(masked_text(found.text()) + "\n")
        say(report.summary())
    if not report.ok:
        raise SystemExit(1)


@contextmanager
def _against(name: str | None) -> Iterator[PatchTarget | None]:
    """Provide the target of the check: a folder if there is one of that name, else a manifest's lock."""
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.patch_targets import LockedTrees, files_of_folder

    if name is None:
        yield None
        return
    folder = user_path(name, "--against")
    if folder.is_dir():
        with files_of_folder(folder) as files:
            yield files
        return
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.stack.compose.git_trees import Trees
    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.summary import summary_sources

    manifest = find_manifest(name)
    lock = lock_model.read(lock_model.lock_path(manifest))
    with watcher() as shown:
        delivered = summary_sources.of_manifest(lock, manifest, network(offline=False), shown, jobs=8)
    with delivered as stack, Trees(stack.repository) as trees:
        yield LockedTrees(lock, trees, manifest)
