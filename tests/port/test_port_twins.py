"""Twins: lines, functions and items that look alike, of which only one is the hunk's."""

from __future__ import annotations

import pytest

from tests.port.judging import MadeHistory, judged, only

LOOP = "    for {0} in rows:\n" + "".join(
    f"        {line}\n" for line in ["k1()", "k2()", "k3()", "v=1", "k5()", "k6()", "k7()"]
)
LOOP = LOOP.replace("v=1", "v = 1")
LOOPS = "def f(rows):\n" + LOOP.format("a") + LOOP.format("b")
FIRST = LOOPS.replace("v = 1", "v = 2", 1)
CPP = "{0}\n{{\n  one();\n  two();\n  int v = 1;\n  three();\n  four();\n}}\n\n"
BODY = "        one()\n        two()\n        w = 1\n        three()\n        four()\n"
PROPERTY = f"class A:\n    @property\n    def v(self):\n{BODY}\n    @v.setter\n    def v(self, x):\n{BODY}"
JOBS = "jobs:\n- name: one\n  a: 1\n  b: 2\n  c: 3\n  d: 4\n- name: two\n  a: 1\n  b: 2\n  c: 3\n  d: 4\n"


def test_the_change_came_in_the_other_of_two_loops() -> None:
    first, second = LOOPS.split("    for b")
    new = first.replace("v = 1", "v = 7") + "    for b" + second.replace("v = 1", "v = 2")
    assert only(judged(LOOPS, FIRST, new)).state == "conflict"


def test_the_first_of_two_loops_is_gone() -> None:
    new = "def f(rows):\n" + LOOP.format("b")
    hunk = only(judged(LOOPS, FIRST, new))
    assert hunk.state == "conflict"
    assert hunk.why == "its lines are at line 3, in `for b in rows:`; it is for `for a in rows:`"
    assert only(judged(LOOPS, FIRST, new.replace("v = 1", "v = 2"))).state == "conflict"


def test_both_loops_are_there() -> None:
    ported = judged(LOOPS, FIRST, "import os\n" + LOOPS)
    assert only(ported).state == "moved" and ported.files[0].after == ("import os\n" + FIRST).encode()


@pytest.mark.parametrize(("path", "head"), [("m.cpp", "void {0}()"), ("m.sh", "{0}()")])
def test_a_twin_in_another_language(path: str, head: str) -> None:
    old = "".join(CPP.format(head.format(name)) for name in ("f", "g"))
    patched = old.replace("v = 1", "v = 2", 1)
    assert only(judged(old, patched, "\n" + old, path)).state == "moved"
    gone = CPP.format(head.format("g"))
    hunk = only(judged(old, patched, gone, path))
    assert hunk.state == "conflict" and "it is for" in hunk.why
    renamed = only(judged(gone, gone.replace("v = 1", "v = 2"), CPP.format(head.format("h")), path))
    assert renamed.state == "conflict"


def test_a_property_and_its_setter_have_one_name() -> None:
    patched = PROPERTY.replace("w = 1", "w = 2", 1)
    assert only(judged(PROPERTY, patched, "\n" + PROPERTY)).state == "moved"
    new = f"class A:\n    @v.setter\n    def v(self, x):\n{BODY}"
    hunk = only(judged(PROPERTY, patched, new))
    assert (hunk.state, hunk.why) == ("conflict", "A.v is there 1 time, and was 2 times")


def test_an_item_of_a_list_is_told_by_how_it_begins() -> None:
    patched = JOBS.replace("b: 2", "b: 5", 1)
    assert only(judged(JOBS, patched, "x: 1\n" + JOBS, "c.yaml")).state == "moved"
    hunk = only(judged(JOBS, patched, "jobs:\n- name: two\n  a: 1\n  b: 2\n  c: 3\n  d: 4\n", "c.yaml"))
    assert hunk.state == "conflict" and "another item of its list" in hunk.why


def test_a_function_that_is_gone_is_told_from_its_twin() -> None:
    run = "    def run(self):\n        return only_{0}()\n"
    old = f"class A:\n{run.format('a')}\n\nclass B:\n{run.format('b')}"
    history = MadeHistory()
    new = old.replace(run.format("a"), "    x = 1\n")
    hunk = only(judged(old, old.replace("only_a()", "only_a(1)"), new, history=history))
    assert (hunk.state, hunk.commit) == ("target gone", "lost")
    assert history.asked == [[b"    def run(self):\n", b"        return only_a()\n"]]


def test_other_line_ends_are_named() -> None:
    old = "one = 1\r\ntwo = 2\r\nthree = 3\r\n"
    hunk = only(judged(old, old.replace("two = 2", "two = 4"), old.replace("\r\n", "\n")))
    assert (hunk.state, hunk.why) == ("conflict", "the new version has other line ends")


def test_short_lines_name_no_places() -> None:
    """`one`, `two` stand in many files of a tree."""
    old = "one\ntwo\nthree\n"
    hunk = only(judged(old, old.replace("two", "2"), None, "a.txt", others={"b.txt": old, "c.txt": "aa\n"}))
    assert (hunk.state, hunk.places) == ("target gone", ())
