"""The command `patches port`: a rebase in a repository of its own, and the new patchset when it has ended."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.disk import remove_tree
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.common.folder_owner import require_own
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.commits import commits_down_to
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.patches.series import SERIES
from npu_rl.stack.patches.series_file import with_names
from npu_rl.stack.patches.written_files import write_files
from npu_rl.stack.port.both_versions import OldPatch, both_versions, series_of
from npu_rl.stack.port.port_repository import BRANCH, NEW, OLD, PATCHES, PortRepository, uncommitted
from npu_rl.stack.port.port_state import PortState, read_state, state_file, write_state
from npu_rl.stack.port.ported_patches import PortedPatch, RebasedPatches
from npu_rl.stack.store import Store

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.resolve.upstream_repository import Context

STOPPED, QUESTIONS, FINISHED = "stopped", "questions", "finished"


@dataclass(frozen=True)
class PortReport:
    """A port that has stopped or ended.

    Attributes:
        manifest: The path of a user's manifest; None for a bundled one.
        ref: The value of a manifest's `ref:` for the new version.
        folder: The repository.
        moved: Files that the new version lacks, with files there that may be the same.
        state: "stopped" by conflicts, "questions" if a person has to look, or "finished", with the folder removed.
        stopped_at: The patch with the conflicts.
        header: The fields of its header.
        conflicts: The files with conflicts.
        patches: What became of each patch, once the rebase has ended.
        entry: The new patchset, as a manifest names it; None if no patch is left.
        written: The files that this command wrote.
    """

    component: str
    manifest: str | None
    ref: str
    folder: str
    moved: dict[str, list[str]]
    state: str = STOPPED
    stopped_at: str | None = None
    header: dict[str, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    patches: list[PortedPatch] = field(default_factory=list)
    entry: str | None = None
    written: list[str] = field(default_factory=list)


def begin(
    context: Context, loaded: LoadedManifest, component: str, to: str, folder: Path, output: Path | None
) -> PortReport:
    """Port a component's patches to another version; the folder stays only if a person is needed.

    Raises:
        UsageError, LockError, SourceError, PatchError, ComposeError: Nothing has changed then.
    """
    if os.path.lexists(folder):
        hint = "Finish that port (--finish), remove the folder, or choose another one: --folder DIR"
        raise UsageError("The folder of the port exists", where=str(folder), hint=hint)
    with both_versions(context, loaded, component, to) as both:
        state = PortState(
            component=component,
            manifest=None if loaded.bundled else str(loaded.path),
            ref=both.ref,
            version=both.version,
            output=None if output is None else str(output.absolute()),
            moved=both.moved,
            series=series_of(loaded, component),
            headers={one.name: one.header.decode("utf-8", "surrogateescape") for one in both.patches},
        )
        port = _Port(PortRepository(folder), context.store, state)
        try:
            port.repository.create(both, context.store.root / "rerere")
            write_state(port.repository.git_dir, state)
            port.repository.rebase(len(both.patches))
            report = port.report()
        except BaseException:
            remove_tree(folder)
            raise
    if report.state == FINISHED:
        remove_tree(folder)
    return report


def finish(
    store: Store, component: str, folder: Path, output: Path | None, accepted: Collection[str]
) -> PortReport:
    """Write the new patchset of a port whose rebase has ended, and remove its folder.

    Args:
        accepted: The patches whose questions a person has answered.

    Raises:
        UsageError: If there is no port of the component.
        HostError: If the folder is another user's.
        PatchError: For changes in no commit, commits of no patch, and files in the way. Nothing has changed then.
    """
    repository = PortRepository(folder)
    require_own("port", folder, repository.git_dir, state_file(repository.git_dir))
    state = read_state(repository.git_dir)
    if state is None or state.component != component:
        hint = f"Begin one: npu-rl patches port {component} --to REF. One elsewhere is named by --folder DIR."
        raise UsageError(f"No port of {component} is there", where=str(folder), hint=hint)
    for name in accepted:
        if name not in state.headers:
            hint = f"One of: {', '.join(state.headers)}"
            raise UsageError(f"Unknown patch {name}", where="--accept", hint=hint)
    if output is not None:
        state = replace(state, output=str(output.absolute()))
    report = _Port(repository, store, state).report(accepted)
    if report.state == FINISHED:
        remove_tree(folder)
    return report


@dataclass(frozen=True)
class _Port:
    repository: PortRepository
    store: Store
    state: PortState

    def report(self, accepted: Collection[str] = ()) -> PortReport:
        """Describe a stop; else judge the commits, and write the new patchset if no question is left."""
        repository, state = self.repository, self.state
        folder, tips = (
            str(repository.folder),
            {ref: repository.commit_of(ref) for ref in (PATCHES, NEW, BRANCH)},
        )
        report = PortReport(state.component, state.manifest, state.ref, folder, state.moved)
        with repository.viewed(self.store) as view, Trees(view) as trees:
            old, *befores = reversed(commits_down_to(view, tips[PATCHES]))
            (new,) = commits_down_to(view, tips[NEW])
            headers = (header.encode("utf-8", "surrogateescape") for header in state.headers.values())
            named = zip(state.headers, headers, befores, strict=True)
            patches = [OldPatch(name, header, commit.tree) for name, header, commit in named]
            commits = commits_down_to(view, tips[BRANCH], base=new.id)[::-1]
            rebased = RebasedPatches(trees, state.component, patches, old.tree, new.tree, commits)
            if repository.is_stopped:
                return replace(report, conflicts=repository.conflicts(), **self._stop(rebased, view))
            if commits and commits[0].parents != (new.id,):
                again = f"git -C {shlex.quote(folder)} rebase --onto {NEW} {OLD} port"
                why = "The rebase was aborted, or has merged something."
                raise PatchError("The patches are not on the new version", where=folder, why=why, hint=again)
            if others := [*repository.other_refs(), *uncommitted(view)]:
                raise PatchError(
                    "The folder of the port has work that is in no patch, and a finished port is removed",
                    where=folder,
                    why="\n".join(others),
                    hint="Commit it into a patch (git commit --amend), or move it away.",
                )
            ported, texts = rebased.judged()
        report = replace(report, state=QUESTIONS, patches=ported)
        if any(patch.questions and patch.patch not in accepted for patch in ported):
            return report
        entry, written = self._write(texts) if texts else (None, [])
        return replace(report, state=FINISHED, entry=entry, written=written)

    def _stop(self, rebased: RebasedPatches, view: Git) -> dict[str, Any]:
        """Return the fields of a report on the patch that a rebase has stopped at."""
        commit = self.repository.commit_of("REBASE_HEAD")
        number = commits_down_to(view, commit)[0].number if commit else 0
        if not 1 <= number <= len(rebased.patches):
            return {}  # a stop or a commit of the user's own
        patch = rebased.patches[number - 1]
        header = parse_header(patch.header.decode("utf-8", "replace"))
        return {"stopped_at": patch.name, "header": dict(header.fields)}

    def _write(self, texts: dict[str, bytes]) -> tuple[str, list[str]]:
        """Write the new patchset; return its name in a manifest, and its files. Raises PatchError, HostError."""
        state = self.state
        beside = Path.cwd() if state.manifest is None else Path(state.manifest).parent
        usual = beside / "patches" / state.component / state.version
        folder = usual if state.output is None else Path(state.output)
        if folder.is_dir() and any(folder.iterdir()):
            hint = "Move its files away, or choose another folder: --output DIR"
            raise PatchError("The folder of the new patchset is not empty", where=str(folder), hint=hint)
        series = with_names(state.series, list(texts)).encode("utf-8", "surrogateescape")
        files = {folder / name: text for name, text in {**texts, SERIES: series}.items()}
        write_files(files)
        inside = folder.is_relative_to(beside)
        return f"./{folder.relative_to(beside).as_posix()}" if inside else str(folder), [*map(str, files)]
