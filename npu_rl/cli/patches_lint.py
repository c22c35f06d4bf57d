"""The command `npu-rl patches lint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json
from npu_rl.cli.show import print_json, say, say_text


@examples(
    "npu-rl patches lint 0001-my-fix.patch",
    "npu-rl patches lint patches/verl --fix",
    "npu-rl patches lint verl/0.5.0 --json   # a bundled patchset",
)
def lint(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|FOLDER", help="A patch, a folder of patches, or a bundled patchset."),
    ],
    strip: Annotated[
        int | None,
        typer.Option(
            "--strip", min=0, max=20, metavar="N", help="Leading folders to drop from names.  [default: 1]"
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

    Header, series, numbering, format, white space and line ends.
    """
    from npu_rl.common.masking import masked_text
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.lint_patches import lint_patches

    report = lint_patches(user_path(path, "FILE|FOLDER"), strip=1 if strip is None else strip, fix=fix)
    if json:
        print_json(report.to_json())
    else:
        for found in report.findings:
            say_text(masked_text(found.text()) + "\n")
        say(report.summary())
    if not report.ok:
        raise SystemExit(1)
