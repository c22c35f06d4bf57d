"""What may lie in a tree without being of the lock: a short list, and nothing beside it."""

# ruff: noqa: E501  a class of names is a few long lines

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.laid_files import untouched
from npu_rl.workspace.folder.local_edits import find_edits
from npu_rl.workspace.folder.receipt import Receipt, read_receipt
from npu_rl.workspace.folder.untracked_files import IGNORED, IGNORED_FOLDERS
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import ROOT
from tests.workspace.stack import look
from tests.workspace.test_every_change import bind

HEX = "0123456789abcdef01234567"

# Files, and empty folders, which end in a slash. `alpha`, `beta` and `gamma` are packages of the tree.
UNTRACKED = {
    "packages: a folder that can be imported, whatever is in it": """
        code/apex/README  code/flash_attn/.keep  code/wandb/settings  code/sglang/x.txt  code/transformer_engine/x.log
        code/torch_npu/  code/alpha/newpkg/a.txt  code/alpha/deep/more/  code/alpha/deep/er/x/y.log  code/größe/x
        code/outputs/2024-01-01/main.log  code/kernel_meta/op.json  code/tests/.gitkeep  code/amp_C/core.py~  code/xformers/.x.swp
        code/deepspeed/nohup.out  code/triton/.DS_Store  code/flashinfer/.idea/workspace.xml  code/hydra_plugins/mine/x.txt
        code/npu_rl_runtime/more/  code/a/b/c/  code/mod/__pycache__/  code/mod2/__pycache__/x.log
        code/outputs/step_1/model.safetensors""",
    "folders of other names, which code may list": """
        code/2024-01-01/  code/my-notes/x.log  code/.hydra/config.yaml  code/.ipynb_checkpoints/x.ipynb  code/alpha/.vscode/settings.json
        code/alpha/.idea/misc.xml  code/alpha/E=8,N=256.json/  code/.torchair_cache/x  code/.kv_cache_bytes/x  code/.pytest_cache/
        code/alpha/new-model/  code/alpha/old.log/  code/alpha/old~/  code/.git-x/HEAD  code/alpha/__pycache__/x/  code/alpha/.cache/""",
    "makefiles, and what make makes one from": """
        code/alpha/GNUmakefile  code/alpha/makefile  code/alpha/Makefile  code/alpha/Makefile.sh  code/alpha/Makefile,v  code/alpha/Makefile.c
        code/alpha/SCCS/s.Makefile  code/alpha/RCS/Makefile,v  code/alpha/config.mk  code/alpha/CMakeLists.txt  code/alpha/CMakePresets.json
        code/alpha/meson.build  code/alpha/build.ninja  code/BUILD  code/alpha/s.core.py  src/gamma/csrc/GNUmakefile  src/gamma/makefile""",
    "headers, sources, objects": """
        code/alpha/k.h  code/alpha/k.hpp  code/alpha/k.cuh  code/alpha/k.inc  code/alpha/k.h.gch  code/alpha/k.o  code/alpha/k.a  code/alpha/k.cpp
        code/alpha/torch_npu/csrc/core/npu/NPUStream.h  code/alpha/k.cu  code/alpha/k.d  code/lib.so.1  code/alpha/k.pyx  src/gamma/csrc/k.h
        src/gamma/csrc/k.o  src/gamma/csrc/k.h.gch  src/gamma/include/x.h  src/gamma/build/""",
    "configuration groups": """
        code/beta/newgroup/x.yaml  code/beta/x.yml  code/beta/config/  code/beta/.hydra/overrides.yaml  code/beta/a-group/x.yaml""",
    "tables and texts that code reads by a name": """
        code/alpha/configs/E=8,N=2048,device_name=Ascend910.json  code/alpha/tables/x.csv  code/alpha/chat.jinja  code/alpha/x.pt
        code/alpha/x.npz  code/alpha/tokenizer.json  code/alpha/x.parquet  code/alpha/other.bin  code/alpha/OTHER.BIN  code/alpha/py.typed  code/alpha/core.pyi
        code/alpha/x.safetensors  code/alpha/VERSION  code/alpha/notes.txt  code/notes.txt  code/alpha/vocab""",
    "what tools read in the current folder": """
        code/.env  code/.pdbrc  code/.envrc  code/.python-version  code/.netrc  code/pyproject.toml  code/setup.cfg  code/pytest.ini  code/tox.ini
        code/requirements.txt  code/.gitignore  code/.gitattributes  code/.gitmodules  code/.gdbinit  code/core.4711  code/my.patch""",
    "metadata": """
        code/alpha-1.0.dist-info/RECORD  code/zz-1.0.dist-info/x.log  code/zz.egg-info/.DS_Store  code/alpha/x.dist-info/RECORD  code/zz.egg-link
        code/yy-1.0.dist-info/  code/xx.EGG-INFO/  code/zz.EGG-INFO/PKG-INFO  code/zz.Egg-Info  code/zz-1.0-py3.11.egg
        code/zz-1.0-py3.11.EGG/EGG-INFO/PKG-INFO  code/alpha-1.0.dist-info/entry_points.txt  code/zz-1.0.dist-info/entry_points.txt""",
    "modules of every kind": """
        code/random.py  code/sitecustomize.py  code/usercustomize.py  code/npu_rl_runtime/extra.py  code/alpha.py  code/alpha/core/part.py
        code/new/__init__.py  code/new/space/deep.py  code/fast.so  code/alpha/core.cpython-311-x86_64-linux-gnu.so  code/alpha/core.abi3.so
        code/alpha/core.cpython-312-darwin.so  code/alpha/core.pyc  code/core.dylib  code/site.pth  code/RANDOM.PY  code/.hidden/x.py
        src/gamma/setup.py  code/alpha/core.py.  code/alpha/core.pyd  code/alpha/core.pyw  code/x.zip  code/x.pth  code/x.whl  code/x.ipynb  code/alpha/x.bash  code/x.jar
        code/alpha/__pycache__/out.log  code/alpha/__pycache__/core.nbi  code/__pycache__/x.cpython-311.pyc  code/alpha/conftest.py""",
    "names that nearly are on the list": f"""
        code/alpha/out.LOG  code/alpha/out.log.py  code/alpha/out.log.1  code/alpha/log  code/alpha/nohup.out.py  code/nohup.out2
        code/alpha/core.py.swp  code/alpha/.core.py.swq  code/alpha/.nfs123  code/alpha/.nfs{HEX.upper()}  code/alpha/.nfs{HEX}0
        code/alpha/#core.py  code/alpha/core.py#  code/.DS_Store2  code/.vscode-x/a.json  code/.ideas/a.xml  src/gamma/k.log.h""",
}  # fmt: skip
ODD = ("code/a b.py", "code/line\nX equals its lock.py", "code/\x1b]0;title\x07.py", "code/\udcff.py", f"code/{'n' * 250}.py",
       f"code/alpha/{unicodedata.normalize('NFD', 'größe_名.py')}", "code/alpha/out.log\n", "code/alpha/\udcff.json")  # fmt: skip
ROWS = [*(path for text in UNTRACKED.values() for path in text.split()), *ODD]


# No regular file has these names.
OTHERS: dict[str, Callable[[Path], object]] = {
    "code/alpha/link.log": lambda path: path.symlink_to("core.py"),
    "code/alpha/.#core.py": lambda path: path.symlink_to("me@host.1"),
    "code/alpha/none~": lambda path: path.symlink_to("nowhere"),
    "code/alpha/pipe.log": os.mkfifo,
    "code/alpha/socket.log": bind,
    "code/alpha/folder.log": lambda path: path.symlink_to("deep"),
    "code/later": lambda path: path.symlink_to("not-yet"),
    "code/self": lambda path: path.symlink_to("self"),
    "code/evil.py": lambda path: path.symlink_to("/etc/hosts"),
    "code/pipe.py": os.mkfifo,
    "code/pipe": os.mkfifo,
    "code/.idea/link": lambda path: path.symlink_to("/etc"),
    "code/.vscode/pipe": os.mkfifo,
    "code/.vscode": lambda path: path.symlink_to("alpha"),
}

LISTED = {
    "code/train.log": "*.log", "code/alpha/deep/x.log": "*.log", "src/gamma/csrc/build.log": "*.log", "code/nohup.out": "nohup.out",
    "code/alpha/core.py~": "*~", "code/alpha/#core.py#": "#*#", "code/alpha/.core.py.swp": ".*.sw[a-p]", "code/.x.swo": ".*.sw[a-p]",
    "code/alpha/.DS_Store": ".DS_Store", f"code/alpha/.nfs{HEX}": f".nfs{'[0-9a-f]' * 24}", "code/.idea/a/b.xml": ".idea",
    "code/.vscode/settings.json": ".vscode", "code/.vscode/mine.py": ".vscode", "src/gamma/.vscode/tasks.json": ".vscode",
}  # fmt: skip


def make(path: Path, named: str) -> Path:
    """Make a file or an empty folder; return what has to be removed to undo it."""
    undo = path
    while not undo.parent.exists():
        undo = undo.parent
    path.parent.mkdir(parents=True, exist_ok=True)
    if named.endswith("/"):
        path.mkdir()
    else:
        OTHERS.get(named, lambda p: p.write_text("x\n"))(path)
    return undo


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def root_of(row: str) -> str:
    return "code" if row.startswith("code/") else "src/gamma"


class Looking:
    """Quick and deep looks at the root that a path is in."""

    def __init__(self, paths: WorkspacePaths, receipt: Receipt) -> None:
        self.paths, self.receipt = paths, receipt
        self.known = {root: self.at(root, {}).stats for root in receipt.files}

    def at(self, root: str, known: dict[str, file_check.Stat]) -> file_check.Findings:
        return file_check.examine_root(self.paths.root, root, self.receipt.files[root], known)

    def both(self, path: str) -> tuple[file_check.Findings, ...]:
        root = root_of(path)
        return self.at(root, self.known[root]), self.at(root, {})


@pytest.fixture
def looking(paths: WorkspacePaths) -> Looking:
    return Looking(paths, read_receipt(paths))


def test_each_alone_is_drift(paths: WorkspacePaths, looking: Looking) -> None:
    assert len({*ROWS, *OTHERS}) == len(ROWS) + len(OTHERS) > 180
    missed = []
    for row in [*ROWS, *OTHERS]:
        undo = make(paths.root / row.rstrip("/"), row)
        for findings in looking.both(row):
            drift = [(f"{root_of(row)}/{d.path}", d.kind) for d in findings.drift]
            if drift != [(row, "untracked")] or findings.ignored:
                missed.append((row, drift, findings.ignored))
        remove(undo)
    assert missed == []
    assert look(paths, deep=True).ok


def test_all_together_are_what_verify_reports_and_setup_keeps(paths: WorkspacePaths) -> None:
    rows = [*ROWS, *(path for path in OTHERS if path != "code/.vscode")]
    for row in rows:
        make(paths.root / row.rstrip("/"), row)
    for deep in (False, True):
        report = look(paths, deep=deep)
        assert {(d.path, d.kind) for d in report.drift} == {(row, "untracked") for row in rows}
        assert (report.ignored, report.byte_code) == ({}, [])
    edits = find_edits(paths.root, read_receipt(paths).files).files
    assert {*edits} == {row for row in rows if not row.endswith("/")}
    assert not untouched(paths, paths.lock.read_text(encoding="utf-8"))


def test_each_name_of_the_list_is_ignored_and_kept(paths: WorkspacePaths, looking: Looking) -> None:
    assert {*LISTED.values()} == {*IGNORED, *IGNORED_FOLDERS}
    for row, pattern in LISTED.items():
        make(paths.root / row, row)
        for findings in looking.both(row):
            assert findings.drift == [], row
            what = IGNORED.get(pattern) or IGNORED_FOLDERS[pattern]
            assert findings.ignored[row.removeprefix(f"{root_of(row)}/")] == what
    (paths.code / ".idea/empty").mkdir()
    report = look(paths, deep=True)
    assert report.ok and report.ignored.keys() == LISTED.keys()
    assert {*find_edits(paths.root, read_receipt(paths).files).files} == LISTED.keys()


def test_the_page_has_the_list() -> None:
    page = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
    section = page.partition("## Untracked files\n")[2].partition("\n## ")[0]
    names = re.findall(
        r"`([^`]+)`", "".join(row.split("|")[1] for row in re.findall(r"^\| `.*", section, re.M))
    )
    patterns = {pattern.replace("[0-9a-f]" * 24, "…") for pattern in IGNORED}
    assert {*names} == patterns | {f"{folder}/" for folder in IGNORED_FOLDERS}
    assert len(names) == len({*names})
