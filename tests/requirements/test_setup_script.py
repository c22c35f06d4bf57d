"""setup.py is read from its syntax tree: lists are found, what only running it gives is named, nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.requirements.reading import Reading
from npu_rl.requirements.setup_script import read_setup_script

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


@pytest.mark.parametrize(
    "install",
    [
        "get_requirements()",  # vllm-ascend, vLLM
        'Path("requirements.txt").read_text().splitlines()',  # MindSpeed
        "[one for one in A]",
        "A if B else C",
        "NOWHERE",
        "TWICE",
        "CHANGED",
        "EXTENDED",
        "ADDED",
        "ITEM",
        "LOOP",
        "ARGUMENT",
        "IMPORTED",
    ],
)
def test_what_is_computed_is_named_and_not_guessed(install: str) -> None:
    text = f"""
from setuptools import setup
from elsewhere import IMPORTED
A = B = C = []
TWICE = ["a<1"]
if C:
    TWICE = ["a<2"]
CHANGED = ["a<1"]
CHANGED.append("b<1")
EXTENDED = ["a<1"]
EXTENDED += ["b<1"]
ADDED = ["a<1"]
ADDED[0] = "b<1"
ITEM = ["a<1"]
del ITEM[0]
LOOP = LOOP
ARGUMENT = ["a<1"]
def f(ARGUMENT): pass
IMPORTED = ["a<1"]
setup(install_requires={install})
"""
    reading = base(text)
    assert reading.bounds == ()
    assert len(reading.unread) == 1 and reading.unread[0].startswith("install_requires is computed (line ")


def test_a_list_keeps_what_can_be_read_of_it() -> None:
    reading = base("setup(install_requires=['a<1', f'b=={v}', deps['c']], **more)")
    assert reading.bounds == ("a<1",)
    assert reading.unread == (
        "2 of 3 entries of install_requires are computed",
        "some keywords of setup() are computed",
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
