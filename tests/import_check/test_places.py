"""What patches changed is looked at in a real process, after imports that replace or wrap some of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.yaml_documents.finding import Finding
from npu_rl.rehearsal.import_check.changed_places import ChangedPlace, changed_places
from npu_rl.rehearsal.import_check.place_check import look_at_places
from npu_rl.workspace.folder.receipt import Receipt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

CORE = """\
import functools

def plain(x):
    return x  # patched

def taken(x):
    return x  # patched

def around(x):
    return x  # patched

def decorate(function):
    @functools.wraps(function)
    def inner(*words):
        return function(*words)
    return inner

@decorate
def decorated(x):
    return x  # patched

class Layer:
    size = 3  # patched

    def forward(self):
        def inner():
            return 1  # patched
        return inner()

    @staticmethod
    def fixed():
        return 1  # patched

    @property
    def shape(self):
        return 1  # patched

    def lost(self):
        return 1  # patched

if True:
    def below_a_condition():
        return 1  # patched

LAST = 1  # patched
"""
ADAPTOR = """\
import core_package.core as core

def instead(x):
    return -x

def wrapper(function):
    def call(x):
        return function(x) + 1
    return call

core.taken = instead
core.around = wrapper(core.around)
del core.Layer.lost
"""


def lay(code: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)
    return code


def hunk(file: str, line: int, lines: list[list[str]], state: str = "in place", patch: str = "0001-x") -> Any:
    return {
        "root": "code", "file": file, "line": line, "lines": lines, "state": state,
        "patch": patch, "hunk": 1, "component": "core",
    }  # fmt: skip


def places_of(code: Path, *hunks: Any) -> list[ChangedPlace]:
    return changed_places(code, Receipt({}, {}, {}, list(hunks), {}, {}))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    files = {"core_package/__init__.py": "", "core_package/core.py": CORE}
    return lay(tmp_path / "code", {**files, "adaptor/__init__.py": "", "adaptor/patching.py": ADAPTOR})


def patched(code: Path, file: str = "core_package/core.py") -> list[ChangedPlace]:
    lines = [n for n, text in enumerate((code / file).read_text().splitlines(), 1) if "# patched" in text]
    return places_of(code, *(hunk(file, line, [["+", ""]]) for line in lines))


def look(code: Path, places: list[ChangedPlace], tops: list[str]) -> tuple[dict[str, int], list[Finding]]:
    return look_at_places(code, tops, places, sys.executable, "cpu", {}, (), lambda _: None)


def test_each_change_is_a_function_a_class_or_the_module(code: Path) -> None:
    found = {place.name: place.function for place in patched(code)}
    assert found == {
        **dict.fromkeys(["plain", "taken", "around", "decorated", "below_a_condition"], True),
        **dict.fromkeys(["Layer.forward", "Layer.fixed", "Layer.shape", "Layer.lost"], True),
        "Layer": False,
        "": False,
    }


def test_removals_count_where_they_were_and_superseded_hunks_and_scripts_not_at_all(code: Path) -> None:
    lay(code, {"script/run.py": CORE, "core_package/odd-name.py": CORE, "core_package/data.txt": "x"})
    file = "core_package/core.py"
    removal = hunk(file, 3, [["-", "old"], [" ", "def plain(x):"], ["+", "    return x"]], patch="0002-y")
    files = ("script/run.py", "core_package/odd-name.py", "core_package/data.txt", "setup.py")
    left_out = [hunk(file, 7, [["+", ""]], "superseded"), *(hunk(name, 4, [["+", ""]]) for name in files)]
    (place,) = places_of(code, hunk(file, 4, [["+", ""]]), removal, *left_out)
    assert (place.dotted, place.first, place.last) == ("core_package.core.plain", 3, 4)
    assert place.patches == ("core: 0001-x", "core: 0002-y")


def test_what_an_import_replaces_or_removes_is_an_error_and_a_wrapper_is_named(code: Path) -> None:
    states, findings = look(code, patched(code), ["adaptor", "core_package"])
    assert states == {"missing": 1, "patched": 8, "replaced": 1, "wrapped": 1}
    told = {found.message.partition(",")[0]: found for found in findings}
    assert set(told) == {f"core_package.core.{name}" for name in ("taken", "around", "Layer.lost")}
    assert told["core_package.core.taken"].message.endswith("is replaced at import by adaptor/patching.py:3")
    assert told["core_package.core.around"].message.endswith("is called by adaptor/patching.py:7")
    assert {found.severity.value for found in findings} == {"error", "note"}
    assert not list(code.rglob("__pycache__"))


SAME = """\
import core_package.core as core
{before}
def instead(value):
    return {body}

core.{place} = instead
"""


@pytest.mark.parametrize(
    ("before", "body", "state"),
    [
        ("from core_package.core import operator", "operator.neg(value)", "same"),
        ("import math as operator", "operator.neg(value)", "replaced"),  # another object of that name
        ("from core_package.core import operator", "operator.pos(value)", "replaced"),
        ("from core_package.core import operator", "operator.neg(operator.neg(value))", "replaced"),
    ],
)
def test_what_does_the_same_is_noted(code: Path, before: str, body: str, state: str) -> None:
    own = "import operator\n\ndef taken(x):\n    return operator.neg(x)  # patched\n"
    own += "\nclass Layer:\n    def forward(self):\n        return operator.neg(self)  # patched\n"
    for place in ("taken", "Layer.forward"):
        text = SAME.format(before=before, body=body, place=place)
        lay(code, {"core_package/core.py": own, "adaptor/patching.py": text})
        states, (finding,) = look(code, patched(code), ["adaptor", "core_package"])
        assert states == {"patched": 1, state: 1}
        assert finding.severity.value == ("note" if state == "same" else "error")
        assert "by adaptor/patching.py:3" in finding.message


def test_without_the_adaptor_all_places_are_the_patched_ones(code: Path) -> None:
    (code / "adaptor/patching.py").write_text("")
    states, findings = look(code, patched(code), ["adaptor", "core_package"])
    assert (states, findings) == ({"patched": 11}, [])


def test_a_replaced_class_and_module_are_found(code: Path) -> None:
    lay(code, {"adaptor/patching.py": "import core_package.core as c\nc.Layer = type('Layer', (), {})\n"})
    lay(code, {"shadow/__init__.py": "import sys, json\nsys.modules['shadow'] = json\n"})
    shadow = places_of(code, hunk("shadow/__init__.py", 1, [["+", ""]]))
    states, _ = look(code, [*patched(code), *shadow], ["adaptor", "core_package", "shadow"])
    assert states["replaced"] == 2
    assert states["missing"] == 4  # the methods of the class that is gone


def test_a_module_that_is_known_to_fail_is_noted(code: Path) -> None:
    (code / "core_package/core.py").write_text(CORE + "raise TypeError('odd')\n")
    (code / "adaptor/patching.py").write_text("")
    tops, known = ["adaptor", "core_package"], {"core_package.core"}
    _, (finding,) = look_at_places(
        code, tops, patched(code), sys.executable, "cpu", {}, (), lambda _: None, known
    )
    assert finding.severity.value == "note"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("import no_such_package", False, "needs no_such_package"),
        ("raise TypeError('odd')", True, "TypeError: odd"),
        ("import os\nos._exit(7)", True, "exited 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", True, "signal 11"),
    ],
)
def test_a_module_that_can_not_be_imported_leaves_its_places_unseen(
    code: Path, text: str, error: bool, words: str
) -> None:
    (code / "core_package/core.py").write_text(CORE + text + "\n")
    (code / "adaptor/patching.py").write_text("")
    states, (finding,) = look(code, patched(code), ["adaptor", "core_package"])
    assert states == {"unseen": 11}
    assert (finding.severity.value == "error") is error
    assert words in finding.message
    assert "core_package.core" in finding.message + finding.where
