"""Check of training data made by `npu-rl data prepare`, based on its report, without reading rows.

Every command that judges a recipe runs it, so it may take a few milliseconds. `npu-rl data check` reads the rows and
calls the reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import open_file, read_file, read_json
from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute, is_outside, split_function
from npu_rl.recipes.trainer_code.overlong_prompts import where_cut_left

RULES = ("data-parquet", "data-source", "data-template", "data-prompt-length")
"""Ids of the findings of this module."""

_REPORT = "prepared.json"
_LARGEST_REPORT = 8 << 20
_OURS = "npu_rl_runtime/rewards/deepscaler.py"
_DEFAULT = "verl/utils/reward_score/__init__.py"
_MAGIC = b"PAR1"


def prepared_data_findings(loaded: LoadedRecipe, code: Path | None) -> list[Finding]:
    """Return the findings on those data files of the recipe that are on this machine.

    Args:
        code: The workspace's code folder; None leaves out whether the reward knows the data.
    """
    data = loaded.recipe.data
    found: list[Finding] = []
    for part, files in (("train", data.train), ("test", data.test)):
        for index, named in enumerate(files or ()):
            if path := _local_file(loaded, named):
                found += _FileCheck(loaded, code, path, (part, index)).findings()
    return found


def _local_file(loaded: LoadedRecipe, named: str) -> Path | None:
    """Return the file's path; None if it isn't on this machine."""
    try:
        path = Path(absolute(named, loaded.path.parent)) if is_outside(named) else None
        return path if path is not None and path.is_file() else None
    except (UsageError, OSError, ValueError):
        return None


class _FileCheck:
    def __init__(self, loaded: LoadedRecipe, code: Path | None, path: Path, key: tuple[str, int]) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._code = code
        self._path = path
        self._key = key

    def findings(self) -> Iterator[Finding]:
        if self._path.suffix == ".parquet" and not _is_whole(self._path):
            message = f"{str(self._path)!r} is not a whole Parquet file"
            fix = "prepare it again: npu-rl data prepare"
            yield self._finding("data-parquet", Severity.ERROR, message, fix)
            return
        report = self._report()
        if report is None:
            return
        source, asks_for = str(report.get("data_source")), report.get("asks_for")
        if self._scores(source) is False:
            message = f"its data source is {source}, which the reward does not score"
            fix = f"see what it scores: npu-rl data check {self._path.parent} --recipe {self._recipe.name}"
            yield self._finding("data-source", Severity.ERROR, message, fix)
        yield from self._template_findings(str(report.get("dataset")), asks_for)
        yield from self._length_findings(report)

    def _report(self) -> dict[str, Any] | None:
        """Return the report beside the file, unless the file's size has changed since."""
        try:
            report = read_json(self._path.with_name(_REPORT), _LARGEST_REPORT)
            stated = report["files"][self._path.name]["bytes"]
            return report if stated == self._path.stat().st_size else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _scores(self, source: str) -> bool | None:
        """Return whether the reward function scores a data source; None if only a call would show it."""
        reward = self._recipe.reward
        if reward.function:
            file, _ = split_function(reward.function)
            if file != _OURS:
                return None
            return source == "deepscaler" or bool(reward.arguments.get("any_source"))
        if self._code is None:
            return None
        try:
            text = read_file(self._code / _DEFAULT).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None
        named = f'"{source}"' in text or f"'{source}'" in text
        ours = "deepscaler.scores(" in text and self._recipe.adaptations.get("deepscaler-reward", True)
        return named or (ours and source == "deepscaler")

    def _template_findings(self, dataset: str, asks_for: object) -> Iterator[Finding]:
        from npu_rl.data.datasets.known_datasets import DATASETS

        known = DATASETS.get(dataset)
        if known is None or asks_for is None or asks_for == known.looks_for:
            return
        looks = f"the reward of {known.data_source} expects {known.looks_for}"
        message = f"its prompts ask for {asks_for or 'no form of answer'}, and {looks}"
        fix = f"make it with --template {known.template}"
        yield self._finding("data-template", Severity.ADVICE, message, fix)

    def _length_findings(self, report: dict[str, Any]) -> Iterator[Finding]:
        data = self._recipe.data
        try:
            longest = int(report["lengths"]["files"][self._path.name]["longest"])
        except (KeyError, TypeError, ValueError):
            return
        limit = data.prompt_length
        if limit is None or longest <= limit or data.filter_overlong or data.overlong not in (None, "error"):
            return
        message = f"its longest prompt has {longest} tokens, more than data.prompt_length = {limit}: verl "
        cut = where_cut_left(self._code)
        message += f"cuts it at its left ({cut})" if cut else "raises there"
        fix = "set data.filter_overlong=true, or raise data.prompt_length"
        yield self._finding("data-prompt-length", Severity.ADVICE if cut else Severity.ERROR, message, fix)

    def _finding(self, rule: str, severity: Severity, message: str, fix: str) -> Finding:
        return self._loaded.finding(rule, severity, ("data", *self._key), message, fix, certain=False)


def _is_whole(path: Path) -> bool:
    """Return whether a file begins and ends as a Parquet file does."""
    try:
        with open_file(path) as file:
            head = file.read(4)
            file.seek(-4, 2)
            return head == file.read(4) == _MAGIC
    except OSError:
        return False
