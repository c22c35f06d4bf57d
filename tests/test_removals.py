"""npu-rl removes only what it made: the modules that remove or rename files, each with what it may touch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "npu_rl"

# Modules that remove, rename or replace files themselves. All others call these.
MAY_CHANGE = {
    "common/disk.py": "whatever `remove_tree` is called for (see below); its own temporary and lock files",
    "common/confined_changes.py": "the known places of a workspace, through no link",
    "stack/installation/new_environment.py": "the empty folders of an environment that it has made, after an error",
    "workspace/folder/workspace_lock.py": "the empty folders that a failed setup made",
    "stack/store.py": "units, quarantines and locks in a store that has npu-rl's mark",
    "stack/bundles/bundled_store.py": "a pack that it has just written, in a quarantine",
    "stack/bundles/bundled_packages.py": "the list that it has just written for pip, in its staging folder",
    "stack/sources/git_fetch.py": "packs and objects of a transfer, in a quarantine",
    "stack/sources/pypi.py": "the part of a download, in a quarantine",
    "common/byte_code.py": "byte code folders in its own cache",
    "common/private_log.py": "its own logs, when they are rotated",
    "data/datasets/staged_folder.py": "datasets that prepared.json lists, and its own staging folders",
    "training/record/record_masking.py": "a log of a run, which its masked version replaces",
    "training/record/remove_run.py": "a run's folder, or in it what a record lists, its empty folders and its lock",
    "runtime/weight_transfer_deadline.py": "the shared memory of a weight sync, as verl does",
    "training/run/resume_point.py": "data.pt of a step that is not whole, which is renamed to data.pt.incomplete",
    "weights/checkpoints/other_files.py": "*.part of the files that it copies",
    "weights/checkpoints/unfinished_files.py": "parts of the output's own files",
    "weights/tensors/npu_rl_tensors/cast.py": "*.part of its output",
    "weights/tensors/npu_rl_tensors/conversion/tasks.py": "*.part of its output",
    "weights/tensors/npu_rl_tensors/conversion/write_checkpoint.py": "*.part of its output, and its list of places",
    "weights/tensors/npu_rl_tensors/ray_driver.py": "the files that it wrote to see which hosts share a folder",
    "training/injected/npu_rl_nodes.py": "nodes.json of the run, which its next version replaces",
    "training/injected/npu_rl_stacks.py": "stacks/N.json of the run, which it has just written beside it",
}
# Modules that have `disk` remove something.
MAY_REMOVE = {
    "stack/compose/apply_patch.py": "its index, in a quarantine",
    "data/data_check/mindspeed_rl_files.py": "the work folder beside its output, whose name it gives",
    "data/datasets/prepare_dataset.py": "the Parquet files that it has just written and converted",
    "data/datasets/staged_folder.py": "its own staging folders",
    "recipes/recipe/copy_recipe.py": "the copy that it has just made, if the rest fails",
    "training/record/remove_run.py": "runs that it has renamed to .NAME.removed-HEX",
    "training/record/run_record.py": "the folder of a run that it could not put in place",
    "training/record/settle_killed_run.py": "unfinished tiny models with the process id of a killed run",
    "training/record/temporary_folders.py": "the temporary folders that it made",
    "rehearsal/made_checkpoint.py": "its own staging folder",
    "stack/sources/git_fetch.py": "its folder for one way to fetch, in a quarantine",
    "stack/store.py": "units, quarantines and leftovers with names of the store's own form",
    "training/run/tiny_model.py": "its own staging folder",
    "training/run/export_run.py": "its own staging folder",
    "weights/checkpoints/unfinished_files.py": "staging folders of killed exports, whose lock nobody holds",
    "common/confined_changes.py": "the known places of a workspace",
    "stack/patches/written_files.py": "the patches that its callers wrote: exports by SHA-256; empty folders it made",
    "stack/port/port.py": "the folder of a port: one that it has just made, or that has nothing but commits of patches",
    "workspace/folder/local_commits.py": "the temporary view of a repository that it made",
}

OF_MODULES = {
    "os": {"unlink", "remove", "rmdir", "removedirs", "rename", "renames", "replace"},
    "shutil": {"rmtree", "move"},
}
OF_PATHS = {"unlink", "rmdir", "rename", "replace"}
OF_DISK = {"remove_tree", "remove_in"}
# Only what matches is parsed: 1 second in place of 5. A `replace` whose first argument is a text has a second one.
WORTH_PARSING = re.compile(
    r"\.(?:unlink|rmdir|rename|renames|removedirs|rmtree)\b|\bremove_(?:tree|in)\b|\bos\.remove\b|\bos as\b"
    r"|from os import|shutil\.move|from shutil|\.replace\b(?!\((?:\"[^\"\n]*\"|'[^'\n]*'),)"
)


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each place where a file is removed or renamed, as far as the text shows.

    `replace` of a path has one argument; that of a text two or three, and that of a date or a dataclass names them.
    """
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {"os": "os", "shutil": "shutil"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({item.asname: item.name for item in node.names if item.asname})
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in OF_MODULES:
            for item in node.names:
                if item.name in OF_MODULES[node.module]:
                    yield node.lineno, f"{node.module}.{item.name}"
        if not isinstance(node, ast.Attribute):
            continue
        module = names.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
        if module in OF_MODULES:
            if node.attr in OF_MODULES[module]:
                yield node.lineno, f"{module}.{node.attr}"
        elif node.attr in OF_PATHS and module != "dataclasses":
            call = called.get(id(node))
            one = call is not None and len(call.args) == 1 and not call.keywords
            target = call is not None and not call.args and [word.arg for word in call.keywords] == ["target"]
            if node.attr in ("unlink", "rmdir") or call is None or one or target:
                yield node.lineno, f".{node.attr}"


def removals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each use of `disk.remove_tree` and `disk.remove_in`."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in OF_DISK:
            assert isinstance(node, ast.expr)
            yield node.lineno, name


def modules() -> dict[str, ast.Module]:
    texts = {
        path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if "_data" not in path.parts
    }
    assert len(texts) > 500
    parsed = {path: ast.parse(text) for path, text in texts.items() if WORTH_PARSING.search(text)}
    return {path.relative_to(PACKAGE).as_posix(): tree for path, tree in parsed.items()}


def test_only_these_modules_remove_or_rename() -> None:
    trees = modules()
    direct = {name: found for name, tree in trees.items() if (found := list(changes(tree)))}
    assert {name: found for name, found in direct.items() if name not in MAY_CHANGE} == {}
    through = {name: found for name, tree in trees.items() if (found := list(removals(tree)))}
    through.pop("common/disk.py")
    assert {name: found for name, found in through.items() if name not in MAY_REMOVE} == {}
    stale = (MAY_CHANGE.keys() - direct.keys()) | (MAY_REMOVE.keys() - through.keys())
    assert stale == set(), "these modules remove nothing any more"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\nos.unlink(p)", "os.unlink"),
        ("import os as system\nsystem.replace(a, b)", "os.replace"),
        ("from shutil import rmtree as clear\nclear(p)", "shutil.rmtree"),
        ("from os import remove", "os.remove"),
        ("import shutil\nwith_all(shutil.rmtree)", "shutil.rmtree"),
        ("path.unlink(missing_ok=True)", ".unlink"),
        ("map(Path.rmdir, found)", ".rmdir"),
        ("(folder / 'x').rename(name)", ".rename"),
        ("part.replace(path)", ".replace"),
        ("part.replace(target=path)", ".replace"),
        ("each(part.replace)", ".replace"),
        ("text.replace('a', 'b')\ntext.replace('a', 'b', 1)", ""),
        ("now.replace(tzinfo=None)\nnow.replace(hour=1, minute=2)", ""),
        ("import dataclasses\ndataclasses.replace(one, x=1)", ""),
        ("from dataclasses import replace\nreplace(one, x=1)\nreplace(one)", ""),
        ("frame.rename(columns=names)", ""),
        ("node.attr.remove(x)\nnames.remove(x)", ""),
    ],
)
def test_what_counts_as_a_change(text: str, found: str) -> None:
    assert [name for _, name in changes(ast.parse(text))] == ([found] if found else [])
    assert WORTH_PARSING.search(text) or not found
