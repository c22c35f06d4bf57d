"""Commands under their names before `manifests`, `recipes` and `patches`: they still work but are not listed."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json


@examples(
    "npu-rl list             # now: npu-rl manifests list",
    "npu-rl list --patches   # now: npu-rl patches list, which is shorter",
    "npu-rl list --json      # now: npu-rl manifests list --json",
)
def list_bundled(
    patches: Annotated[
        bool, typer.Option("--patches", help="List the bundled patches instead, as a Markdown table.")
    ] = False,
    json: Json = False,
) -> None:
    """List the bundled manifests or patches."""
    if patches:
        from npu_rl.cli.patches import table

        table(json)
        return
    from npu_rl.cli.manifests import list_manifests

    list_manifests(json)


@examples(
    "npu-rl schema                      # now: npu-rl manifests schema",
    "npu-rl schema --recipe             # now: npu-rl recipes schema",
    "npu-rl schema > manifest.schema.json",
)
def schema(
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the schema of recipes instead.")] = False,
) -> None:
    """Print the JSON Schema for editors."""
    if recipe:
        from npu_rl.cli.recipes import schema as recipe_schema

        recipe_schema()
        return
    from npu_rl.cli.manifests import schema as manifest_schema

    manifest_schema()
