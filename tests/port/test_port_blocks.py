"""The same lines in another block are another place: a branch, a loop, a call, a stage, a section, an overload."""

from __future__ import annotations

import pytest

from tests.port.judging import judged, only

STEPS = ("one", "two", "three", "middle", "five", "six", "seven")
CHANGED = ("middle", "middle --npu")


def steps(margin: str, text: str = "{0}()") -> str:
    return "".join(f"{margin}{text.format(step)}\n" for step in STEPS)


IF = "def f(x):\n    if {0}:\n{1}    else:\n{2}    return x\n"
LOOPS = "def f(rows):\n    for {0} in rows:\n{1}    for {2} in rows:\n{1}"
PLACED = "{0}:\n    def f(x):\n{1}else:\n    def f(x):\n{1}"
CASE = "case $1 in\n  npu)\n{0}    ;;\n  gpu)\n{1}    ;;\nesac\n"
SHELL_IF = 'if [ "$1" = npu ]; then\n{0}else\n{1}fi\n'
IFDEF = "void run(int x) {{\n#ifdef USE_NPU\n{0}#else\n{1}#endif\n}}\n"
STAGES = "FROM a:1 AS npu\n{0}\nFROM b:1 AS gpu\n{1}\n"
SECTIONS = "# Doc\n\n## On NPUs\n\n{0}\n## On GPUs\n\n{1}"
ARGUMENT = '    p.add_argument(\n        "{0}",\n        type=float,\n        default={1},\n    )\n'
CALLS = "def args(p):\n" + ARGUMENT.format("--lr", 0.1) + ARGUMENT.format("--wd", 0.5)
USES = "def f(x):\n    if npu:\n        first(x)\n    y = middle(x)\n    if npu:\n        second(x)\n    return y\n"
ADDED = "        synchronize(x)\n        empty_cache(x)\n        report_memory(x)\n"
ORDER = "def step(opt):\n    opt.backward()\n    clip(opt)\n    opt.step()\n    opt.zero_grad()\n"
PARTS = "    synchronize(opt)\n    check_overflow(opt)\n    report_memory(opt)\n"

PY, SH = steps("        "), steps("    ", "{0}_step")
CPP = steps("  ", "{0}(x);")
RUN = steps("", "RUN {0} it")
OTHER = "        other()\n"

# What stood, what the patch makes of it, what the new version has, and the file.
ANOTHER_BLOCK = {
    "branch": (IF.format("npu", PY, OTHER), CHANGED, IF.format("npu", OTHER, PY), "m.py"),
    "inverted": (IF.format("npu", PY, PY), CHANGED, IF.format("gpu", PY, PY), "m.py"),
    "definition": (PLACED.format("if npu", PY), CHANGED, PLACED.format("if gpu", PY), "m.py"),
    "case": (CASE.format(SH, "    other\n"), CHANGED, CASE.format("    other\n", SH), "m.sh"),
    "shell": (SHELL_IF.format(SH, "    other\n"), CHANGED, SHELL_IF.format("    other\n", SH), "m.sh"),
    "condition": (IFDEF.format(CPP, "  other(x);\n"), CHANGED, IFDEF.format("  other(x);\n", CPP), "m.cpp"),
    "overload": (
        "void f(int x) {\n" + CPP + "}\n\nvoid f(float x) {\n  other(x);\n}\n",
        CHANGED,
        "void f(float x) {\n" + CPP + "}\n\nvoid f(double x) {\n  other(x);\n}\n",
        "m.cu",
    ),
    "stage": (STAGES.format(RUN, "RUN other"), CHANGED, STAGES.format("RUN other", RUN), "docker/Dockerfile.npu"),
    "section": (SECTIONS.format(RUN, "Other.\n"), CHANGED, SECTIONS.format("Other.\n", RUN), "m.md"),
    "underlined": (
        "On NPUs\n-------\n" + RUN + "\nOn GPUs\n-------\nOther.\n",
        CHANGED,
        "On NPUs\n-------\nOther.\n\nOn GPUs\n-------\n" + RUN,
        "m.rst",
    ),
    "call": (CALLS, ("0.1", "0.01"), "def args(p):\n" + ARGUMENT.format("--wd", 0.1), "m.py"),
}  # fmt: skip


@pytest.mark.parametrize("how", ["changed", "added"])
@pytest.mark.parametrize("block", ANOTHER_BLOCK)
def test_lines_in_another_block(block: str, how: str) -> None:
    old, (before, after), new, path = ANOTHER_BLOCK[block]
    if how == "added":  # a line more, above the one that would be changed
        line = next(line for line in old.splitlines(keepends=True) if before in line)
        before, after = line, line.replace(before, "added_by_patch") + line
    found = judged(old, old.replace(before, after, 1), new, path)
    assert [hunk.state for hunk in found.hunks] == ["conflict"]


CAME_ELSEWHERE = {
    "the second of two blocks with one head": (
        USES,
        USES.replace("first(x)\n", f"first(x)\n{ADDED}"),
        USES.replace("first(x)", "first(x, 1)").replace("second(x)\n", f"second(x)\n{ADDED}"),
        "m.py",
    ),
    "below a line instead of above": (
        ORDER,
        ORDER.replace("    opt.step()", f"{PARTS}    opt.step()"),
        ORDER.replace("clip(opt)", "clip(opt, 1)") + PARTS,
        "m.py",
    ),
    "another branch of the preprocessor": (
        IFDEF.format("  one(x);\n", "  two(x);\n"),
        IFDEF.format("  one(x);\n" + CPP, "  two(x);\n"),
        IFDEF.format("  one(x, 1);\n", "  two(x);\n" + CPP),
        "m.cpp",
    ),
    "another stage": (
        STAGES.format("RUN one", "RUN two"),
        STAGES.format("RUN one\n" + RUN.rstrip(), "RUN two"),
        STAGES.format("RUN ones", "RUN two\n" + RUN.rstrip()),
        "Dockerfile",
    ),
    "another section": (
        SECTIONS.format("First this.\n", "First that.\n"),
        SECTIONS.format("First this.\n" + RUN, "First that.\n"),
        SECTIONS.format("Firstly this.\n", "First that.\n" + RUN),
        "m.md",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", CAME_ELSEWHERE)
def test_new_lines_that_came_elsewhere_are_not_upstream(place: str) -> None:
    assert only(judged(*CAME_ELSEWHERE[place])).state == "conflict"


def test_two_loops_in_another_order_are_told_by_their_heads() -> None:
    old, new = LOOPS.format("a", PY, "b"), LOOPS.format("b", PY, "a")
    found = judged(old, old.replace(*CHANGED, 1), new)
    assert only(found).state == "moved"
    assert (
        found.files[0].after
        == LOOPS.format("b", PY, "a")
        .replace("a in rows:\n" + PY, "a in rows:\n" + PY.replace(*CHANGED))
        .encode()
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [("if npu", "if npu and ready"), ("def f(x)", "def f(x, y=1)"), ("    return x", "    return x + 1")],
)
def test_a_head_that_changed_in_its_place_is_the_same_block(old: str, new: str) -> None:
    """A condition or an argument more is no other block, where nothing else has the same lines."""
    text = IF.format("npu", PY, OTHER)
    found = judged(text, text.replace(*CHANGED, 1), text.replace(old, new))
    assert [hunk.state for hunk in found.hunks] == ["exact"]


NAMES = (
    "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    a = one(x)\n    b = two(a)\n    return b\n"
)


@pytest.mark.parametrize("line", ["from utils import helper", "helper = make()", "import helper.parts"])
def test_a_name_that_the_new_version_binds_otherwise(line: str) -> None:
    patched = NAMES.replace("def g(x)", "def helper(x):\n    return x + 1\n\n\ndef g(x)")
    found = only(judged(NAMES, patched, NAMES.replace("import os\n", f"import os\n{line}\n")))
    assert (found.state, found.why) == ("conflict", "the new version has helper of its own")


INIT = """\
class Bridge:
    def __init__(self, config):
        self.config = config
        self.io = None

    def model(self):
        return 1
"""


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("self.adjust_shared_weights(config)", "self.adjust_shared_weights()"), ("", "")],
    ids=["a call with other arguments", "a blank line"],
)
def test_what_the_new_version_adds_at_this_place_in_another_form(mine: str, theirs: str) -> None:
    mine, theirs = (f"        {line}\n".replace("        \n", "\n") for line in (mine, theirs))
    new = INIT.replace("self.io = None\n", f"self.io = None\n{theirs}        self.more = config.more\n")
    found = judged(INIT, INIT.replace("self.io = None\n", f"self.io = None\n{mine}"), new)
    assert [hunk.state for hunk in found.hunks] == ["conflict"]


def test_one_import_on_both_sides_is_no_name_of_its_own() -> None:
    patched = NAMES.replace("import os\n", "import os\nimport sys\n").replace("one(x)", "one(sys.argv)")
    new = NAMES.replace("import os\n", "import os\nimport sys\n")
    assert "of its own" not in "".join(hunk.why for hunk in judged(NAMES, patched, new).hunks)
