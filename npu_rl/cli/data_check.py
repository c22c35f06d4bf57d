"""The command `npu-rl data check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_next
from npu_rl.cli.options import Json, Overrides, Python, Tokenizer, Workspace
from npu_rl.cli.show import error_count, print_json, say, tell

if TYPE_CHECKING:
    from npu_rl.common.yaml_documents.finding import Finding
    from npu_rl.data.data_check.check_data import Checked
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@examples(
    "npu-rl data check ds --recipe deepseek-r1-zero-256die",
    "npu-rl data check gsm8k --recipe ./my-recipe.yaml --tokenizer model",
    "npu-rl data check ds --recipe quickstart data.batch=64 --json",
)
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that data prepare made.")],
    overrides: Overrides = None,
    recipe: Annotated[
        str,
        typer.Option("--recipe", metavar="RECIPE", help="The recipe that will train on it."),
    ] = ...,  # type: ignore[assignment]
    tokenizer: Tokenizer = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Check training data against a recipe.

    It checks columns, rows, data sources, the instructions in the prompts and their lengths, and runs the
    recipe's reward on right, wrong and empty responses. The exit code is 1 if the training could not use the
    data.
    """
    from npu_rl.cli import judged, proving
    from npu_rl.common.user_path import user_path
    from npu_rl.common.yaml_documents.finding import Severity
    from npu_rl.data.data_check.check_data import data_findings
    from npu_rl.data.data_check.gather import gather
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    loaded = judged.load(recipe, overrides or [], json)
    paths = open_workspace_if_any(workspace, tell)
    if paths is not None:
        _require_same_manifest(loaded, paths)
        proving.require_proven(paths, "its reward may not be that of a run")
    named = user_path(tokenizer, "--tokenizer").absolute() if tokenizer else None
    place = user_path(folder, "DIR").absolute()
    if_interrupted(STARTS_OVER)
    checked = gather(loaded, place, paths, python, named, tell)
    findings = data_findings(loaded, checked)
    ok = not any(one.severity is Severity.ERROR for one in findings)
    if json:
        print_json(
            {
                "ok": ok,
                "recipe": loaded.recipe.name,
                "files": [_file_row(file) for file in checked.files],
                "reward": [
                    {
                        "data_source": one.data_source,
                        "ground_truth": one.truth,
                        "scores": dict(one.scores),
                    }
                    for one in checked.trials
                ],
                "lengths": checked.lengths,
                "findings": judged.rows(findings),
                "unchecked": checked.unchecked,
            }
        )
    else:
        _say(checked, findings)
    if not ok:
        raise SystemExit(1)
    if not json:
        tell_next("plan", recipe, *(overrides or []), workspace=workspace)


def _require_same_manifest(loaded: LoadedRecipe, paths: WorkspacePaths) -> None:
    from npu_rl.common.errors import UsageError
    from npu_rl.workspace.folder.locked_manifest import stack_of

    wanted, stack = loaded.manifest_name, stack_of(paths)
    if loaded.in_stack(stack).stack is None:
        raise UsageError(
            f"The recipe is for the manifest {wanted}, and the workspace is {stack.name}",
            where=str(paths.root),
            hint=f"Name a workspace of {wanted}: --workspace DIR",
        )


def _file_row(file: Any) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "rows": file.rows,
        "data_sources": dict(file.sources),
        "repeated": file.repeated,
    }


def _say(checked: Checked, findings: list[Finding]) -> None:
    from npu_rl.cli import judged
    from npu_rl.common.yaml_documents.finding import Severity

    for file in checked.files:
        sources = ", ".join(f"{count} of {source}" for source, count in sorted(file.sources.items()))
        say(f"{file.path}: {file.rows} rows" + (f"; {sources}" if sources else ""))
        counts = (checked.lengths or {"files": {}})["files"].get(file.path.name)
        if counts:
            say(f"  tokens per prompt: {counts['mean']} on average, {counts['longest']} at most")
    for source in dict.fromkeys(one.data_source for one in checked.trials):
        trial = next(one for one in checked.trials if one.data_source == source)
        scores = ", ".join(
            f"{name} {score if isinstance(score, float) else 'raises'}"
            for name, score in trial.scores.items()
        )
        say(f"reward for {source}, right answer {trial.truth!r}: {scores}")
    judged.say_findings(findings)
    for what, why in checked.unchecked.items():
        say(f"not checked: {what}: {why}")
    errors = sum(one.severity is Severity.ERROR for one in findings)
    say(error_count(errors))
