"""The command `npu-rl patches`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json
from npu_rl.cli.show import print_json, print_report, say, say_entry, say_text

if TYPE_CHECKING:
    from npu_rl.stack.patches.patch_table import PatchRow


app = group(
    "List, check, export and port patches.",
    {
        "list": "patches:list_patches",
        "show": "patches:show",
        "new": "patches_new:new",
        "export": "patches_export:export",
        "lint": "patches_lint:lint",
        "port": "patches_port:port",
    },
    "npu-rl patches list",
    "npu-rl patches show 0001-attention-scale",
    "npu-rl patches export",
)


def _names() -> list[str]:
    from npu_rl.common.bundled import data_root

    return sorted(path.stem for path in (data_root() / "patchsets").rglob("*.patch"))


@examples(
    "npu-rl patches list",
    "npu-rl patches list --json   # with tests, and what only an NPU can show",
    "npu-rl patches list | less -S   # one line a patch, with its versions",
)
def list_patches(json: Json = False) -> None:
    """List the bundled patches.

    Each entry has the patch's state in later versions. present: the patchset of that version has it. upstream: the
    version has its change. gone: a file that it changes is missing there. retired: it was dropped for another reason.
    """
    from npu_rl.common.bundled import data_root
    from npu_rl.stack.patches.version_columns import read_versions, version_entries, version_lines

    if json:
        print_json(_rows_json())
        return
    versions = read_versions(data_root() / "patchsets")
    if sys.stdout.isatty():
        for head, text in version_entries(_rows(), versions):
            say_entry(head, text)
        return
    for line in version_lines(_rows(), versions):
        say(line)


@examples(
    "npu-rl patches show 0001-attention-scale",
    "npu-rl patches show hf-rollout-repeats-once     # by the adaptation it makes",
    "npu-rl patches show 0001-attention-scale --json",
)
def show(
    patch: Annotated[
        str,
        typer.Argument(
            metavar="PATCH",
            help="A patch's name (see `npu-rl patches list`), or an adaptation's.",
            autocompletion=_names,
        ),
    ],
    json: Json = False,
) -> None:
    """Print a bundled patch, header first."""
    from npu_rl.common.bundled import data_root

    wanted = patch.removesuffix(".patch")
    rows = _rows()
    found = [row for row in rows if wanted in (row.patch.removesuffix(".patch"), *row.adaptation)]
    if not found:
        raise _unknown(patch, rows)
    files = [data_root() / "patchsets" / Path(*row.version.split(" ", 1)) / row.patch for row in found]
    if json:
        print_json([{**row.to_json(), "path": str(file)} for row, file in zip(found, files, strict=True)])
        return
    for file in files:
        say_text(file.read_text(encoding="utf-8", errors="backslashreplace"))


def table(as_json: bool) -> None:
    """Print every bundled patch as the Markdown table of patchsets/README.md."""
    from npu_rl.stack.patches.patch_table import patch_table

    print_report(_rows_json(), patch_table(_rows()), as_json=as_json)


def _rows_json() -> list[dict[str, Any]]:
    from npu_rl.common.bundled import data_root
    from npu_rl.stack.patches.patch_names import slug_of_file
    from npu_rl.stack.patches.version_columns import read_versions

    versions = read_versions(data_root() / "patchsets")
    fates = {name: one.patches for name, one in versions.items()}
    return [{**row.to_json(), "versions": fates[row.component][slug_of_file(row.patch)]} for row in _rows()]


def _rows() -> list[PatchRow]:
    from npu_rl.common.bundled import data_root
    from npu_rl.stack.patches.patch_table import patch_rows

    return patch_rows(data_root() / "patchsets")


def _unknown(patch: str, rows: list[PatchRow]) -> Exception:
    from npu_rl.common.errors import PatchError
    from npu_rl.common.yaml_documents.suggest import did_you_mean

    names = [name for row in rows for name in (row.patch.removesuffix(".patch"), *row.adaptation)]
    return PatchError(
        f"Unknown bundled patch {patch!r}{did_you_mean(patch, names)}",
        hint="List them: npu-rl patches list",
    )
