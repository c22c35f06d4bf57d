"""Texts in which the change seems to be there already, or its place seems to be another: each is for a person.

Found by somebody who tried to make a port retire a patch, or write it into the wrong place, silently.
"""

from __future__ import annotations

import pytest

from npu_rl.stack.port.port_patch import port_patch
from tests.port.judging import NAMES, MadeHistory, MadeVersion, judged, made_patch, only
from tests.port.upstream_versions import Versions
from tests.support import ok

THREE = "        synchronize_all(kind)\n        empty_the_cache(kind)\n        report_memory(kind)\n"
BRANCHES = """\
def f(kind):
    if kind == "npu":
        prepare_npu(kind)
    else:
        prepare_gpu(kind)
    return kind
"""
LISTS = 'NPU_OPS = [\n    "add",\n    "mul",\n]\n\nGPU_OPS = [\n    "sub",\n    "div",\n]\n'
MORE = '    "flash_attention",\n    "rms_norm_fused",\n    "rotary_embedding",\n'
ELSE = "def f(x):\n    if x.npu:\n        one(x)\n    else:\n        two(x)\n    return x\n"
STEP = "def step(loss, opt):\n    scale = get_scale()\n    loss = loss * scale\n    loss.backward()\n    clip(opt)\n"
TWICE = "".join(f"    x = {name}(x)\n" for name in ("pre_a", "scale", "post_a", "pre_b", "scale", "post_b"))
BODY = "".join(f"    int v{number} = step{number}(x);\n" for number in range(5))
CLASSES = """\
class Npu : public Base {{
  int forward(int x) {{
{0}  }}
}};

class Gpu : public Base {{
  int forward(int x) {{
{1}  }}
}};
"""
SHELL = "function npu() {{\n{0}}}\nfunction gpu() {{\n{1}}}\n"
STEPS = "  set -e\n  first_step\n  second_step\n  third_step\n"
ITEM = "  - image: ubuntu:22.04\n    restart: always\n    user: worker\n    memory: 4g\n    cpus: 2\n    name: {0}\n"
SERVICES = "services:\n" + ITEM.format("alpha") + ITEM.format("beta")
TABLE = '[[item]]\nkind = "a"\nsize = 1\nram = 4\nname = "{0}"\n\n'


def branches(npu: str = "", gpu: str = "") -> str:
    made = BRANCHES.replace("prepare_npu(kind)\n", f"prepare_npu(kind)\n{npu}")
    return made.replace("prepare_gpu(kind)\n", f"prepare_gpu(kind)\n{gpu}")


PLACES = {
    "another branch": (
        BRANCHES,
        branches(npu=THREE),
        branches(gpu=THREE).replace("prepare_npu(kind)", "prepare_npu(kind, 1)"),
        "m.py",
    ),
    "another list": (
        LISTS,
        LISTS.replace('"mul",\n', f'"mul",\n{MORE}'),
        LISTS.replace('"mul"', '"matmul"').replace('"div",\n', f'"div",\n{MORE}'),
        "m.py",
    ),
    "the else of another if": (
        ELSE,
        ELSE.replace("        two", "        report_memory(x)\n        two"),
        ELSE.replace("else:", "elif x.cpu:").replace(
            "    return", "    if x.debug:\n        pass\n    else:\n        report_memory(x)\n    return"
        ),
        "m.py",
    ),
    "a removed line at another indent": (
        STEP,
        STEP.replace("    loss = loss * scale\n", ""),
        STEP.replace("    loss = loss * scale\n", "").replace(
            "    clip", "    if scale != 1:\n        loss = loss * scale\n    clip"
        ),
        "m.py",
    ),
    "a removed line in another function": (
        "def prepare(b):\n    return b\n\n\ndef run(b):\n    b = prepare(b)\n    b = b.cuda()\n    return half(b)\n",
        "def prepare(b):\n    return b\n\n\ndef run(b):\n    b = prepare(b)\n    return half(b)\n",
        "def prepare(b):\n    b = b.cuda()\n    return b\n\n\ndef run(b):\n    b = prepare(b)\n    return half(b)\n",
        "m.py",
    ),
    "the second of two equal lines": (
        f"def f(x):\n{TWICE}",
        f"def f(x):\n{TWICE}".replace("scale(x)", "scale(x, npu=True)", 1),
        "def f(x):\n    x = pre_b(x, fast=True)\n    x = scale(x)\n    x = post_b(x, fast=True)\n",
        "m.py",
    ),
    "another class of C++": (
        CLASSES.format(BODY, "    return simple(x);\n"),
        CLASSES.format(BODY.replace("step3(x)", "step3(x, true)"), "    return simple(x);\n"),
        CLASSES.format("    return fused(x);\n", BODY),
        "m.cpp",
    ),
    "another function of a shell": (
        SHELL.format(STEPS, "  other\n"),
        SHELL.format(STEPS.replace("second_step", "second_step --npu"), "  other\n"),
        SHELL.format("  fused\n", STEPS),
        "m.sh",
    ),
    "another item of YAML": (
        SERVICES,
        SERVICES.replace("4g", "8g", 1),
        "services:\n" + ITEM.format("beta"),
        "m.yaml",
    ),
    "another item of TOML": (
        TABLE.format("alpha") + TABLE.format("beta"),
        TABLE.format("alpha").replace("ram = 4", "ram = 8") + TABLE.format("beta"),
        TABLE.format("beta"),
        "m.toml",
    ),
    "an argument that is there with a type": (
        "def f(\n    a_long_name,\n    b_long_name,\n):\n    pass\n",
        "def f(\n    a_long_name,\n    b_long_name,\n    c_long_name=None,\n):\n    pass\n",
        "def f(\n    a_long_name,\n    b_long_name,\n    c_long_name: int | None = None,\n):\n    pass\n",
        "m.py",
    ),
    "a key that is there with another value": (
        "a:\n  one: 1\n  two: 2\n  six: 6\n",
        "a:\n  one: 1\n  two: 2\n  skip_it: true\n  six: 6\n",
        "a:\n  one: 1\n  two: 2\n  skip_it: false\n  six: 6\n",
        "m.yaml",
    ),
    "the line is at the place, and was elsewhere before": (
        "a:\n  one: 1\n  two: 2\n  six: 6\nb:\n  ten: 10\n  val_before_train: true\n",
        "a:\n  one: 1\n  two: 2\n  val_before_train: true\n  six: 6\nb:\n  ten: 10\n  val_before_train: true\n",
        "a:\n  one: 1\n  two: 2\n  val_before_train: true\n  six: 6\nb:\n  ten: 10\n",
        "m.txt",
    ),
    "the end of a block of code in a text": (
        "Run this:\n\n```\nls\n\nThen that.\n",
        "Run this:\n\n```\nls\n```\n\nThen that.\n",
        "Run this:\n\n```\nls\n```\n\nThen this, too.\n",
        "m.md",
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_that_only_seems_to_be_it(case: str) -> None:
    old, patched, new, path = PLACES[case]
    assert only(judged(old, patched, new, path)).state == "conflict"


def test_one_copy_upstream_is_not_two_changes() -> None:
    """In one hunk, and in two."""
    far = "".join(f"    step_{number}(kind)\n" for number in range(10))
    for between in ("", far):
        old = BRANCHES.replace("    else:\n", f"{between}    if kind == 'npu':\n")
        patched = branches(THREE, THREE).replace("    else:\n", f"{between}    if kind == 'npu':\n")
        new = branches(THREE).replace("    else:\n", f"{between}    if kind == 'npu':\n")
        new = new.replace("prepare_gpu(kind)", "prepare_gpu(kind, 1)")
        ported = judged(old, patched, new)
        assert not ported.is_clean and not ported.is_upstream


@pytest.mark.parametrize("path", ["Dockerfile", "run.sh", "m.h", "m.cu"])
def test_a_file_without_functions(path: str) -> None:
    old = "FROM base\nRUN first\nRUN second\nRUN third\n"
    patched = old.replace("second", "other")
    assert only(judged(old, patched, old + "RUN last\n", path)).state == "exact"
    assert only(judged(old, patched, "# new\n" + old, path)).state == "moved"
    assert only(judged(old, patched, old.replace("second", "2"), path)).state == "conflict"


def test_a_file_to_delete_that_was_renamed() -> None:
    old = "one = 1\n"
    history = MadeHistory(renamed_to={"m.py": "n.py"}, deleted_by={"m.py": "renamed"})
    hunk = only(judged(old, None, None, others={"n.py": old}, history=history))
    assert (hunk.state, hunk.why) == ("target gone", "the file is n.py now")
    hunk = only(judged(old, None, None, others={"n.py": old}))
    assert (hunk.state, hunk.why) == ("target gone", "the file is n.py now")
    assert only(judged(old, None, None, others={"n.py": "two = 2\n"})).state == "already upstream"


@pytest.mark.parametrize(
    ("old", "patched"), [(None, "made = 1\n"), ("one = 1\n", "one = 2\n"), ("one = 1\n", None)]
)
def test_what_is_in_the_place_of_the_file_is_named(old: str | None, patched: str | None) -> None:
    version = MadeVersion({}, {"m.py": "m.py is a folder now"})
    ported = port_patch(made_patch(old, patched), {"m.py": (old or "").encode()}.get, version, None, NAMES)
    assert only(ported).why == "m.py is a folder now" and not ported.is_clean
    assert ported.files[0].after is None


@pytest.mark.parametrize(("made", "there"), [("pkg/conf", "pkg/conf/x.py"), ("pkg/a/b.py", "pkg/a")])
def test_a_new_file_where_there_is_none_for_it(versions: Versions, made: str, there: str) -> None:
    """A folder of its name, and a file in the place of its folder: a stop with a way on, not git's own error."""
    upstream = versions.upstream
    upstream.commit({there: "X = 1\n"}, on="refs/tags/v2")
    versions.keep("0007")
    text = (versions.patches / "0007-new.patch").read_text()
    (versions.patches / "0007-new.patch").write_text(text.replace("pkg/added.py", made))
    ok(versions.run("lock", "-m", "m.yaml"))
    stopped = versions.port()
    assert stopped.returncode == 1 and "0007-new.patch needs you" in stopped.stdout
    name = there.removesuffix("/x.py")
    assert f"{name} is a {'folder' if name != there else 'file'} now" in stopped.stdout
    assert "Conflict markers" not in stopped.stdout
    assert "1 patch: 1 skipped." in ok(versions.port("--skip")).stdout
