"""The patches of a file or folder as they are applied, with the faults in their order and names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.stack.lint.lint_report import LintFinding, error_finding
from npu_rl.stack.patches.series import (
    SERIES,
    PatchSource,
    files_below,
    read_patch,
    read_patchset,
    read_patchset_text,
)

_NUMBER = re.compile(r"(\d+)-")


def find_patches(place: Path) -> tuple[list[PatchSource], list[LintFinding]]:
    """Return the patches of a file, a folder or a bundled patchset such as `verl/0.5.0`, and findings about the order.

    Raises UsageError if it is none of them.
    """
    root = data_root() / "patchsets"
    if not place.exists() and not place.is_absolute() and (root / place).exists():
        place = root / place
    if place.is_dir():
        return _patches_of_folder(place)
    source = read_patch(place)
    if source is None:
        raise UsageError(
            "No such patch or folder",
            where=str(place),
            hint=_existing(place),
        )
    return [source], []


def _existing(place: Path) -> str:
    """Return the bundled patchset that was probably meant, or the form of a name."""
    root = data_root() / "patchsets"
    known = [str(path.relative_to(root)) for path in root.glob("*/*") if path.is_dir()]
    near = nearest(str(place), known)
    if near:
        return f"Did you mean the bundled patchset {near}? npu-rl patches lint {near}"
    return "Name a patch, a folder of patches, or a bundled patchset: npu-rl patches lint verl/0.5.0"


def _patches_of_folder(folder: Path) -> tuple[list[PatchSource], list[LintFinding]]:
    findings: list[LintFinding] = []
    if (folder / SERIES).exists():
        try:
            sources = list(read_patchset(folder))
        except PatchError as error:
            findings.append(error_finding("series", SERIES, error))
            sources = _read_leniently(folder, findings)
    else:
        sources = _read_leniently(folder, findings)
        findings.append(_no_series(folder))
    return sources, [*findings, *_numbering([source.name for source in sources])]


def _no_series(folder: Path) -> LintFinding:
    message = (
        "the folder has no `series` file, which one beside a manifest needs; the order of the names was taken"
    )
    others = sorted(path.parent.name for path in folder.glob(f"*/{SERIES}"))
    if others:
        command = f"npu-rl patches lint {shlex.quote(str(folder / others[-1]))}"
        fix = f"check each patchset by itself ({', '.join(others)}): {command}"
    else:
        fix = "write one: a patch name per line, in the order to apply"
    return LintFinding("series", Severity.ADVICE, SERIES, 0, message, fix=fix)


def _read_leniently(folder: Path, findings: list[LintFinding]) -> list[PatchSource]:
    """Return a component folder's patches: any names, subfolders too, sorted by name without a series."""
    listing = {path: (folder / path).is_file() for path in files_below(folder)}
    try:
        found = read_patchset_text(listing, lambda path: _read(folder, path))
        order = [source.name for source in found.sources]
        passed_over: Sequence[str] = found.passed_over
    except PatchError as error:
        if not any(path.endswith((".patch", ".diff")) for path in listing):
            raise PatchError(error.what, where=str(folder), why=error.why, hint=error.hint) from None
        patches = sorted(path for path in listing if path.endswith((".patch", ".diff")))
        listed = _listed(folder, listing) if SERIES in listing else []
        order, passed_over = (listed, sorted({*patches} - {*listed})) if listed else (patches, ())
    findings += [
        LintFinding(
            "series", Severity.ADVICE, path, 0, "the file looks like a patch and would not be applied"
        )
        for path in passed_over
    ]
    return [PatchSource(path, folder / path, _read(folder, path)) for path in order]


def _listed(folder: Path, listing: Mapping[str, bool]) -> list[str]:
    """Return the existing files that the lines of a faulty `series` begin with, such as quilt's `name -p1`."""
    lines = _read(folder, SERIES).decode("utf-8", "surrogateescape").splitlines()
    names = (line.split(maxsplit=1)[0].removeprefix("./") for line in lines if line.strip())
    return list(dict.fromkeys(name for name in names if listing.get(name)))


def _read(folder: Path, path: str) -> bytes:
    source = read_patch(folder / path)
    if source is None:
        raise PatchError(f"{path} is not a file", where=str(folder / path))
    return source.data


def _numbering(names: Sequence[str]) -> Iterator[LintFinding]:
    """Yield findings on numbers in names that contradict each other or the order of the series."""
    seen: dict[tuple[str, int], str] = {}
    last: dict[str, int] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        found = _NUMBER.match(base)
        if found is None:
            continue
        number = int(found[1])
        other = seen.setdefault((folder, number), name)
        if other != name:
            message = f"the number {found[1]} is also that of {other}"
            yield LintFinding("numbering", Severity.ADVICE, name, 0, message, fix="renumber one of them")
        elif number < last.get(folder, number):
            message = f"the number {found[1]} comes after {last[folder]:04d}; `series` is the order, not the numbers"
            yield LintFinding(
                "numbering", Severity.ADVICE, name, 0, message, fix="renumber, or move its line"
            )
        last[folder] = number
