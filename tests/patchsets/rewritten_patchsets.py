"""The shipped patches as `patches export` writes them.

`python -m tests.patchsets.rewritten_patchsets [--write] [NAME]...` says which patches of bundled manifests differ, or
writes them. Each keeps its header; its diff is made of the component's trees before and after it, from a lock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, header_of
from npu_rl.stack.git.commits import CommitFacts
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent
from npu_rl.stack.sources.url_rewriting import load_rewrites
from npu_rl.workspace.export.history_steps import TREE, PatchCommit
from npu_rl.workspace.export.patch_writer import written
from npu_rl.workspace.export.series_of_component import SeriesPatch
from npu_rl.workspace.summary.summary_sources import of_manifest
from tests.support import ROOT


def rewritten_patches(manifest: str, network: Network) -> Iterator[tuple[Path, bytes, bytes]]:
    """Each patch of a bundled manifest that npu-rl ships: its file, its bytes, and what export's writer makes of it."""
    path = bundled_manifests()[manifest]
    lock = lock_model.read(lock_model.lock_path(path))
    with of_manifest(lock, path, network, Silent(), jobs=2) as stack, Trees(stack.repository) as trees:
        for component, patch, before in _patches(lock, trees):
            file = ROOT / "patchsets" / patch.file
            if ":" in patch.file or not file.is_file():
                continue
            data = file.read_bytes()
            step = PatchCommit(CommitFacts("", patch.tree, (), 0, f"{patch.file}\n"), before, None)
            one = SeriesPatch(component, slug_of_file(patch.file), before, patch.tree, step)
            options = PatchOptions(patch.strip, patch.directory)
            yield file, data, written(trees, one, header_of(data), options)


def _patches(lock: Lock, trees: Trees) -> Iterator[tuple[str, LockedPatch, str]]:
    """Each patch with its component and the tree before it."""
    for name, component in lock.components.items():
        before = assemble.merged(component)
        for patch in component.patches:
            yield name, patch, before
            before = patch.tree
    if lock.tree_patches:
        before, _ = assemble.assemble(trees, lock, with_tree_patches=False)
        for patch in lock.tree_patches:
            yield TREE, patch, before
            before = patch.tree


# Of two manifests with MindSpeed at two pins, whose lines around the hunks differ: it keeps the context that both have.
SHARED = {"MindSpeed/7ff818c/0001-attention-scale.patch"}


def main(words: list[str]) -> int:
    network = Network.from_environment(load_rewrites())
    texts: dict[Path, dict[bytes, None]] = {}
    before: dict[Path, bytes] = {}
    for name in [word for word in words if word != "--write"] or list(bundled_manifests()):
        for file, data, text in rewritten_patches(name, network):
            texts.setdefault(file, {})[text] = None
            before[file] = data
    for file, found in sorted(texts.items()):
        if len(found) > 1:
            print(f"{file.relative_to(ROOT)}: two manifests give two texts, so it is left alone")
        elif before[file] not in found:
            print(file.relative_to(ROOT))
            if "--write" in words:
                file.write_bytes(*found)
    differ = sum(len(found) == 1 and before[file] not in found for file, found in texts.items())
    print(f"of {len(texts)} patches {differ} {'written' if '--write' in words else 'differ'}")
    return 0 if "--write" in words or not differ else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
