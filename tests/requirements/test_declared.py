"""Which files of a component count, what they name, and what a stranger's files may do to that."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from npu_rl.stack.requirements.declared import LARGEST, Declared, ReadFiles, declared_requirements
from tests.support import ROOT

BAD = sorted((ROOT / "tests" / "fixtures" / "bad_requirements").iterdir())


def reader(files: Mapping[str, bytes]) -> ReadFiles:
    def read(paths: Sequence[str]) -> Mapping[str, bytes | None]:
        return {path: files[path] for path in paths if path in files}

    return read


def declared(files: Mapping[str, str], device: str = "npu", named: Sequence[str] | None = None) -> Declared:
    content = {path: text.encode() for path, text in files.items()}
    return declared_requirements(reader(content), ["."], device, named)


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad_input(case: Path) -> None:
    files = {str(p.relative_to(case)): p.read_bytes() for p in case.rglob("*") if p.is_file()}
    expected = json.loads(files.pop("expect.json"))
    found = declared_requirements(reader(files), ["."], "npu", None)
    assert {path: list(bounds) for path, bounds in found.files.items()} == expected["bounds"]
    assert len(found.unread) == len(expected["unread"]), found.unread
    for reason, pattern in zip(found.unread, expected["unread"], strict=True):
        assert re.fullmatch(pattern, reason), reason
    assert "secret" not in repr(found)


STACK = {
    "requirements.txt": "a<1",
    "requirements-npu.txt": "b<2",
    "requirements-cuda.txt": "c<3",
    "requirements-dev.txt": "d<4",
    "requirements-test.txt": "d<4",
    "requirements/common.txt": "e<5",
    "requirements/build.txt": "d<4",
    "requirements/cuda.txt": "-r common.txt\nf<6",
    "docs/requirements.txt": "d<4",
    "setup.py": "setup(install_requires=['g<7'], extras_require={'gpu': ['h<8'], 'all': ['i<9']})",
    "pyproject.toml": "[build-system]\nrequires = ['d<4']\n[project]\ndependencies = ['j<10']",
}


def test_files_of_the_device_count() -> None:
    npu = declared(STACK).files
    assert list(npu) == [
        "requirements.txt",
        "requirements-npu.txt",
        "requirements/common.txt",
        "setup.py",
        "pyproject.toml",
    ]
    assert [bound for bounds in npu.values() for bound in bounds] == ["a<1", "b<2", "e<5", "g<7", "j<10"]
    assert set(declared(STACK, "cuda").files) == {
        "requirements.txt",
        "requirements-cuda.txt",
        "requirements/common.txt",
        "requirements/cuda.txt",
        "setup.py",
        "pyproject.toml",
    }


def test_the_manifest_may_name_them_instead() -> None:
    named = ["docs/requirements.txt", "setup.py[gpu,all]", "gone.txt"]
    found = declared(STACK, named=named)
    assert found.files == {
        "docs/requirements.txt": ("d<4",),
        "setup.py": ("g<7",),
        "setup.py[gpu]": ("h<8",),
        "setup.py[all]": ("i<9",),
    }
    assert found.missing == ["gone.txt"]
    assert declared(STACK, named=[]) == Declared()


def test_what_is_too_much_is_named() -> None:
    assert declared({"requirements.txt": "#" * LARGEST + "\na<1"}).unread == [
        "requirements.txt: larger than 262144 bytes"
    ]
    odd = declared({"requirements.txt": "-e .\n" * 100}).unread
    assert len(odd) == 21 and odd[-1] == "and 80 more"
    chain = {f"{n}.txt": f"-r {n + 1}.txt" for n in range(1000)}
    assert declared({**chain, "requirements.txt": "-r 0.txt"}).unread == ["more than 100 files are named"]
