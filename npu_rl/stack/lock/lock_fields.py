"""Types of a lock's text fields. They are checked because they become paths, refs and arguments of git.

They are stricter than a manifest's where possible, since a program writes the lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from npu_rl.common.portable_names import MAXIMUM_DEPTH, invalid_name_reason
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.git_url import check_git_url


def _pattern(pattern: str, what: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if compiled.fullmatch(value) is None:
            raise ValueError(f"{value[:80]!r} is not {what}")
        return value

    return check


def check_upstream_path(value: str) -> str:
    """Check a path of an upstream tree: any name git stores, but none that points outside the tree."""
    why = next(filter(None, map(invalid_name_reason, value.split("/"))), None)
    if why or "\0" in value or value.count("/") > MAXIMUM_DEPTH:
        raise ValueError(f"{value[:80]!r} is not a path inside a repository" + (f": {why}" if why else ""))
    return value


def _check_value(value: str) -> str:
    """Check the value of a variable, which goes into scripts and environments: any text that YAML accepts."""
    if _CONTROL.search(value):
        raise ValueError(f"{value[:80]!r} contains a control character")
    return value


def _check_requirement(value: str) -> str:
    """Check one line that pip reads as a requirement, not as an option."""
    text_checks.check_text(value)
    if not value.strip()[0].isalnum():
        raise ValueError(f"{value[:80]!r} is not a requirement")
    return value


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

Text = Annotated[str, text_checks.check_text]
Device = Annotated[str, _pattern("npu|cuda|cpu", "a device")]
Requirement = Annotated[str, _check_requirement]
Value = Annotated[str, _check_value]
Name = Annotated[str, text_checks.check_name]
Id = Annotated[str, text_checks.check_pin]
Sha256 = Annotated[str, _pattern(r"[0-9a-f]{64}", "a SHA-256")]
Mode = Annotated[str, _pattern(r"100644|100755|120000|160000|40000", "a mode of git")]
Ref = Annotated[str, text_checks.check_full_ref]
Url = Annotated[str, check_git_url]
# PEP 440 in full is for `packaging`, which a verify does not import.
Release = Annotated[
    str, _pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*", "name==version")
]
Version = Annotated[str, _pattern(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", "a version")]
Distribution = Annotated[str, text_checks.check_distribution]
TreePath = Annotated[str, text_checks.check_path]
UpstreamPath = Annotated[str, check_upstream_path]
Directory = Annotated[str, text_checks.check_directory]
Glob = Annotated[str, text_checks.check_glob]
Variable = Annotated[str, text_checks.check_variable]
Checkout = Annotated[str, _pattern("take|full", "take or full")]
How = Annotated[str, _pattern("merge|pick", "merge or pick")]
Eol = Annotated[str, _pattern("keep|lf", "keep or lf")]
Repair = Annotated[str, _pattern("none|final-newline", "none or final-newline")]
Outcome = Annotated[str, _pattern("passed|failed", "passed or failed")]
Day = Annotated[str, _pattern(r"\d{4}-\d\d-\d\d", "a date such as 2026-01-31")]
