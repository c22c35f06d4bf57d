"""The command `npu-rl recipes`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.next_steps import tell_next
from npu_rl.cli.options import Json, Overrides, Recipe, Workspace
from npu_rl.cli.show import error_count, print_json, print_report, say, say_entry, tell

if TYPE_CHECKING:
    from npu_rl.recipes.judgement.judgement import Judgement
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe


app = group(
    "List, show, check and copy recipes.",
    {
        "list": "recipes:list_recipes",
        "show": "recipes:show",
        "check": "recipes:check",
        "copy": "recipes:copy",
        "schema": "recipes:schema",
    },
    "npu-rl recipes list",
    "npu-rl recipes copy quickstart my-recipe.yaml",
    "npu-rl recipes check ./my-recipe.yaml",
)


@examples(
    "npu-rl recipes list",
    "npu-rl recipes list --json",
    "npu-rl recipes list | grep npu",
)
def list_recipes(json: Json = False) -> None:
    """List the bundled recipes."""
    from npu_rl.common.bundled import bundled_recipes
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    rows = []
    for name, path in bundled_recipes().items():
        recipe = load_recipe(name).recipe
        rows.append(
            {
                "name": name,
                "title": recipe.title,
                "manifest": recipe.manifest,
                "device": recipe.device,
                "dies": recipe.cluster.world,
                "path": str(path),
            }
        )
    if json:
        print_json(rows)
        return
    width, manifests = (max((len(str(row[key])) for row in rows), default=0) for key in ("name", "manifest"))
    for row in rows:
        dies = f"{row['dies']} {'die' if row['dies'] == 1 else 'dies'}"
        head = f"{row['name']:<{width}} {row['device']:<4} {dies:<9}"
        piped = f"{row['manifest']:<{manifests}} {row['title']}"
        say_entry(head, f"{row['manifest']}: {row['title']}", piped)


@examples(
    "npu-rl recipes show quickstart",
    "npu-rl recipes show deepseek-r1-zero-256die optimizer.lr=2e-6",
    "npu-rl recipes show quickstart --json",
)
def show(recipe: Recipe, overrides: Overrides = None, json: Json = False) -> None:
    """Print a recipe, fully resolved.

    The result is one YAML file, with the recipes that it extends and KEY=VALUE merged. A comment on each value names
    its file and line.
    """
    from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    print_report(_to_json(loaded), recipe_yaml(loaded), as_json=json)


def _to_json(loaded: LoadedRecipe) -> dict[str, Any]:
    from npu_rl.common.masking import masked_data
    from npu_rl.common.yaml_documents.problems import dotted

    return {
        "name": loaded.recipe.name,
        "path": str(loaded.path),
        "bundled": loaded.bundled,
        "files": dict(loaded.files),
        "digest": loaded.digest,
        "recipe": masked_data(loaded.recipe.model_dump(mode="json", by_alias=True, exclude={"extends"})),
        "where": {dotted(path): str(origin) for path, origin in loaded.origins.items() if path},
    }


@examples(
    "npu-rl recipes copy quickstart",
    "npu-rl recipes copy deepseek-r1-zero-256die my-recipe.yaml",
    "npu-rl recipes copy quickstart /tmp/quickstart.yaml",
)
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

    copied = copy_recipe(name, file)
    say(str(copied.recipe))
    if copied.schema:
        say(f"{copied.schema}  (for editors that read YAML with a schema)")
    tell_next("recipes", "check", copied.recipe)
    if copied.stale:
        tell(
            f"note: {copied.stale} is from another version of npu-rl. Update it: npu-rl recipes schema > {copied.stale}"
        )


@examples(
    "npu-rl recipes check quickstart",
    "npu-rl recipes check ./my-recipe.yaml --workspace /data/r1-zero",
    "npu-rl recipes check ./my-recipe.yaml optimizer.lr=1e-6 --json",
)
def check(
    recipe: Recipe, overrides: Overrides = None, workspace: Workspace = None, json: Json = False
) -> None:
    """Check a recipe against its trainer.

    It checks the recipe's own keys, and compares each key of the trainer with the code in the workspace. The exit code
    is 1 if a value is invalid.
    """
    from npu_rl.cli import judged
    from npu_rl.common.masking import masked_text

    loaded = judged.load(recipe, overrides or [], json)
    judgement, tree = judged.judge_in(workspace, loaded, probe=True)
    if json:
        print_json(
            {
                "ok": judgement.ok,
                "recipe": loaded.recipe.name,
                "code": str(tree.code) if tree else None,
                "findings": judged.rows(judgement.findings),
                "unchecked": {**judgement.unchecked, **_absent(judgement)},
            }
        )
    else:
        judged.say_findings(judgement.findings)
        against = f"the trainer in {tree.code}" if tree else "its schema alone (no workspace)"
        verdict = error_count(len(judgement.errors))
        for what, why in judgement.unchecked.items():
            say(f"Not checked: {what} ({why})")
        for line in judgement.absent_lines:
            say(masked_text(line))
        say(f"{loaded.recipe.name}: {verdict}, checked against {against}")
    if not judgement.ok:
        raise SystemExit(1)
    if not json:
        tell_next("plan", recipe, *(overrides or []), workspace=workspace)


def _absent(judgement: Judgement) -> dict[str, str]:
    from npu_rl.common.masking import masked_text

    return {key: masked_text(f"{given} is not on this machine") for key, given in judgement.not_here.items()}


@examples(
    "npu-rl recipes schema",
    "npu-rl recipes schema > recipe.schema.json",
    "npu-rl recipes schema | head",
)
def schema() -> None:
    """Print the JSON Schema of recipes."""
    import sys

    from npu_rl.common.yaml_documents.json_schema import export_schema
    from npu_rl.recipes.recipe.schema import Recipe as Model

    sys.stdout.write(export_schema(Model, "npu-rl recipe"))
