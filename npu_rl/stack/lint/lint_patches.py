"""The checks of `npu-rl patches lint`: format, header, series, git's own reading, and where a patch applies."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import NpuRlError, PatchError, UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.stack.compose.apply_patch import parse_locked, run_patch
from npu_rl.stack.git.command import Git
from npu_rl.stack.lint.lint_report import LintedPatch, LintFinding, LintReport
from npu_rl.stack.lint.patch_targets import PatchTarget
from npu_rl.stack.lint.python_names import PYTHON, new_faults
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.patch_header import FIELDS, lint_header, parse_header
from npu_rl.stack.patches.patch_model import FilePatch, Patch
from npu_rl.stack.patches.series import SERIES, PatchSource, read_folder, read_patch, read_patchset

_SPACE = re.compile(r"(?m)^<stdin>:(\d+): (.*)$")
_LINE = re.compile(r"(?:patch line |, line )(\d+)")


def lint_patches(
    place: Path,
    *,
    strip: int | None = None,
    against: PatchTarget | None = None,
    against_name: str | None = None,
) -> LintReport:
    """Check a patch or a folder of patches.

    Args:
        place: A patch, a folder of patches, or the name of a bundled patchset.
        strip: Leading folders to drop from names; None for that of the lock or the series, else 1.
        against: The target of the patches; None to check the patches alone.
        against_name: Its name, for the report.

    Raises:
        UsageError, PatchError: For a file that can't be read.
    """
    report = LintReport(str(place), against_name)
    refused: dict[str, str] = {}  # path -> the patch that did not apply to it
    for source in _find_patches(place, report.findings):
        linted = LintedPatch(source.name)
        report.patches.append(linted)
        options = _options(source, strip, against)
        try:
            patch = parse_locked(options, source.data)
        except PatchError as error:
            report.findings.append(_error("format", source.name, error))
            continue
        linted.files, linted.hunks = len(patch.files), len(patch.hunks)
        report.findings += _header_findings(patch)
        report.findings += _git_findings(patch, options, source.data)
        paths = [file.path for file in patch.files]
        after = next((path for path in paths if path in refused), None)
        if against is None:
            report.findings += _python_findings(patch, None)
        elif after is not None:
            message = f"it was not applied: {refused[after]} does not apply to {after}"
            report.findings.append(LintFinding("does-not-apply", Severity.NOTE, patch.name, 0, message))
            refused |= dict.fromkeys(paths, refused[after])
        else:
            try:
                name = against.name(source, patch)
                before = against.now[name]
                _, tree = run_patch(against.trees, before, options, source.data, name, (".",))
            except PatchError as error:
                report.findings.append(_error("does-not-apply", source.name, error))
                refused |= dict.fromkeys(paths, source.name)
                continue
            against.now[name] = tree
            report.findings += _python_findings(patch, (against, before, tree))
    return report


def _find_patches(place: Path, findings: list[LintFinding]) -> list[PatchSource]:
    root = data_root() / "patchsets"
    if not place.exists() and not place.is_absolute() and (root / place).exists():
        place = root / place
    if not place.is_dir():
        source = read_patch(place)
        if source is None:
            known = [path.parent.relative_to(root).as_posix() for path in root.glob("*/*/series")]
            raise UsageError(
                f"No such patch or folder{did_you_mean(str(place), known)}",
                where=str(place),
                hint="Name a patch, a folder of patches, or a bundled patchset: npu-rl patches lint verl/0.5.0",
            )
        return [source]
    if (place / SERIES).exists():
        try:
            return list(read_patchset(place))
        except PatchError as error:
            findings.append(_error("series", SERIES, error))
            return []
    message = "a folder beside a manifest needs a `series` file; the order of the names was taken"
    fix = "write one: a patch name per line, in the order to apply"
    findings.append(LintFinding("series", Severity.ADVICE, SERIES, 0, message, fix=fix))
    return list(read_folder(place).sources)


def _options(source: PatchSource, strip: int | None, against: PatchTarget | None) -> LockedPatch:
    """Return how a patch is applied: as the lock says, else as its series says."""
    locked = None if against is None else against.locked(source)
    if locked is None:
        of_series = 1 if source.strip is None else source.strip
        locked = LockedPatch(source.name, source.name, "", "", 0, (), strip=of_series)
    return replace(locked, name=source.name, file=source.name, strip=locked.strip if strip is None else strip)


def _error(rule: str, name: str, error: NpuRlError) -> LintFinding:
    """Return an error of the parser or the applier as a finding at the line that it names."""
    where = error.where or ""
    line = where.rpartition(f"{name}:")[2].partition(",")[0]
    found = _LINE.search(f"{where}\n{error.why or ''}")
    number = int(line) if line.isdecimal() else int(found[1]) if found else 0
    hint = " ".join((error.hint or "").split()).replace("`strip` of the patch entry", "--strip")
    return LintFinding(rule, Severity.ERROR, name, number, error.what, error.why or "", hint)


def _header_findings(patch: Patch) -> list[LintFinding]:
    """Return the faults of npu-rl's own header; one note for a patch without any of its fields."""
    if not parse_header(patch.header).fields:
        message = f"the header lacks all of {', '.join(FIELDS)}"
        return [LintFinding("header", Severity.NOTE, patch.name, 1, message)]
    return [
        LintFinding("header", Severity.ERROR, patch.name, line, message.rstrip("."))
        for line, message in lint_header(patch.header, commands=True)
    ]


def _git_findings(patch: Patch, options: LockedPatch, data: bytes) -> Iterator[LintFinding]:
    """Yield git's objections to a patch, and its warnings of added white space: five at most, as git prints them."""
    crlf = any(line.tag != "+" and line.text.endswith(b"\r") for hunk in patch.hunks for line in hunk.lines)
    config = ("-c", "core.whitespace=cr-at-eol") if crlf else ()
    with tempfile.TemporaryDirectory(prefix="npu-rl-lint-") as folder:
        done = Git(Path(folder)).run(
            *(*config, "apply", "--numstat", "--whitespace=warn", f"-p{options.strip}", "-"),
            input=options.applied_text(data),
            ok=range(256),
        )
    if done.code:
        yield LintFinding("format", Severity.ERROR, patch.name, 0, "git rejects the patch", done.stderr)
        return
    for found in _SPACE.finditer(done.stderr):
        yield LintFinding("white-space", Severity.ADVICE, patch.name, int(found[1]), f"{found[2]} is added")


def _python_findings(patch: Patch, applied: tuple[PatchTarget, str, str] | None) -> Iterator[LintFinding]:
    """Yield the faults that a patch adds to Python files; without a target, to new ones."""
    for file in patch.files:
        if not file.path.endswith(PYTHON) or file.new_path is None:
            continue
        if applied is None and file.old_path is not None:
            continue
        if applied is None:
            before, after = None, b"".join(line for hunk in file.hunks for line in hunk.new_lines)
        else:
            target, *trees = applied
            old, new = (target.trees.find(tree, file.path) for tree in trees)
            before = None if old is None else target.trees.blob(old.oid)
            after = b"" if new is None else target.trees.blob(new.oid)
        added = _added_lines(file)
        for rule, line, message in new_faults(file.path, before, after):
            yield LintFinding(rule, Severity.ERROR, patch.name, added.get(line, file.line), message)


def _added_lines(file: FilePatch) -> dict[int, int]:
    """Return the lines that a patch adds, as line number in the new file -> line number in the patch."""
    added = {}
    for hunk in file.hunks:
        at, number = hunk.line, hunk.new_index
        for line in hunk.lines:
            at += 1
            number += line.tag != "-"
            if line.tag == "+":
                added[number] = at
            at += not line.has_newline  # `\\ No newline at end of file` follows
    return added
