"""The state of a port, kept in a file between its commands: strict JSON, since it names files and commits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import PatchError
from npu_rl.stack.lock.lock_fields import Id, Name, UpstreamPath
from npu_rl.stack.lock.strict_json import UnexpectedShape, build, plain

PORT_FORMAT = 1
WAITING, PORTED, UPSTREAM, SKIPPED = "waiting", "ported", "upstream", "skipped"
RUNNING, STOPPED, FINISHED, ABORTING = "running", "stopped", "finished", "aborting"


def _one_of(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values:
            raise ValueError(f"{value[:80]!r} is not one of {', '.join(values)}")

    return check


def _check_file_name(value: str) -> None:
    if re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", value) is None:
        raise ValueError(f"{value[:80]!r} is not the name of a patch")


def _check_version(value: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", value) is None:
        raise ValueError(f"{value[:80]!r} is not a version")


@dataclass(frozen=True)
class FoundPlace:
    """A likely new place of a hunk whose target is gone."""

    path: UpstreamPath
    line: int
    inside: str
    score: float
    context: str


@dataclass(frozen=True)
class FoundHunk:
    """The outcome for one hunk: the fields of `PortedHunk`, and the commit's subject."""

    path: UpstreamPath
    number: int
    state: str
    old_line: int
    new_line: int | None = None
    inside: str = ""
    why: str = ""
    commit: Id | None = None
    subject: str = ""
    places: tuple[FoundPlace, ...] = ()


@dataclass(frozen=True)
class PortedPatchState:
    """One patch of the series.

    Attributes:
        file: The path that it came from.
        text: The blob of its text.
        before, after: The trees of its files before and after it, in the old version.
        by_hand: Whether its result was taken from the work tree.
        commit: The commit of its result.
    """

    name: Annotated[str, _check_file_name]
    file: str
    text: Id
    before: Id
    after: Id
    status: Annotated[str, _one_of(WAITING, PORTED, UPSTREAM, SKIPPED)] = WAITING
    by_hand: bool = False
    commit: Id | None = None
    hunks: tuple[FoundHunk, ...] = ()


@dataclass(frozen=True)
class PortState:
    """A port of one component's patches.

    Attributes:
        manifest: Its bundled name, or the absolute path of its file.
        to: The version as the user typed it.
        ref, id, version: As in `TargetRef`.
        series: The text of the old `series`.
        base: The commit of the new version in the repository of the work tree.
        tree: The tree of that commit.
        laid: The tree in the work tree; None if no file was laid yet.
        laying: The tree that is being laid; None if none is.
        shown: Whether the stop was shown, without which the patch can't be skipped.
        lacking: Taken paths that the new version does not have.
        output: The folder of the new patchset, if not its usual place.
    """

    component: Name
    manifest: str
    is_bundled: bool
    to: str
    ref: str
    id: Id
    version: Annotated[str, _check_version]
    pin: Id
    since: int
    series: str
    base: Id
    tree: Id
    patches: tuple[PortedPatchState, ...]
    history: bool = True
    phase: Annotated[str, _one_of(RUNNING, STOPPED, FINISHED, ABORTING)] = RUNNING
    laid: Id | None = None
    laying: Id | None = None
    shown: bool = False
    lacking: tuple[UpstreamPath, ...] = ()
    output: str | None = None
    port_format: int = PORT_FORMAT

    @property
    def next(self) -> int | None:
        """The index of the first pending patch."""
        return next((i for i, patch in enumerate(self.patches) if patch.status == WAITING), None)

    @property
    def tip(self) -> str:
        """The commit of the last ported patch, or of the version before any."""
        return next((p.commit for p in reversed(self.patches) if p.commit is not None), self.base)

    def with_patch(self, index: int, patch: PortedPatchState) -> PortState:
        """Return the state with one patch changed."""
        return replace(self, patches=(*self.patches[:index], patch, *self.patches[index + 1 :]))


def dump_state(state: PortState) -> bytes:
    """Return the text of the state file."""
    body = {"port_format": state.port_format, **plain(state)}
    return (json.dumps(body, indent=1, ensure_ascii=True) + "\n").encode()


def parse_state(data: bytes, where: str) -> PortState:
    """Parse a state file. Raises PatchError."""
    hint = "Restore the file, or remove the folder yourself: it holds nothing of npu-rl's but this port."
    try:
        body = parse_json(data.decode("utf-8"))
        if isinstance(body, dict) and body.get("port_format") != PORT_FORMAT:
            raise PatchError(
                "The port was begun by another version of npu-rl",
                where=where,
                why=f"Its format is {str(body.get('port_format'))[:20]}; this npu-rl reads {PORT_FORMAT}.",
                hint=hint,
            )
        state: PortState = build(PortState, body, "port")
    except (ValueError, RecursionError, UnexpectedShape) as error:
        raise PatchError(
            "The state of the port was edited or damaged", where=where, why=str(error), hint=hint
        ) from error
    return state
