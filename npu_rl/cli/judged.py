"""Loading of a recipe, and printing of findings, for all commands that judge a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from npu_rl.cli.show import print_json, say

if TYPE_CHECKING:
    from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
    from npu_rl.common.yaml_documents.finding import Finding
    from npu_rl.recipes.judgement.judgement import AssembledTree
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe


def load(name: str, overrides: Sequence[str], as_json: bool) -> LoadedRecipe:
    """Load a recipe. as_json: print its errors as findings and exit, instead of raising InvalidRecipe."""
    from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
    from npu_rl.recipes.judgement.judgement import CheckedRecipe
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    try:
        return load_recipe(name, overrides)
    except InvalidRecipe as error:
        if not as_json:
            raise
        print_json(CheckedRecipe(name, None, _problems(error)))
        raise SystemExit(error.exit_code) from None


def say_findings(findings: Iterable[Finding]) -> None:
    """Print findings, without secrets."""
    from npu_rl.common.masking import masked_text

    for found in findings:
        for line in found.lines():
            say(masked_text(line))


def say_faults(loaded: LoadedRecipe, tree: AssembledTree | None) -> None:
    """Print one line on the known faults of the tree, if there is one, unless the recipe is for another manifest."""
    from npu_rl.recipes.judgement.fault_findings import faults_line_of

    if tree is None or tree.stack is None:
        return
    here = loaded.in_stack(tree.stack)
    line = faults_line_of(here, tree.code) if here.stack else ""
    if line:
        say(line)


def _problems(error: InvalidRecipe) -> tuple[Finding, ...]:
    from npu_rl.common.yaml_documents.finding import Finding, Severity
    from npu_rl.common.yaml_documents.problems import dotted, place

    found = []
    for one in error.problems:
        meant = " or ".join(one.suggestions)
        fix = f"write {meant} in place of {dotted(one.path)}" if meant else ""
        where = place(one.file, one.line)
        found.append(Finding("invalid-recipe", Severity.ERROR, one.path, "", one.message, fix, where))
    return tuple(found)
