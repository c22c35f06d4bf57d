"""npu-rl recipes"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.cli import judged
from npu_rl.cli.show import print_json, say, say_text, tell

if TYPE_CHECKING:
    from npu_rl.recipes.load_recipe import LoadedRecipe


def list_bundled(as_json: bool) -> None:
    from npu_rl.bundled import bundled_recipes
    from npu_rl.recipes.load_recipe import load_recipe

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
    if as_json:
        print_json(rows)
        return
    width = max((len(str(row["name"])) for row in rows), default=0)
    for row in rows:
        dies = f"{row['dies']} {'die' if row['dies'] == 1 else 'dies'}"
        say(f"{row['name']:<{width}} {row['device']:<4} {dies:<9} {row['manifest']:<18} {row['title']}")


def show(name: str, overrides: Sequence[str], as_json: bool) -> None:
    from npu_rl.recipes.dump_recipe import recipe_yaml
    from npu_rl.recipes.load_recipe import load_recipe

    loaded = load_recipe(name, overrides)
    if as_json:
        print_json(_to_json(loaded))
    else:
        say_text(recipe_yaml(loaded))


def _to_json(loaded: LoadedRecipe) -> dict[str, Any]:
    from npu_rl.config.problems import dotted
    from npu_rl.masking import masked_data

    return {
        "name": loaded.recipe.name,
        "path": str(loaded.path),
        "bundled": loaded.bundled,
        "files": dict(loaded.files),
        "digest": loaded.digest,
        "recipe": masked_data(loaded.recipe.model_dump(mode="json", by_alias=True, exclude={"extends"})),
        "where": {dotted(path): str(origin) for path, origin in loaded.origins.items() if path},
    }


def copy(name: str, target: Path | None) -> None:
    from npu_rl.recipes.copy_recipe import copy_recipe

    copied = copy_recipe(name, target)
    say(str(copied.recipe))
    if copied.schema:
        say(f"{copied.schema}  (for editors that read YAML with a schema)")
    if copied.stale:
        tell(f"note: {copied.stale} is of another npu-rl. Renew it: npu-rl schema --recipe > {copied.stale}")


def check(name: str, overrides: Sequence[str], workspace: Path | None, as_json: bool) -> None:
    from npu_rl.judgement.judge import judge

    loaded = judged.load(name, overrides, as_json)
    tree = judged.tree_of(workspace)
    judgement = judge(loaded, tree)
    if as_json:
        print_json(
            {
                "ok": judgement.ok,
                "recipe": loaded.recipe.name,
                "code": str(tree.code) if tree else None,
                "findings": judged.rows(judgement.findings),
                "unchecked": dict(judgement.unchecked),
            }
        )
    else:
        judged.say_findings(judgement.findings)
        against = f"the trainer in {tree.code}" if tree else "its schema alone (no workspace)"
        count = len(judgement.errors)
        verdict = f"{count} {'error' if count == 1 else 'errors'}" if count else "no error"
        unchecked = "; ".join(f"{section} ({why})" for section, why in judgement.unchecked.items())
        without = f", without {unchecked}" if unchecked else ""
        say(f"{loaded.recipe.name}: {verdict}, checked against {against}{without}")
    if not judgement.ok:
        raise SystemExit(1)
