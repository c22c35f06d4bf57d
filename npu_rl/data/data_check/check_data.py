"""The checks of training files, with all findings in one list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.data.data_check.reward_trial import Trial
from npu_rl.data.datasets.prompt_templates import BOXED, HASHES
from npu_rl.data.datasets.trainer_files import TrainerFile
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe

RULES = (
    "data-columns",
    "data-rows",
    "data-incomplete",
    "data-repeated",
    "data-leakage",
    "data-source",
    "data-reward",
    "data-template",
    "data-lengths",
    "data-path",
)
"""Ids of the findings of `data check`."""

_FORM_NAMES = {BOXED: r"\boxed{}", HASHES: '"####"', "": "no form of answer"}


@dataclass
class Checked:
    """The results of the checks, and the checks that were skipped.

    Attributes:
        unchecked: What could not be checked on this machine, and why.
        cut_left: Where the workspace's trainer truncates longer prompts on the left; empty if it raises instead.
    """

    train: list[TrainerFile]
    test: list[TrainerFile]
    trials: list[Trial] = field(default_factory=list)
    lengths: dict[str, Any] | None = None
    unchecked: dict[str, str] = field(default_factory=dict)
    cut_left: str = ""

    @property
    def files(self) -> list[TrainerFile]:
        """All files."""
        return [*self.train, *self.test]


def data_findings(loaded: LoadedRecipe, checked: Checked) -> list[Finding]:
    """Return the findings, errors first."""
    found = [
        *_column_findings(checked),
        *_row_findings(loaded, checked),
        *_reward_findings(loaded, checked),
        *_template_findings(checked),
        *_length_findings(loaded, checked),
    ]
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


def _column_findings(checked: Checked) -> Iterator[Finding]:
    for file in checked.files:
        for fault in file.faults:
            yield file_finding(
                "data-columns", Severity.ERROR, file.path, fault, "make the file with npu-rl data prepare"
            )
        if file.incomplete:
            rows = ", ".join(map(str, file.incomplete[:5]))
            more = f" and {len(file.incomplete) - 5} more" if file.incomplete[5:] else ""
            message = f"rows without a prompt, a data source or a right answer: {rows}{more}"
            yield file_finding(
                "data-incomplete", Severity.ERROR, file.path, message, "make the file without them"
            )


def _row_findings(loaded: LoadedRecipe, checked: Checked) -> Iterator[Finding]:
    batch = loaded.recipe.data.batch
    rows = sum(file.rows for file in checked.train)
    where = ", ".join(str(file.path) for file in checked.train)
    if batch and rows < batch:
        message = f"{rows} rows, and a step takes data.batch = {batch}: verl drops what fills no batch, which is all"
        yield file_finding("data-rows", Severity.ERROR, where, message, f"set data.batch to {rows} or less")
    for file in checked.test:
        if file.rows == 0 and not file.faults:
            yield file_finding("data-rows", Severity.ERROR, file.path, "has no row")
    for file in checked.files:
        if file.repeated:
            message = f"{file.repeated} prompts repeat an earlier one"
            yield file_finding("data-repeated", Severity.ADVICE, file.path, message)
    trained = set().union(*(file.keys for file in checked.train)) if checked.train else set()
    for file in checked.test:
        both = len(file.keys & trained)
        if both:
            message = f"{both} of {len(file.keys)} prompts are among those that are trained on"
            yield file_finding("data-leakage", Severity.ADVICE, file.path, message)


def _reward_findings(loaded: LoadedRecipe, checked: Checked) -> Iterator[Finding]:
    for source, trials in _by_source(checked).items():
        where = _files_with(source, checked)
        errors = [
            (name, score)
            for trial in trials
            for name, score in trial.scores.items()
            if isinstance(score, str)
        ]
        if errors and len(errors) == sum(len(trial.scores) for trial in trials):
            message = f"the reward can't score data source {source}: {errors[0][1]}"
            fix = "write one that it scores into data_source, or name a reward with reward.function"
            yield file_finding("data-source", Severity.ERROR, where, message, fix)
        elif errors:
            message = f"the reward raises for a response ({errors[0][0]}): {errors[0][1]}"
            yield file_finding("data-reward", Severity.ERROR, where, message)
        elif not any(trial.accepts(form) for trial in trials for form in _FORM_NAMES):
            message = (
                f"no right response to data source {source} scores higher than a wrong one: tried "
                r"\boxed{}, #### and plain text"
            )
            own = loaded.recipe.reward.function is not None
            yield file_finding("data-reward", Severity.ADVICE if own else Severity.ERROR, where, message)


def _template_findings(checked: Checked) -> Iterator[Finding]:
    """Yield findings on prompts that request another answer format than the reward scores."""
    for file in checked.files:
        if file.doubled:
            message = rf"{file.doubled} prompts spell \boxed with two backslashes, which a model may repeat"
            fix = "make the file with npu-rl data prepare, whose templates have one"
            yield file_finding("data-template", Severity.ADVICE, file.path, message, fix)
    for source, trials in _by_source(checked).items():
        accepted = [form for form in _FORM_NAMES if any(trial.accepts(form) for trial in trials)]
        if not accepted:
            continue
        for file in checked.files:
            for form in _FORM_NAMES:
                count = file.forms[source, form]
                if not count or form in accepted:
                    continue
                message = (
                    f"{count} prompts of {source} ask for {_FORM_NAMES[form]}, and the reward scores a right answer "
                    f"only as {' or '.join(_FORM_NAMES[one] for one in accepted)}"
                )
                severity = Severity.ERROR if form else Severity.ADVICE
                fix = "npu-rl data prepare makes prompts that ask for it"
                yield file_finding("data-template", severity, file.path, message, fix)


def _length_findings(loaded: LoadedRecipe, checked: Checked) -> Iterator[Finding]:
    data = loaded.recipe.data
    for file in checked.files if checked.lengths and data.prompt_length else ():
        counts = checked.lengths["files"].get(file.path.name) if checked.lengths else None
        if not counts or not counts["overlong"]:
            continue
        message = (
            f"{counts['overlong']} of {counts['rows']} prompts are longer than data.prompt_length = "
            f"{data.prompt_length} tokens; the longest has {counts['longest']}"
        )
        if data.filter_overlong:
            yield file_finding("data-lengths", Severity.NOTE, file.path, f"{message}. verl leaves them out")
        elif checked.cut_left:
            said = f"{message}. verl cuts them at their left ({checked.cut_left})"
            yield file_finding("data-lengths", Severity.ADVICE, file.path, said)
        elif data.overlong in (None, "error"):
            fix = "set data.filter_overlong=true, or raise data.prompt_length"
            yield file_finding(
                "data-lengths", Severity.ERROR, file.path, f"{message}. verl raises there", fix
            )
        else:
            yield file_finding(
                "data-lengths", Severity.ADVICE, file.path, f"{message}. verl cuts them ({data.overlong})"
            )


def _by_source(checked: Checked) -> dict[str, list[Trial]]:
    result: dict[str, list[Trial]] = {}
    for trial in checked.trials:
        result.setdefault(trial.data_source, []).append(trial)
    return result


def _files_with(source: str, checked: Checked) -> str:
    return ", ".join(str(file.path) for file in checked.files if file.sources[source])


def samples_of(files: Sequence[TrainerFile]) -> dict[str, list[dict[str, Any]]]:
    """Return rows of each data source for a dry run of the reward."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        for source, rows in file.samples.items():
            samples.setdefault(source, rows)
    return samples
