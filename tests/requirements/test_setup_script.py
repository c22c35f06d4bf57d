"""setup.py is read from its syntax tree: lists are found, what only running it gives is named, nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.stack.requirements.reading import Reading
from npu_rl.stack.requirements.setup_script import read_setup_script

# In the form of verl's setup.py at 7aed6b230776.
VERL = """
from setuptools import setup
install_requires = ["accelerate", "numpy<2.0.0", "ray[default]>=2.41.0"]
VLLM_REQUIRES = ["tensordict>=0.8.0,<=0.10.0,!=0.9.0", "vllm>=0.8.5,<=0.12.0"]
extras_require = {"vllm": VLLM_REQUIRES, "trl": ["trl<=0.9.6"]}
setup(name="verl", install_requires=install_requires, extras_require=extras_require, python_requires=">=3.10")
"""


def base(text: str) -> Reading:
    return read_setup_script(text, ())[""]


def test_lists_of_names_and_extras() -> None:
    found = read_setup_script(VERL, ("vllm", "trl"))
    assert found[""] == Reading(("python>=3.10", "numpy<2.0.0", "ray[default]>=2.41.0"))
    assert found["vllm"].bounds == ("tensordict>=0.8.0,<=0.10.0,!=0.9.0", "vllm>=0.8.5,<=0.12.0")
    assert found["trl"].bounds == ("trl<=0.9.6",)
    assert set(read_setup_script(VERL, ())) == {""}


def test_sums_and_copies() -> None:
    text = "A = ['a<1']\nB = A + ('b<2',)\nimport setuptools\nsetuptools.setup(install_requires=list(B + ['c<3']))"
    assert base(text).bounds == ("a<1", "b<2", "c<3")


# In the form of MindSpeed-LLM's at 3a712f58, Megatron-LM's at a845aa7e and vllm-ascend's at 0.18.0.
READS_ITSELF = {
    "mindspeed": ('Path("requirements.txt").read_text().splitlines()', ("requirements.txt",)),
    "mindspeed-llm": ('req_file("requirements.txt")', ("requirements.txt",)),
    "megatron": ('of_image("pip.txt")', ("requirements/pytorch_25.03/pip.txt", "core/requirements.txt")),
    "vllm-ascend": ("get_requirements()", ("requirements.txt",)),
    "comments": ("[one for one in req_file('a.txt') if one and not one.startswith('#')]", ("a.txt",)),
    "own list": ("['b<1', *req_file(filename='a.txt')]", ("a.txt",)),
    "beside": ('open(Path(__file__).parent / "a.txt").read().split("\\n")', ("a.txt",)),
}
READERS = """
import os
from pathlib import Path
from setuptools import setup
ROOT = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(__file__)

def get_path(*parts):
    return os.path.join(ROOT, *parts)

def req_file(filename):
    with open(filename) as f:
        content = f.readlines()
    return [x.strip() for x in content]

def of_image(filename, folder="requirements"):
    content = []
    with open(os.path.join(folder, os.getenv("PY_ENV", "pytorch_25.03"), filename), encoding='utf-8') as f:
        content += f.readlines()
    with open(os.path.join("core", "requirements.txt"), encoding='utf-8') as f:
        content += f.readlines()
    return [x.strip() for x in content]

def get_requirements():
    def _read(filename):
        with open(get_path(filename)) as f:
            requirements = f.read().strip().split("\\n")
        resolved = []
        for line in requirements:
            if line.startswith("-r "):
                resolved += _read(line.split()[1])
            elif line.startswith("--"):
                continue
            else:
                resolved.append(line)
        return resolved

    try:
        requirements = _read("requirements.txt")
    except ValueError:
        print("Failed to read requirements.txt")
    return requirements
"""


@pytest.mark.parametrize("form", READS_ITSELF)
def test_a_list_of_a_files_lines_names_the_file(form: str) -> None:
    install, files = READS_ITSELF[form]
    reading = base(f"{READERS}\nsetup(install_requires={install})")
    assert (reading.includes, reading.unread) == (files, ())
    assert reading.bounds == (("b<1",) if form == "own list" else ())


def test_a_file_that_a_statement_reads_and_keywords_in_a_table() -> None:
    text = """
with open("README.md") as f: readme = f.read()
with open("requirements.txt") as f: needed = [line.strip() for line in f]
needed.append("a<1")
arguments = dict(install_requires=needed, python_requires=">=3.10", ext_modules=[make()])
if __name__ == "__main__": setup(**arguments)
"""
    assert base(text) == Reading(("python>=3.10", "a<1"), ("requirements.txt",))


def test_what_a_device_decides_is_named_with_its_line() -> None:
    """vLLM 0.9.1: common.txt without a device, cuda.txt with CUDA."""
    text = """
import envs
DEVICE = envs.VLLM_TARGET_DEVICE
def without_device(): return DEVICE == "empty"
def get_requirements():
    if without_device():
        requirements = open("common.txt").readlines()
    else:
        requirements = open("cuda.txt").readlines()
    return requirements
setup(install_requires=get_requirements())
"""
    assert base(text) == Reading(unread=("install_requires is computed (line 6: without_device())",))


@pytest.mark.parametrize(
    "install",
    [
        "get_requirements()",
        "[one for one in A if B()]",
        "A if B else C",
        "NOWHERE",
        "TWICE",
        "CHANGED",
        "PASSED",
        "BY_A_FUNCTION",
        "ADDED",
        "OTHER_NAME",
        "ITEM",
        "LOOP",
        "AFTER_AN_IMPORT",
        "IMPORTED",
        "generated()",
        "decorated()",
        "endless('a<1')",
        "[one.split('==')[0] for one in open('a.txt')]",
        "[one.replace('==', '>=') for one in open('a.txt')]",
        "['a<1' for one in ['x'] if one in open('a.txt').read()]",
        "by_a_line()",
        "lambda: ['a<1']",
        "(A := ['a<1'])",
        "open(NOWHERE)",
    ],
)
def test_what_is_computed_is_named_and_not_guessed(install: str) -> None:
    text = f"""
from setuptools import setup
from elsewhere import IMPORTED, change
A = ["a<1"]
TWICE = ["a<1"]
if change:
    TWICE = ["a<2"]
CHANGED = ["a<1"]
while change():
    CHANGED.append("b<1")
PASSED = ["a<1"]
change(PASSED)
BY_A_FUNCTION = ["a<1"]
def f(): BY_A_FUNCTION.append("b<1")
f()
ADDED = ["a<1"]
OTHER_NAME = ADDED
ADDED[0] = "b<1"
ITEM = ["a<1"]
del ITEM[0]
LOOP = LOOP
try:
    import torch
    AFTER_AN_IMPORT = ["a<1"]
except ImportError:
    pass
def generated(): yield "a<1"
@change
def decorated(): return ["a<1"]
def endless(x): return endless(x + x)
def by_a_line():
    found = []
    for line in open("a.txt"):
        if "b" in line:
            found.append("b<1")
    return found
setup(install_requires={install})
"""
    reading = base(text)
    assert reading.bounds == reading.includes == ()
    assert len(reading.unread) == 1 and reading.unread[0].startswith("install_requires is computed (line ")


@pytest.mark.parametrize(
    "install", ["TWICE", "CHANGED", "ALL + ['b<1']", "[*ALL, 'b<1']", "of('b<1')", "of(x='b<1')"]
)
def test_what_can_be_followed_is_read(install: str) -> None:
    text = f"""
ALL = TWICE = ["c<1"]
ALL = ["a<1"]
TWICE = ["a<1"]
TWICE += ("b<1",)
CHANGED = ["a<1"]
CHANGED.append("b<1")
def of(x): return ["a<1", x]
setup(install_requires={install})
"""
    assert base(text) == Reading(("a<1", "b<1"))


def test_a_list_keeps_what_can_be_read_of_it() -> None:
    reading = base("setup(install_requires=['a<1', f'b=={v}', deps['c']], **more)")
    assert reading.bounds == ("a<1",)
    assert reading.unread == (
        "2 of 3 entries of install_requires are computed (line 1: f'b=={v}')",
        "some keywords of setup() are computed (line 1: more)",
    )
    assert base("def setup(): pass").unread == ("0 calls of setup()",)
    assert base("if x:\n  setup(install_requires=['a<1'])\nelse:\n  setup()").unread == (
        "2 calls of setup()",
    )


def test_an_extra_that_is_not_there_is_named() -> None:
    for table in ("", ", extras_require=make()", ", extras_require={'a': []}", ", extras_require={**x}"):
        assert read_setup_script(f"setup(name='a'{table})", ("gpu",))["gpu"].unread, table


def test_doubling_names_end_at_once() -> None:
    doubled = "\n".join(f"A{n} = A{n + 1} + A{n + 1}" for n in range(60))
    reading = base(f"{doubled}\nA60 = []\nsetup(install_requires=A0)")
    assert reading.unread[0].startswith("install_requires is computed")


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    base(f"open({str(mark)!r}, 'w')\nsetup(install_requires=[open({str(mark)!r}, 'w')])")
    assert not mark.exists()


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_named(text: str) -> None:
    reading = base(text)
    assert reading.unread or "setup" in text


expressions = st.recursive(
    st.sampled_from(["A", "B", "['a<1']", "('b<2',)", "f()", "1", "None", "[*A]", "[['c<3']]"]),
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("list({})".format, inner),
        st.builds("({} if x else {})".format, inner, inner),
    ),
    max_leaves=12,
)


@given(expressions, expressions, expressions)
def test_any_expression_gives_its_strings_or_is_named(a: str, b: str, used: str) -> None:
    """What is read of the list is in it when Python runs the same."""
    reading = base(f"A = {a}\nB = {b}\nsetup(install_requires={used})")
    known = {"f": lambda: ["d<4"], "x": True, "list": list, "__builtins__": {}}
    try:
        exec(f"A = {a}\nB = {b}\nLIST = {used}", known)
    except (NameError, TypeError):
        return
    if not reading.unread:
        listed = known["LIST"]
        assert isinstance(listed, (list, tuple)) and set(reading.bounds) == set(listed)


statements = st.recursive(
    st.one_of(
        st.builds("{} = {}".format, st.sampled_from("AB"), expressions),
        st.builds("{} += {}".format, st.sampled_from("AB"), expressions),
        st.builds(
            "{}.{}({})".format, st.sampled_from("AB"), st.sampled_from(["append", "extend"]), expressions
        ),
        st.sampled_from(["A = B", "B = A", "A[0] = 'e<1'", "del B[0]", "g(A)", "A = h(B)", "B = h(h(A))"]),
    ),
    lambda inner: st.one_of(
        st.builds("{}; {}".format, inner, inner).filter(lambda text: ":" not in text),
        st.builds("if {}: {}".format, st.sampled_from(["x", "A", "not B", "A == B"]), inner),
        st.builds("for i in list({}): {}".format, expressions, inner),
    ).filter(lambda text: text.count(":") < 2),
    max_leaves=4,
)


@given(st.lists(statements, max_size=8), st.sampled_from(["A", "B", "h(A)"]))
def test_any_statements_give_what_running_them_gives_or_are_named(body: list[str], used: str) -> None:
    functions = "def h(a, b=('f<1',)):\n  a += ['g<1']\n  return a + list(b)\n"
    text = "\n".join([functions, "A, B = [], []", "A = ['a<1']", "B = ['b<2']", *body])
    reading = base(f"{text}\nsetup(install_requires={used})")
    known = {"f": lambda: ["d<4"], "g": list.clear, "x": True, "list": list, "__builtins__": {}}
    try:
        exec(f"{text}\nLIST = {used}", known)
    except (NameError, TypeError, IndexError, AttributeError):
        return
    if not reading.unread:
        assert set(reading.bounds) == set(known["LIST"])
