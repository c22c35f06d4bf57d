"""The checks of training files, with all findings in one list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.data.data_check.reward_trial import FORMS, Trial
from npu_rl.data.datasets.prompt_templates import ANSWER, BOXED, HASHES
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
    "data-images",
)
"""Ids of the findings of `data check`."""

_FORM_NAMES = {BOXED: r"\boxed{}", HASHES: '"####"', ANSWER: '"Answer:"', "": "plain text"}


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
        *_image_findings(checked),
        *_reward_findings(checked),
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
            message = f"rows without a prompt, a data source or a right answer: {_rows(file.incomplete)}"
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


def _image_findings(checked: Checked) -> Iterator[Finding]:
    """Yield findings on `<image>` in prompts; verl/utils/dataset/rl_dataset.py:331@v0.8.0 demands an image for each."""
    for file in checked.files:
        if file.images_differ:
            message = (
                f"rows with more or fewer images than <image> in the prompt: {_rows(file.images_differ)}"
            )
            yield file_finding("data-images", Severity.ERROR, file.path, message)
        if file.images_missing:
            message = f"{file.images_missing} prompts have <image> and no image: verl leaves it as text"
            yield file_finding("data-images", Severity.ADVICE, file.path, message)


def _rows(indexes: list[int]) -> str:
    more = f" and {len(indexes) - 5} more" if indexes[5:] else ""
    return ", ".join(map(str, indexes[:5])) + more


def _reward_findings(checked: Checked) -> Iterator[Finding]:
    for source, trials in _by_source(checked).items():
        errors = {name: error for trial in trials for name, error in trial.errors.items()}
        if not errors or any(trial.missing for trial in trials):
            continue
        name, error = next(iter(errors.items()))
        where = _files_with(source, checked)
        if error.startswith("NotImplementedError") or source in error:
            message = f"the reward can't score data source {source}: {error}"
            fix = "write one that it scores into data_source, or name a reward with reward.function"
            yield file_finding("data-source", Severity.ERROR, where, message, fix)
        else:
            kind = type(trials[0].truth).__name__
            message = f"the reward raises for a response ({name}; the right answer is a {kind}): {error}"
            yield file_finding("data-reward", Severity.ERROR, where, message)


def unjudged(trials: Sequence[Trial], python: str) -> dict[str, str]:
    """Return why the reward of a data source could not be judged, by `reward of SOURCE`."""
    found = {}
    for trial in trials:
        key = f"reward of {trial.data_source}"
        if trial.missing:
            found[key] = f"its scorer needs the package {trial.missing}, which {python} can't import"
        elif not trial.errors and not _accepted(trials, trial.data_source):
            found[key] = (
                f"no right answer scores higher than a wrong one, as {', '.join(_FORM_NAMES.values())}"
            )
    return found


def _accepted(trials: Sequence[Trial], source: str) -> list[str]:
    """Return the forms of a right answer to a data source that its reward scores."""
    return [form for form in FORMS if any(one.accepts(form) for one in trials if one.data_source == source)]


def _template_findings(checked: Checked) -> Iterator[Finding]:
    """Yield findings on prompts that request another answer format than the reward scores."""
    for file in checked.files:
        if file.doubled:
            message = rf"{file.doubled} prompts spell \boxed with two backslashes, which a model may repeat"
            fix = "make the file with npu-rl data prepare, whose templates have one"
            yield file_finding("data-template", Severity.ADVICE, file.path, message, fix)
        for (source, asked), count in sorted(file.forms.items()):
            accepted = _accepted(checked.trials, source)
            if not accepted or any(form in accepted for form in asked or ("",)):
                continue
            wanted = " and ".join(_FORM_NAMES[form] for form in asked) or "no form of answer"
            message = (
                f"{count} prompts of {source} ask for {wanted}, and the reward scores a right answer "
                f"only as {' or '.join(_FORM_NAMES[one] for one in accepted)}"
            )
            severity = Severity.ERROR if {BOXED, HASHES} & set(asked) else Severity.ADVICE
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
