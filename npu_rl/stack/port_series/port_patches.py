"""The command `patches port`: a component's patches from the pin of its manifest to another version.

Each method can be run again after an interruption anywhere: the state is written atomically, patches are judged from
objects alone, and the tree to lay is recorded before its files are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import PatchError, SourceError, UsageError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import EMPTY_TREE, short
from npu_rl.stack.port_series.begin_port import begin, name_of
from npu_rl.stack.port_series.port_folder import PortFolder
from npu_rl.stack.port_series.port_report import PortReport
from npu_rl.stack.port_series.port_result import (
    own_headers,
    patchset_texts,
    place_of,
    ported_text,
    write_patchset,
)
from npu_rl.stack.port_series.port_state import (
    ABORTING,
    FINISHED,
    PORTED,
    RUNNING,
    SKIPPED,
    STOPPED,
    UPSTREAM,
    PortedPatchState,
    PortState,
)
from npu_rl.stack.port_series.port_steps import judge, message_of, old_patch, tree_with, with_hunks
from npu_rl.stack.port_series.port_work_tree import LAID_REF, PortWorkTree, tree_of, with_markers
from npu_rl.stack.port_series.target_version import TargetRef, upstream_at
from npu_rl.stack.port_series.upstream_history import UpstreamHistory
from npu_rl.stack.port_series.verified_by import VerifiedBy
from npu_rl.stack.resolve.refs import is_full_id
from npu_rl.stack.resolve.upstream_repository import Context
from npu_rl.stack.sources.git_remote import ls_remote

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_SHOWN = 20


@dataclass
class Port:
    """A port in its folder. Methods raise any NpuRlError, and lose nothing then.

    Attributes:
        loaded: The manifest.
        output: The folder for the new patchset; None for that of an earlier command, or else the usual one.
    """

    folder: PortFolder
    context: Context
    loaded: LoadedManifest
    output: Path | None = None

    def __post_init__(self) -> None:
        self.work = PortWorkTree(self.folder.tree)

    def run(self, component: str, to: str | None, *, history: bool) -> PortReport:
        """Begin a port, or continue the one in the folder; a stop is reported again."""
        state = self.folder.read() if self.folder.is_there else None
        if state is None:
            if to is None:
                raise UsageError("Missing option --to", hint="Name the version to port to: --to REF")
            begin(self.context, self.loaded, component, to, self.folder, history=history)
        else:
            _require_same(self.folder, state, component, to)
        with self._opened(component, begun=state is not None) as state, self._trees() as trees:
            return self._go_on(trees, replace(state, history=state.history and history))

    def go_on(self, component: str) -> PortReport:
        """Take the work tree as the result of the stopped patch, and port the patches after it."""
        with self._opened(component) as state, self._trees() as trees:
            if state.phase == STOPPED and state.shown:
                state = self._taken(trees, state)
            return self._go_on(trees, state)

    def skip(self, component: str) -> PortReport:
        """Leave out the stopped patch and the edits of the work tree, and port the patches after it."""
        with self._opened(component) as state, self._trees() as trees:
            if state.phase == STOPPED and state.shown:
                state = self._skipped(trees, state)
            return self._go_on(trees, state)

    def verified(self, report: PortReport, python: str) -> PortReport:
        """Run the tests of the ported patches on the work tree, which must be the ported tree."""
        state = report.state
        self._refuse(
            self._differing(state),
            "The work tree is not the ported tree",
            "Put these files back, or move them away, then run the same command: git -C {tree} status",
        )
        headers = {patch.name: report.header(patch) for patch in state.patches if patch.status == PORTED}
        tests = VerifiedBy(
            *(python, self.folder.tree, self.loaded.path.parent, self._edited(state)),
            *(lambda: self._differing(state), self.context.notify),
        )
        return replace(report, proofs=tests.run(headers))

    def _edited(self, state: PortState) -> frozenset[str]:
        """Return the files that the port has changed in the new version: a patch ported by hand may change others."""
        with self.folder.alone(), self._trees() as trees:
            changed = trees.changed(state.tree, tree_of(trees, state.tip))
            return frozenset(path for path, _, _ in changed)

    def _differing(self, state: PortState) -> list[str]:
        """Return the files that differ between the work tree and the ported tree, with those that git ignores."""
        with self.folder.alone(), self._trees() as trees:
            tree = tree_of(trees, state.tip)
            found = self.work.read(trees, tree, ())
            paths = [path for path, _, _ in trees.changed(tree, found.tree)]
        return sorted({*paths, *self.work.ignored()})

    def shown(self) -> None:
        """Record that the stop was shown: a patch can't be skipped unseen."""
        state = self.folder.read()
        if state is not None and state.phase == STOPPED and not state.shown:
            self.folder.write(replace(state, shown=True))

    # -- the state -------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, component: str, *, begun: bool = True) -> Iterator[PortState]:
        with _opened(self.folder, component) as state:
            if component not in self.loaded.manifest.components:
                raise UsageError(
                    f"{name_of(self.loaded)} has no component {component}", hint="Name its manifest."
                )
            if state.phase == ABORTING:
                raise UsageError(
                    "This port is being removed", hint="Finish that: the same command with --abort"
                )
            if begun and state.phase != FINISHED:
                self._note_moved_ref(state)
            state = replace(state, manifest=name_of(self.loaded), is_bundled=self.loaded.bundled)
            yield state if self.output is None else replace(state, output=str(self.output.absolute()))

    def _note_moved_ref(self, state: PortState) -> None:
        """Print a note on a ref whose commit has changed since the start; the port keeps the earlier commit."""
        if is_full_id(state.ref) or self.context.network.offline:
            return
        network = replace(self.context.network, retries=0)
        reasons = []
        for source in self.loaded.manifest.components[state.component].sources:
            if source.git is None:
                continue
            try:
                with self.context.store.quarantine() as folder:
                    found = ls_remote(Git(folder), source.git, [state.ref], network, state.component)
            except SourceError as error:
                reasons.append(f"{error.what}: {error.why}")
                continue
            now = found.get(state.ref)
            if now not in (None, state.id):
                self._note_moved(state, f"is at {short(now or '')} now")
            if now is not None:
                return
        if reasons:
            self.context.notify(f"note: {state.ref} could not be checked for changes: {'; '.join(reasons)}")
        else:
            self._note_moved(state, "no longer exists")

    def _note_moved(self, state: PortState, how: str) -> None:
        self.context.notify(
            f"note: {state.ref} of {state.component} {how}; this port stays with {short(state.id)}, where it began"
        )

    @contextmanager
    def _trees(self) -> Iterator[Trees]:
        if not self.work.git_dir.is_dir():
            raise PatchError(
                "The repository of this port is gone",
                where=str(self.work.git_dir),
                hint="The ported patches are lost with it. Copy your edits, then start again: run the same command "
                "with --abort, then with --to REF.",
            )
        with Trees(Git(self.work.git_dir)) as trees:
            yield trees

    # -- steps -----------------------------------------------------------------------------------

    def _go_on(self, trees: Trees, state: PortState) -> PortReport:
        history = self._history(trees, state)
        try:
            while state.phase == RUNNING and state.next is not None:
                state = self._step(trees, state, state.next, history)
        finally:
            if history is not None:
                history.close()
        return self._stop_report(trees, state) if state.phase == STOPPED else self._finished(trees, state)

    def _step(self, trees: Trees, state: PortState, index: int, history: UpstreamHistory | None) -> PortState:
        """Port one patch and write the state."""
        ported = judge(trees, state, index, history)
        patch = with_hunks(state.patches[index], ported, history)
        tree = tree_with(trees, state, index, ported)
        if ported.is_clean and tree == tree_of(trees, state.tip):
            return self.folder.write(state.with_patch(index, replace(patch, status=UPSTREAM)))
        if ported.is_clean:
            return self.folder.write(
                state.with_patch(index, self._committed(trees, state, index, patch, tree))
            )
        state = self._laid(trees, state.with_patch(index, patch), tree)
        return self.folder.write(replace(state, phase=STOPPED, shown=False))

    def _committed(
        self, trees: Trees, state: PortState, index: int, patch: PortedPatchState, tree: str
    ) -> PortedPatchState:
        message = message_of(old_patch(trees, patch).header) or patch.name
        commit = self.work.commit(trees, tree, state.tip, index + 1, message)
        return replace(patch, status=PORTED, commit=commit)

    def _laid(self, trees: Trees, state: PortState, tree: str) -> PortState:
        """Write a tree's files into the work tree, on top of the commits so far."""
        before = state.laid or EMPTY_TREE
        self.work.check_untouched(trees, before, tree)
        self.work.anchor(LAID_REF, tree)
        state = self.folder.write(replace(state, laying=tree))
        self.work.lay(trees, before, tree)
        self.work.show(state.tip)
        return replace(state, laid=tree, laying=None)

    def _taken(self, trees: Trees, state: PortState) -> PortState:
        """Commit the work tree as the result of the stopped patch. Raises PatchError."""
        index, tip = state.next, tree_of(trees, state.tip)
        assert index is not None and state.laid is not None
        patch = state.patches[index]
        found = self.work.read(trees, state.laid, [file.path for file in old_patch(trees, patch).files])
        self._refuse(
            found.unknown,
            "The work tree has new files that are not of the patch",
            "Remove them, or take them into the patch: git -C {tree} add FILE",
        )
        self._refuse(
            with_markers(trees, tip, found.tree),
            f"Conflict markers of {patch.name} are left",
            "Edit these files in {tree}, or leave the patch out: --skip",
        )
        if found.tree in (state.laid, tip):
            unchanged = f"Nothing was changed for {patch.name}"
            what = unchanged if found.tree == state.laid else f"{patch.name} has no change left"
            raise PatchError(
                what,
                where=str(self.folder.tree),
                hint="Make its change in the work tree, or leave it out: --skip",
            )
        # Before the state has it: at the end of the series only an --abort would be left.
        ported_text(trees, state.component, patch, tip, found.tree)
        done = self._committed(trees, state, index, replace(patch, by_hand=True), found.tree)
        self.work.anchor(LAID_REF, found.tree)
        state = replace(state.with_patch(index, done), phase=RUNNING, laid=found.tree)
        return self.folder.write(state)

    def _refuse(self, paths: tuple[str, ...] | list[str], what: str, hint: str) -> None:
        if paths:
            more = f"\nand {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            raise PatchError(
                what,
                where=str(self.folder.tree),
                why="\n".join(paths[:_SHOWN]) + more,
                hint=hint.format(tree=self.folder.tree),
            )

    def _skipped(self, trees: Trees, state: PortState) -> PortState:
        index = state.next
        assert index is not None and state.laid is not None
        patch = state.patches[index]
        found = self.work.read(trees, state.laid, [file.path for file in old_patch(trees, patch).files])
        known = trees.put_all(found.tree, [(path, None) for path in found.unknown])
        self.work.anchor(LAID_REF, known)
        state = replace(state.with_patch(index, replace(patch, status=SKIPPED)), phase=RUNNING, laid=known)
        return self.folder.write(state)

    def _history(self, trees: Trees, state: PortState) -> UpstreamHistory | None:
        if not state.history or state.pin == state.id:
            return None
        target = TargetRef(state.ref, state.id)
        paths = {file.path: None for patch in state.patches for file in old_patch(trees, patch).files}
        upstream = upstream_at(self.context, self.loaded, state.component, state.ref)
        return UpstreamHistory(upstream, self.folder.history, state.pin, target, state.since, list(paths))

    # -- ends ------------------------------------------------------------------------------------

    def _stop_report(self, trees: Trees, state: PortState) -> PortReport:
        return PortReport(state, self.folder.root, self._texts_of(trees, state))

    def _finished(self, trees: Trees, state: PortState) -> PortReport:
        texts = patchset_texts(trees, state)
        place = place_of(state)
        if state.phase == FINISHED:
            texts |= own_headers(place.folder, texts)
        written = write_patchset(place, texts, beside_others=state.phase == FINISHED)
        if state.phase != FINISHED:
            state = self.folder.write(
                replace(self._laid(trees, state, tree_of(trees, state.tip)), phase=FINISHED)
            )
        return PortReport(
            state,
            self.folder.root,
            self._texts_of(trees, state) | texts,
            patchset=place.folder if texts else None,
            entry=place.entry if texts else None,
            written=[str(path) for path in written],
        )

    def _texts_of(self, trees: Trees, state: PortState) -> dict[str, bytes]:
        return {patch.name: trees.blob(patch.text) for patch in state.patches}


def remove_port(folder: PortFolder, component: str) -> list[str]:
    """Remove a port; return the files left because npu-rl did not write them. Raises UsageError, PatchError."""
    with _opened(folder, component) as state:
        folder.write(replace(state, phase=ABORTING))
        work = PortWorkTree(folder.tree)
        known = work.files([tree for tree in (state.laid, state.laying) if tree is not None])
    return folder.remove(known)


def require_port(folder: PortFolder, component: str) -> None:
    """Raise UsageError without a port to continue."""
    if not folder.is_there:
        raise UsageError(
            f"No port of {component} is there",
            where=str(folder.root),
            hint=f"Begin one: npu-rl patches port {component} --to REF. One elsewhere has to be named: --folder DIR",
        )


@contextmanager
def _opened(folder: PortFolder, component: str) -> Iterator[PortState]:
    require_port(folder, component)
    with folder.alone():
        state = folder.read()
        if state is None:
            raise UsageError(
                "The port was ended before it had begun", hint="Run the command with --to again."
            )
        _require_same(folder, state, component, None)
        yield state


def _require_same(folder: PortFolder, state: PortState, component: str, to: str | None) -> None:
    if component != state.component or (to is not None and to not in (state.to, state.ref, state.id)):
        remove = f"npu-rl patches port {state.component} --abort"
        kind, first = "port", f"Finish that one, remove it ({remove}),"
        if state.phase == FINISHED:
            kind, first = "finished port", f"Remove it, which keeps the new patchset ({remove}),"
        hint = f"{first} or choose another folder: --folder DIR"
        raise UsageError(
            f"The folder has a {kind} of {state.component} to {state.to}", where=str(folder.root), hint=hint
        )
