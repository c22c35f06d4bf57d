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

_FORM_NAMES = {BOXED: r"\boxed{}", HASHES: '"####"', ANSWER: '"Answer:"', "": "plain text"}
_PREPARED = "make the file with npu-rl data prepare"


@dataclass
class Checked:
    """The results of the checks, and the checks that were skipped.

    Attributes:
        unchecked: What could not be checked on this machine, and why.
        findings: All findings, errors first.
        cut_left: Where the workspace's trainer truncates longer prompts on the left; empty if it raises instead.
    """

    train: list[TrainerFile]
    test: list[TrainerFile]
    trials: list[Trial] = field(default_factory=list)
    lengths: dict[str, Any] | None = None
    unchecked: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    cut_left: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        """Return whether the training could use the data."""
        return not any(one.severity is Severity.ERROR for one in self.findings)

    @property
    def files(self) -> list[TrainerFile]:
        """All files."""
        return [*self.train, *self.test]


def data_findings(loaded: LoadedRecipe, checked: Checked) -> list[Finding]:
    """Return the findings, errors first."""
    found = [*_row_findings(loaded, checked), *_reward_findings(checked)]
    for file in checked.files:
        found += [
            *_file_findings(file),
            *_template_findings(file, checked),
            *_length_findings(file, loaded, checked),
        ]
    return sorted(found, key=lambda one: list(Severity).index(one.severity))


def _file_findings(file: TrainerFile) -> Iterator[Finding]:
    """Yield the findings on one file alone."""

    def found(rule: str, severity: Severity, message: str, fix: str = "") -> Finding:
        return file_finding(f"data-{rule}", severity, file.path, message, fix)

    for fault in file.faults:
        yield found("columns", Severity.ERROR, fault, _PREPARED)
    if file.incomplete:
        message = f"rows without a prompt, a data source or a right answer: {_rows(file.incomplete)}"
        yield found("incomplete", Severity.ERROR, message, "make the file without them")
    if file.repeated:
        yield found("repeated", Severity.ADVICE, f"{file.repeated} prompts repeat an earlier one")
    if file.images_differ:  # verl/utils/dataset/rl_dataset.py:331@v0.8.0 demands an image for each <image>
        message = f"rows with more or fewer images than <image> in the prompt: {_rows(file.images_differ)}"
        yield found("images", Severity.ERROR, message)
    if file.images_missing:
        message = f"{file.images_missing} prompts have <image> and no image: verl leaves it as text"
        yield found("images", Severity.ADVICE, message)
    if file.doubled:
        message = rf"{file.doubled} prompts spell \boxed with two backslashes, which a model may repeat"
        yield found("template", Severity.ADVICE, message, f"{_PREPARED}, whose templates have one")


def _row_findings(loaded: LoadedRecipe, checked: Checked) -> Iterator[Finding]:
    batch = loaded.recipe.data.batch
    rows = sum(file.rows for file in checked.train)
    where = ", ".join(str(file.path) for file in checked.train)
    if batch and rows < batch:
        message = f"{rows} rows, and a step takes data.batch = {batch}: verl drops what fills no batch, which is all"
        yield file_finding("data-rows", Severity.ERROR, where, message, f"set data.batch to {rows} or less")
    trained: set[bytes] = set().union(*(file.keys for file in checked.train))
    for file in checked.test:
        if file.rows == 0 and not file.faults:
            yield file_finding("data-rows", Severity.ERROR, file.path, "has no row")
        if both := len(file.keys & trained):
            message = f"{both} of {len(file.keys)} prompts are among those that are trained on"
            yield file_finding("data-leakage", Severity.ADVICE, file.path, message)


def _rows(indexes: list[int]) -> str:
    more = f" and {len(indexes) - 5} more" if indexes[5:] else ""
    return ", ".join(map(str, indexes[:5])) + more


def _reward_findings(checked: Checked) -> Iterator[Finding]:
    for source in dict.fromkeys(trial.data_source for trial in checked.trials):
        trials = [trial for trial in checked.trials if trial.data_source == source]
        errors = {name: error for trial in trials for name, error in trial.errors.items()}
        if not errors or any(trial.missing for trial in trials):
            continue
        name, error = next(iter(errors.items()))
        where = ", ".join(str(file.path) for file in checked.files if file.sources[source])
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


def _template_findings(file: TrainerFile, checked: Checked) -> Iterator[Finding]:
    """Yield findings on prompts that request another answer format than the reward scores."""
    for (source, asked), count in sorted(file.forms.items()):
        accepted = _accepted(checked.trials, source)
        if not accepted or any(form in accepted for form in asked or ("",)):
            continue
        wanted = " and ".join(_FORM_NAMES[form] for form in asked) or "no form of answer"
        scored = " or ".join(_FORM_NAMES[one] for one in accepted)
        message = f"{count} prompts of {source} ask for {wanted}, and the reward scores a right answer only as {scored}"
        severity = Severity.ERROR if {BOXED, HASHES} & set(asked) else Severity.ADVICE
        fix = "npu-rl data prepare makes prompts that ask for it"
        yield file_finding("data-template", severity, file.path, message, fix)


def _length_findings(file: TrainerFile, loaded: LoadedRecipe, checked: Checked) -> Iterator[Finding]:
    data = loaded.recipe.data
    counts = checked.lengths["files"].get(file.path.name) if checked.lengths and data.prompt_length else None
    if not counts or not counts["overlong"]:
        return
    severity, then, fix = Severity.ADVICE, f"cuts them ({data.overlong})", ""
    if data.filter_overlong:
        severity, then = Severity.NOTE, "leaves them out"
    elif checked.cut_left:
        then = f"cuts them at their left ({checked.cut_left})"
    elif data.overlong in (None, "error"):
        severity, then = Severity.ERROR, "raises there"
        fix = "set data.filter_overlong=true, or raise data.prompt_length"
    message = (
        f"{counts['overlong']} of {counts['rows']} prompts are longer than data.prompt_length = "
        f"{data.prompt_length} tokens; the longest has {counts['longest']}. verl {then}"
    )
    yield file_finding("data-lengths", severity, file.path, message, fix)


def samples_of(files: Sequence[TrainerFile]) -> dict[str, list[dict[str, Any]]]:
    """Return rows of each data source for a dry run of the reward."""
    return {source: rows for file in reversed(files) for source, rows in file.samples.items()}
