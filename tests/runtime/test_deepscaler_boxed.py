from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npu_rl.runtime.deepscaler.boxed import keeps_format, last_boxed

UPSTREAM_FORMAT = re.compile(r"<think>.*</think>.*<answer>.*\\boxed\{.*\}.*</answer>", re.DOTALL)


BOXES = {
    r"\boxed{5} and then, no, \boxed{6}. Done": "6",
    r"\boxed{\frac{\sqrt{a_{1}}}{2}} ok } }": r"\frac{\sqrt{a_{1}}}{2}",
    "\\boxed\n {5}": "5", r"\boxed{}": "", r"\boxed{5} then cut off \boxed{6": "5", r"} \boxed{5}": "5",
    r"\boxed{5} then cut off \boxed{\frac{1}{2}": "5", r"{ \boxed{5}": "5", r"\boxed{\boxed{5}}": "5",
    r"\boxed{\{1, 2\}}": r"\{1, 2\}", r"\boxed{a \} b}": r"a \} b", r"\boxed{a \\}": r"a \\", "\\boxed{é\n𝟙}": "é\n𝟙",
    "5": None, "": None, r"\boxed": None, r"\boxed 5": None, r"\boxed5": None, r"\boxedtext{5}": None,
    r"\\boxed{5}": None, "boxed{5}": None, r"\boxed{5": None, r"\boxed}5{": None, r"\boxed x {5}": None,
}  # fmt: skip


def test_the_last_balanced_box() -> None:
    assert {text: last_boxed(text) for text in BOXES} == BOXES


_plain = st.text(st.characters(exclude_characters="\\{}"), max_size=8)
_balanced = st.recursive(
    _plain, lambda inner: st.lists(inner, max_size=4).map(lambda p: "{" + "".join(p) + "}")
)


@given(before=st.text(max_size=40), content=_balanced, after=_plain)
def test_any_balanced_content_comes_back(before: str, content: str, after: str) -> None:
    """Whatever stands before: open braces, boxes that never close, half a command."""
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content


@pytest.mark.second
def test_a_megabyte_is_read_once() -> None:
    """Each of these took minutes if any part were read again for each brace; a minute of CPU is plenty."""
    began = time.process_time()
    assert last_boxed(r"\boxed{" * 150_000) is None
    assert last_boxed(r"\boxed{" + "{" * 500_000 + "}" * 499_999) is None
    assert last_boxed(r"\boxed{5}" + "}" * 1_000_000) == "5"
    assert last_boxed("\\boxed" + " " * 1_000_000) is None
    assert not keeps_format("<think>" + "</think><answer>\\boxed{}" * 40_000)
    assert time.process_time() - began < 60


FORMAT = ["<think>", "</think>", "<answer>", "\\boxed{", "}", "</answer>", "\n", " ", "5"]


@given(st.lists(st.sampled_from(FORMAT), max_size=12).map("".join))
@example("\n<think></think> so <answer>it is \\boxed{\\frac{1}{2}}.</answer> ")
@example("<think>\\boxed{5}</think><answer>5</answer>")
@example("well, <think>a</think><answer>\\boxed{5}</answer>")
@example("<think>a</think><answer>\\boxed{5}</answer> and more")
def test_the_format_is_the_recipes(text: str) -> None:
    assert keeps_format(text) == bool(UPSTREAM_FORMAT.fullmatch(text.strip()))
