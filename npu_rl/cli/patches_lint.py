"""The command `npu-rl patches lint`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, network
from npu_rl.cli.show import print_json, say, say_labelled, tell, watcher

if TYPE_CHECKING:
    from npu_rl.stack.lint.lint_patches import Against


@examples(
    "npu-rl patches lint 0001-my-fix.patch --fix",
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
            help="Leading folders to drop from names.  [default: that of the lock, else 1]",
        ),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Write what is mechanical: counts, line ends of the patch, the last newline."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check patches before they are applied.

    It checks header, series, numbering, format, white space and line ends. With --against it also checks where they
    apply.
    """
    from npu_rl.common.masking import masked_text
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.lint_patches import lint_patches

    with _against(against) as files:
        report = lint_patches(
            user_path(path, "FILE|FOLDER"), strip=strip, fix=fix, against=files, against_name=against
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
def _against(name: str | None) -> Iterator[Against | None]:
    """Provide the target of the check: a folder if there is one of that name, else a manifest's lock."""
    from npu_rl.common.user_path import user_path

    if name is None:
        yield None
        return
    folder = user_path(name, "--against")
    if folder.is_dir():
        from npu_rl.stack.lint.lint_patches import AgainstFolder

        yield AgainstFolder(folder)
        return
    from npu_rl.stack.compose.git_trees import Trees
    from npu_rl.stack.lint.locked_series import LockedSeries
    from npu_rl.stack.lint.upstream_releases import UpstreamReleases
    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.manifest.manifest_kind import find_manifest
    from npu_rl.stack.resolve.upstream_repository import Context
    from npu_rl.stack.sources.progress import Silent
    from npu_rl.stack.store import Store
    from npu_rl.workspace.summary import summary_sources

    manifest = find_manifest(name)
    lock = lock_model.read(lock_model.lock_path(manifest))
    fetching = network(offline=False)
    with watcher() as shown:
        delivered = summary_sources.of_manifest(lock, manifest, fetching, shown, jobs=8)
    context = Context(Store(), fetching, Silent(), tell, manifest.parent)
    with ExitStack() as opened:
        stack = opened.enter_context(delivered)
        trees = opened.enter_context(Trees(stack.repository))
        releases = {
            name: opened.enter_context(closing(UpstreamReleases(context, name, component)))
            for name, component in lock.components.items()
        }
        yield LockedSeries(lock, trees, manifest, releases)
