"""Check of training data made by `npu-rl data prepare`, based on its report, without reading rows.

Every command that judges a recipe runs it, so it may take a few milliseconds. `npu-rl data check` reads the rows and
calls the reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.common.bounded import open_file, read_file, read_json
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.missing_files import is_there, local_path
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import split_function
from npu_rl.recipes.trainer_code.overlong_prompts import where_cut_left

_REPORT = "prepared.json"
_LARGEST_REPORT = 8 << 20
_OURS = "npu_rl_runtime/rewards/deepscaler.py"
_DEFAULT = "verl/utils/reward_score/__init__.py"
_MAGIC = b"PAR1"


class _Found(NamedTuple):
    rule: str
    message: str
    fix: str
    severity: Severity = Severity.ERROR


def prepared_data_findings(loaded: LoadedRecipe, code: Path | None) -> list[Finding]:
    """Return the findings on those data files of the recipe that are on this machine.

    Args:
        code: The workspace's code folder; None leaves out whether the reward knows the data.
    """
    data = loaded.recipe.data
    return [
        loaded.finding(one.rule, one.severity, ("data", part, index), one.message, one.fix)
        for part, files in (("train", data.train), ("test", data.test))
        for index, named in enumerate(files or ())
        if (path := local_path(loaded, named)) is not None and is_there(path.is_file)
        for one in _of_file(loaded, code, path)
    ]


def _of_file(loaded: LoadedRecipe, code: Path | None, path: Path) -> Iterator[_Found]:
    from npu_rl.data.datasets.known_datasets import DATASETS

    if path.suffix == ".parquet" and not _is_whole(path):
        message = f"{str(path)!r} is not a whole Parquet file"
        yield _Found("data-parquet", message, "prepare it again: npu-rl data prepare")
        return
    report = _report(path)
    source, asks_for = str(report.get("data_source")), report.get("asks_for")
    if report and _scores(loaded, code, source) is False:
        message = f"its data source is {source}, which the reward does not score"
        fix = f"see what it scores: npu-rl data check {path.parent} --recipe {loaded.recipe.name}"
        yield _Found("data-source", message, fix)
    known = DATASETS.get(str(report.get("dataset")))
    if known is not None and asks_for not in (None, known.looks_for):
        looks = f"the reward of {known.data_source} expects {known.looks_for}"
        message = f"its prompts ask for {asks_for or 'no form of answer'}, and {looks}"
        yield _Found("data-template", message, f"make it with --template {known.template}", Severity.ADVICE)
    data = loaded.recipe.data
    try:
        longest = int(report["lengths"]["files"][path.name]["longest"])
    except (KeyError, TypeError, ValueError):
        return
    limit, cuts = data.prompt_length, data.overlong not in (None, "error")
    if limit is not None and longest > limit and not (data.filter_overlong or cuts):
        cut = where_cut_left(code)
        message = f"its longest prompt has {longest} tokens, more than data.prompt_length = {limit}: verl "
        message += f"cuts it at its left ({cut})" if cut else "raises there"
        fix = "set data.filter_overlong=true, or raise data.prompt_length"
        yield _Found("data-prompt-length", message, fix, Severity.ADVICE if cut else Severity.ERROR)


def _report(path: Path) -> Mapping[str, Any]:
    """Return the report beside a file; empty if there is none, or the file's size has changed since."""
    try:
        report: Mapping[str, Any] = read_json(path.with_name(_REPORT), _LARGEST_REPORT)
        return report if report["files"][path.name]["bytes"] == path.stat().st_size else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _scores(loaded: LoadedRecipe, code: Path | None, source: str) -> bool | None:
    """Return whether the reward function scores a data source; None if only a call would show it."""
    reward = loaded.recipe.reward
    if reward.function:
        own = split_function(reward.function)[0] != _OURS
        return None if own else source == "deepscaler" or bool(reward.arguments.get("any_source"))
    try:
        text = read_file(code / _DEFAULT).decode("utf-8", "replace") if code is not None else None
    except (OSError, ValueError):
        text = None
    if text is None:
        return None
    ours = "deepscaler.scores(" in text and loaded.recipe.adaptations.get("deepscaler-reward", True)
    return f'"{source}"' in text or f"'{source}'" in text or (ours and source == "deepscaler")


def _is_whole(path: Path) -> bool:
    """Return whether a file begins and ends as a Parquet file does."""
    try:
        with open_file(path) as file:
            head = file.read(4)
            file.seek(-4, 2)
            return head == file.read(4) == _MAGIC
    except OSError:
        return False
