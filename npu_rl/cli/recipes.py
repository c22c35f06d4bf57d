"""npu-rl recipes"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.cli.show import print_json, say, say_text, tell

if TYPE_CHECKING:
    from npu_rl.recipes.check import Finding, Findings
    from npu_rl.recipes.find import InvalidRecipe
    from npu_rl.recipes.load import LoadedRecipe


def list_bundled(as_json: bool) -> None:
    from npu_rl.data import bundled_recipes
    from npu_rl.recipes.load import load_recipe

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
    from npu_rl.recipes.load import load_recipe
    from npu_rl.recipes.text import recipe_yaml

    loaded = load_recipe(name, overrides)
    if as_json:
        print_json(_to_json(loaded))
    else:
        say_text(recipe_yaml(loaded))


def _to_json(loaded: LoadedRecipe) -> dict[str, Any]:
    from npu_rl.manifest.problems import dotted
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
    from npu_rl.recipes.copy import copy_recipe

    copied = copy_recipe(name, target)
    say(str(copied.recipe))
    if copied.schema:
        say(f"{copied.schema}  (for editors that read YAML with a schema)")
    if copied.stale:
        tell(f"note: {copied.stale} is of another npu-rl. Renew it: npu-rl schema --recipe > {copied.stale}")


def check(name: str, overrides: Sequence[str], workspace: Path | None, as_json: bool) -> None:
    from npu_rl.recipes.check import check_recipe
    from npu_rl.recipes.find import InvalidRecipe
    from npu_rl.recipes.load import load_recipe

    try:
        loaded = load_recipe(name, overrides)
    except InvalidRecipe as error:
        if not as_json:
            raise
        print_json({"ok": False, "recipe": name, "code": None, "errors": _problems(error), "notes": []})
        raise SystemExit(1) from None
    code = workspace_code(workspace)
    findings = check_recipe(loaded, code)
    if as_json:
        print_json(
            {
                "ok": not findings.errors,
                "recipe": loaded.recipe.name,
                "code": str(code) if code else None,
                "errors": [_row(finding) for finding in findings.errors],
                "notes": [_row(finding) for finding in findings.notes],
            }
        )
    else:
        _print(loaded, findings, code)
    if findings.errors:
        raise SystemExit(1)


def workspace_code(workspace: Path | None) -> Path | None:
    """The code folder of the workspace named, or of the one that is found; None if there is none."""
    from npu_rl.workspace.discovery import open_any

    layout = open_any(workspace, tell)
    return layout.code if layout else None


def _problems(error: InvalidRecipe) -> list[dict[str, Any]]:
    from npu_rl.manifest.problems import dotted, place

    return [
        {
            "path": dotted(problem.path),
            "key": None,
            "message": problem.message,
            "where": place(problem.file, problem.line),
            "kind": "recipe",
        }
        for problem in error.problems
    ]


def _row(finding: Finding) -> dict[str, Any]:
    from npu_rl.manifest.problems import dotted
    from npu_rl.masking import masked_text

    return {
        "path": dotted(finding.path),
        "key": finding.key,
        "message": masked_text(finding.message),
        "where": finding.where,
        "kind": finding.kind,
    }


def _print(loaded: LoadedRecipe, findings: Findings, code: Path | None) -> None:
    from npu_rl.masking import masked_text

    for title, found in (("error", findings.errors), ("note", findings.notes)):
        for finding in found:
            say(masked_text(f"{title}: {finding}"))
    against = f"the trainer in {code}" if code else "its schema alone (no workspace)"
    count = len(findings.errors)
    verdict = f"{count} {'error' if count == 1 else 'errors'}" if count else "no error"
    say(f"{loaded.recipe.name}: {verdict}, checked against {against}")
