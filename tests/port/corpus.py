"""Hunks of real history, each with what a person says became of it: `corpus/*.yaml`, read strictly.

The answers were written by hand from the upstream code, before any tool had judged a hunk. Where a tool and an answer
differ, the tool is examined first; an answer is only corrected with its evidence in the commit message.

An entry has ids and paths only; the code comes from the upstreams. `patch` is a file of somebody's repository, or a
commit of the component itself, limited to `paths`. It fits `from` exactly and is ported to `to`. Hunks are numbered
from 1 over the whole patch. `trivial` is whether a person would carry the hunk over without thinking, `commit` the one
that brought the new lines or took the target away, `place` the file where a person would go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).with_name("corpus")
ANSWERS = ("exact", "moved", "merged", "conflict", "already upstream", "target gone")
_WITH_COMMIT = ("already upstream", "target gone")
_ID = re.compile(r"[0-9a-f]{40}")
_URL = re.compile(r"https://github\.com/([\w-]+/[\w.-]+)\.git")


class CorpusError(ValueError):
    """An entry of the corpus is invalid."""


@dataclass(frozen=True)
class PatchFile:
    """A patch that is a file of a repository."""

    repository: str
    commit: str
    path: str
    strip: int


@dataclass(frozen=True)
class CommitPatch:
    """A patch that is the change of a commit to some files of the component."""

    commit: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What became of one hunk.

    Attributes:
        trivial: Whether a person would carry it over, or drop it, without thinking.
        commit: The commit that made it upstream or took its target away.
        place: The file where a person would look for a target that is gone; None if nothing took it over.
    """

    path: str
    hunk: int
    answer: str
    trivial: bool
    why: str
    commit: str | None
    place: str | None


@dataclass(frozen=True)
class Case:
    """One patch, ported from one version to another.

    Attributes:
        where: The file of the corpus and the number of the entry.
        repository: OWNER/NAME of the component.
    """

    where: str
    repository: str
    patch: PatchFile | CommitPatch
    start: str
    to: str
    to_name: str
    answers: tuple[Answer, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody else's patch, not a commit of upstream."""
        return isinstance(self.patch, PatchFile)

    @property
    def is_held_out(self) -> bool:
        """Whether it was drawn by chance, and not looked at while the judging was improved."""
        return self.where.startswith("held_out.yaml")


def load_corpus(folder: Path = FOLDER) -> tuple[Case, ...]:
    """Read the corpus. Raises CorpusError with the file, the number of the entry and what is wrong."""
    cases: list[Case] = []
    for file in sorted(folder.glob("*.yaml")):
        entries = yaml.safe_load(file.read_text())
        for number, entry in enumerate(entries, start=1):
            cases.append(_case(f"{file.name}, entry {number}", entry))
    return tuple(cases)


def _case(where: str, entry: Any) -> Case:
    fields = _Fields(where, entry, ("repository", "patch", "from", "to", "to_name", "hunks"))
    answers = tuple(_answers(where, fields.value("hunks", list)))
    if len({answer.hunk for answer in answers}) != len(answers) or not answers:
        raise CorpusError(f"{where}: each hunk needs one answer")
    return Case(
        where,
        fields.repository(),
        _patch(f"{where}, patch", fields.value("patch", dict)),
        fields.id("from"),
        fields.id("to"),
        fields.value("to_name", str),
        answers,
    )


def _patch(where: str, entry: Any) -> PatchFile | CommitPatch:
    if "paths" in entry:
        fields = _Fields(where, entry, ("commit", "paths"))
        return CommitPatch(fields.id("commit"), tuple(fields.value("paths", list)))
    fields = _Fields(where, entry, ("repository", "commit", "path", "strip"))
    return PatchFile(
        fields.repository(), fields.id("commit"), fields.value("path", str), fields.value("strip", int)
    )


def _answers(where: str, entries: list[Any]) -> Iterator[Answer]:
    for number, entry in enumerate(entries, start=1):
        here = f"{where}, hunks {number}"
        answer = entry.get("answer")
        if answer not in ANSWERS:
            raise CorpusError(f"{here}: unknown answer {answer!r}")
        names = ["path", "hunk", "answer", "trivial", "why"]
        names += ["commit"] if answer in _WITH_COMMIT else []
        names += ["place"] if answer == "target gone" and "place" in entry else []
        fields = _Fields(here, entry, tuple(names))
        yield Answer(
            fields.value("path", str),
            fields.value("hunk", int),
            answer,
            fields.value("trivial", bool),
            fields.value("why", str),
            fields.id("commit") if "commit" in names else None,
            fields.value("place", str) if "place" in names else None,
        )


class _Fields:
    """The fields of one mapping, of which none may be missing, unknown or of another type."""

    def __init__(self, where: str, entry: Any, names: tuple[str, ...]) -> None:
        if not isinstance(entry, dict) or set(entry) != set(names):
            raise CorpusError(f"{where}: the fields are {', '.join(names)}")
        self._where, self._entry = where, entry

    def value(self, name: str, kind: type) -> Any:
        found = self._entry[name]
        if type(found) is not kind or found in ("", []):
            raise CorpusError(f"{self._where}: {name} is not a {kind.__name__}")
        return found

    def id(self, name: str) -> str:
        found: str = self.value(name, str)
        if not _ID.fullmatch(found):
            raise CorpusError(f"{self._where}: {name} is not a full commit id")
        return found

    def repository(self) -> str:
        found = _URL.fullmatch(self.value("repository", str))
        if found is None:
            raise CorpusError(f"{self._where}: repository is not https://github.com/OWNER/NAME.git")
        return found[1]
