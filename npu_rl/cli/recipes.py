"""The commands `npu-rl recipes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json, Overrides, Recipe, Workspace
from npu_rl.cli.show import error_count, print_json, print_report, say, tell, tell_next

app = group(
    "List, show, check and copy recipes.",
    {
        "list": "recipes:list_recipes",
        "show": "recipes:show",
        "check": "recipes:check",
        "copy": "recipes:copy",
    },
)


@examples("npu-rl recipes list | grep npu")
def list_recipes(json: Json = False) -> None:
    """List the bundled recipes."""
    from npu_rl.recipes.recipe.load_recipe import listed_recipes

    rows = listed_recipes()
    if json:
        print_json(rows)
        return
    width, manifests = (max(len(getattr(row, key)) for row in rows) for key in ("name", "manifest"))
    for row in rows:
        dies = f"{row.dies} {'die' if row.dies == 1 else 'dies'}"
        say(f"{row.name:<{width}} {row.device:<4} {dies:<9} {row.manifest:<{manifests}} {row.title}")


@examples("npu-rl recipes show deepseek-r1-zero-256die optimizer.lr=2e-6")
def show(recipe: Recipe, overrides: Overrides = None, json: Json = False) -> None:
    """Print a recipe, fully resolved.

    The result is one YAML file, with the recipes that it extends and KEY=VALUE merged. A comment on each value names
    its file and line.
    """
    from npu_rl.recipes.recipe.dump_recipe import recipe_yaml, shown_recipe
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    print_report(shown_recipe(loaded) if json else None, lambda: recipe_yaml(loaded), as_json=json)


@examples("npu-rl recipes copy deepseek-r1-zero-256die my-recipe.yaml")
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled recipe.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Path of the copy.  [default: NAME.yaml in this folder]"),
    ] = None,
) -> None:
    """Copy a bundled recipe to edit.

    Its schema is written beside it, for editors that complete keys. Nothing is overwritten.
    """
    from npu_rl.recipes.recipe.copy_recipe import copy_recipe

    copied, *schema = copy_recipe(name, file)
    say(str(copied))
    for path in schema:
        say(f"{path}  (for editors that read YAML with a schema)")
    tell_next("recipes", "check", copied)


@examples("npu-rl recipes check ./my-recipe.yaml optimizer.lr=1e-6 --workspace /data/r1-zero")
def check(
    recipe: Recipe, overrides: Overrides = None, workspace: Workspace = None, json: Json = False
) -> None:
    """Check a recipe against its trainer.

    It checks the recipe's own keys, and compares each key of the trainer with the code in the workspace. The exit code
    is 1 if a value is invalid.
    """
    from npu_rl.cli import judged
    from npu_rl.common.masking import masked_text
    from npu_rl.training.run.judge_in_workspace import judge_in_workspace

    loaded = judged.load(recipe, overrides or [], json)
    judgement, tree = judge_in_workspace(workspace, loaded, tell, probe=True)
    if json:
        print_json(judgement.checked(tree))
    else:
        judged.say_findings(judgement.findings)
        for what, why in judgement.unchecked.items():
            say(f"Not checked: {what} ({why})")
        for line in judgement.absent_lines:
            say(masked_text(line))
        against = f"the trainer in {tree.code}" if tree else "its schema alone (no workspace)"
        say(f"{loaded.recipe.name}: {error_count(len(judgement.errors))}, checked against {against}")
    if not judgement.ok:
        raise SystemExit(1)
    if not json:
        tell_next("plan", recipe, *(overrides or []), workspace=workspace)
