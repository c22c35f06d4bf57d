"""The findings and files of a port, as text for people and JSON for programs."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.stack.git.objects import short
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import HOW, RETIRE_WHEN, VERIFIED_BY, WHY, Header, parse_header
from npu_rl.stack.port.port_judgement import UNSOLVED
from npu_rl.stack.port_series.port_folder import USUAL
from npu_rl.stack.port_series.port_state import (
    FINISHED,
    PORTED,
    SKIPPED,
    STOPPED,
    UPSTREAM,
    WAITING,
    FoundHunk,
    PortedPatchState,
    PortState,
)
from npu_rl.stack.port_series.target_version import TargetRef
from npu_rl.stack.port_series.verified_by import PatchProof

_WORDS = {
    PORTED: "ported",
    UPSTREAM: "retired: upstream has it",
    SKIPPED: "skipped",
    WAITING: "waits",
}
_NAMED = 4  # paths in one line


@dataclass(frozen=True)
class PortReport:
    """A port that has stopped or ended.

    Attributes:
        texts: The text of each patch by its name: the old text, or the one in the new patchset.
        patchset: The folder of the new patchset; None at a stop, or if no patch is left.
        entry: Its path in a manifest.
        written: The files that this command wrote there.
        proofs: The results of `--verify`; None if it was not requested.
    """

    state: PortState
    folder: Path
    texts: Mapping[str, bytes]
    patchset: Path | None = None
    entry: str | None = None
    written: list[str] = field(default_factory=list)
    proofs: list[PatchProof] | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether every patch is ported, retired or skipped."""
        return self.state.phase == FINISHED

    @property
    def ok(self) -> bool:
        """Return whether it is finished, and every requested test passed."""
        return self.is_finished and all(proof.is_green for proof in self.proofs or ())

    @property
    def target(self) -> TargetRef:
        """The new version."""
        return TargetRef(self.state.ref, self.state.id)

    @property
    def stopped_at(self) -> PortedPatchState | None:
        """The patch that needs a person's attention."""
        index = self.state.next
        return self.state.patches[index] if self.state.phase == STOPPED and index is not None else None

    def header(self, patch: PortedPatchState) -> Header:
        """Return the header of a patch."""
        return parse_header(parse_patch(self.texts[patch.name], name=patch.name).header)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        stop = self.stopped_at
        return {
            "component": self.state.component,
            "manifest": self.state.manifest,
            "from": self.state.pin,
            "to": {"ref": self.state.ref, "commit": self.state.id, "version": self.state.version},
            "folder": str(self.folder),
            "state": "stopped" if stop else "finished",
            "stopped_at": stop.name if stop else None,
            "patches": [self._patch_json(patch) for patch in self.state.patches],
            "patchset": None if self.patchset is None else str(self.patchset),
            "entry": self.entry,
            "written": self.written,
            "verified": None if self.proofs is None else [asdict(proof) for proof in self.proofs],
        }

    def _patch_json(self, patch: PortedPatchState) -> dict[str, Any]:
        header = self.header(patch)
        return {
            "patch": patch.name,
            "file": patch.file,
            "state": "conflict" if patch is self.stopped_at else patch.status,
            "by_hand": patch.by_hand,
            "why": header.fields.get(WHY, ""),
            "how": header.fields.get(HOW, ""),
            "retire_when": header.fields.get(RETIRE_WHEN, ""),
            "verified_by": header.fields.get(VERIFIED_BY, ""),
            "hunks": [asdict(hunk) for hunk in patch.hunks],
        }

    # -- text --------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the table, and the next steps."""
        lines = [*self._table(), ""]
        lines += self._stop() if self.stopped_at is not None else self._end()
        return "\n".join(lines) + "\n"

    def _table(self) -> Iterator[str]:
        yield f"{self.state.component}: from {short(self.state.pin)} to {self.target}"
        for patch in self.state.patches:
            word = "conflict" if patch is self.stopped_at else _WORDS[patch.status]
            yield f"{patch.name}: {word}{' by hand' if patch.by_hand else ''}"
            for hunk in patch.hunks:
                yield from _hunk_lines(hunk, places=patch is self.stopped_at)

    def _stop(self) -> Iterator[str]:
        patch = self.stopped_at
        assert patch is not None
        yield f"{patch.name} needs you:"
        header = self.header(patch)
        for name in (WHY, HOW, RETIRE_WHEN, VERIFIED_BY):
            if header.fields.get(name):
                yield from _wrapped(f"  {name}: ", " ".join(header.fields[name].split()))
        yield f"  The patch: {patch.file}"
        unsolved = [hunk for hunk in patch.hunks if hunk.state in UNSOLVED]
        conflicts = sorted({h.path for h in unsolved if h.state == "conflict" and h.new_line is not None})
        gone = [hunk for hunk in unsolved if hunk.path not in conflicts]
        if conflicts:
            yield f"Conflict markers are in {self.folder / 'tree'}:"
            yield f"  {_listed(conflicts)}"
        if gone:
            paths = _listed(sorted({hunk.path for hunk in gone}))
            yield from _wrapped(
                "", f"Missing files, which have no markers: {paths}. Make the change where it belongs now."
            )
        command = f"npu-rl patches port {self.state.component}{self._folder_option()}"
        yield "Next, one of:"
        yield f"  edit the files there, then  {command} --continue"
        yield f"  leave this patch out:       {command} --skip"
        yield f"  give the port up:           {command} --abort"

    def _end(self) -> Iterator[str]:
        counts = {
            word: sum(p.status == word for p in self.state.patches) for word in (PORTED, UPSTREAM, SKIPPED)
        }
        words = {PORTED: "ported", UPSTREAM: "retired", SKIPPED: "skipped"}
        done = ", ".join(f"{count} {words[word]}" for word, count in counts.items() if count)
        yield f"{patch_count(len(self.state.patches))}: {done}."
        if self.patchset is not None:
            wrote = "Written to" if self.written else "Nothing to write: they are in"
            yield f"{wrote} {self.patchset}"
        yield from self._manifest_lines()
        yield from self._verification()

    def _manifest_lines(self) -> Iterator[str]:
        place = (
            f"a manifest that extends {self.state.manifest}" if self.state.is_bundled else self.state.manifest
        )
        yield f"In {place}, under components: {self.state.component}:"
        yield f"    ref: {self.target.pinned}"
        yield f"    patches: [{self.entry or ''}]"
        named = "M" if self.state.is_bundled else shlex.quote(self.state.manifest)
        yield f"Then: npu-rl lock --manifest {named}"

    def _verification(self) -> Iterator[str]:
        if self.proofs is not None:
            for proof in self.proofs:
                yield f"{proof.patch}: {proof.outcome}: {proof.command or proof.why}"
                if proof.command and proof.why:
                    yield from _wrapped("    ", proof.why)
            return
        tests = [
            (patch.name, " ".join(value.split()))
            for patch in self.state.patches
            if patch.status == PORTED and (value := self.header(patch).fields.get(VERIFIED_BY, ""))
        ]
        if tests:
            yield "Unproven until their tests have run (--verify --python P):"
            for name, value in tests:
                yield from _wrapped(f"  {name}: ", value)

    def _folder_option(self) -> str:
        usual = Path(USUAL, self.state.component).absolute()
        return "" if self.folder == usual else f" --folder {shlex.quote(str(self.folder))}"


def patch_count(count: int) -> str:
    """Return a number of patches: 1 patch, 2 patches."""
    return "1 patch" if count == 1 else f"{count} patches"


def _hunk_lines(hunk: FoundHunk, *, places: bool) -> Iterator[str]:
    place = f"{hunk.path}:{hunk.old_line}"
    if hunk.new_line is not None and hunk.new_line != hunk.old_line:
        place += f" -> {hunk.new_line}"
    inside = f" in {hunk.inside}" if hunk.inside else ""
    yield f"  hunk {hunk.number:<3} {hunk.state:<17} {place}{inside}"
    if hunk.why:
        yield from _wrapped(" " * 11, hunk.why)
    if hunk.commit is not None:
        what = "by" if hunk.state == "already upstream" else "deleted by"
        yield from _wrapped(" " * 11, f"{what} commit {hunk.commit} {hunk.subject}".rstrip())
    for number, found in enumerate(hunk.places if places else (), 1):
        where = f" in {found.inside}" if found.inside else ""
        yield f"{' ' * 11}likely place {number}: {found.path}:{found.line}{where} ({found.score:.0%} alike)"
        for line in found.context.splitlines():
            yield f"{' ' * 15}| {line}".rstrip()


def _wrapped(first: str, text: str) -> list[str]:
    indent = " " * (len(first) if not first.strip() else 4)
    return textwrap.wrap(
        text,
        80,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
