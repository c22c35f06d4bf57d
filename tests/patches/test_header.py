from __future__ import annotations

import re

import pytest

from npu_rl.stack.patches.patch_header import FIELDS, HeaderFault, lint_header, parse_header

GOOD = """Subject: Keep the first KV cache configuration

Why: a second start profiles anew,
  and the pool no longer agrees.

  Twice.
How: keep the list on the engine.
Upstream-Status: pending
Verified-By: tests/runtime/test_kv.py::test_blocks
  tests/runtime/test_kv.py::TestPool::test_same[2-cpu]
Needs-NPU: overwriting under load
Retire-When: vllm >= 0.10.2
Signed-off-by: A <a@example.org>
"""


def test_values_go_on_over_indented_lines() -> None:
    header = parse_header(GOOD)
    assert header.subject == "Keep the first KV cache configuration"
    assert header.fields["Why"] == "a second start profiles anew,\nand the pool no longer agrees.\n\nTwice."
    assert header.fields["Retire-When"] == "vllm >= 0.10.2"
    assert header.tests == (
        "tests/runtime/test_kv.py::test_blocks",
        "tests/runtime/test_kv.py::TestPool::test_same[2-cpu]",
    )


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        (
            "From 0123456789abcdef Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: [PATCH 1/2] One\n two\n",
            "One two",
        ),
        ("Subject: =?UTF-8?q?r=C3=A9gler?=\n", "régler"),
        ("\nJust a line\n\nWhy: x\n", "Just a line"),
        ("Subject: x\r\n\r\nWhy: y\r\n", "x"),
    ],
)
def test_subjects(text: str, subject: str) -> None:
    assert parse_header(text).subject == subject


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_demanded(field: str) -> None:
    lines = GOOD.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{field}:"))
    end = next(i for i, line in enumerate(lines[start + 1 :], start + 1) if line[:1].isalpha())
    fault = HeaderFault(1, f"`{field}:` is missing or empty.")
    assert fault in lint_header("\n".join(lines[:start] + lines[end:]))
    empty = [*lines[:start], f"{field}:", *lines[end:]]
    assert fault in lint_header("\n".join(empty))


@pytest.mark.parametrize("status", ["Pending", "submitted by mail", "merged-in"])
def test_bad_states(status: str) -> None:
    text = GOOD.replace("Status: pending", f"Status: {status}")
    (fault,) = lint_header(text)
    assert "is invalid; write pending, submitted URL" in fault.message
    assert text.split("\n")[fault.line - 1].startswith("Upstream-Status:")


@pytest.mark.parametrize("test", ["by hand", "tests/x.py", "tests/x.txt::y"])
def test_a_test_must_be_named(test: str) -> None:
    text = re.sub(r"(?s)Verified-By:.*(?=Needs-NPU)", f"Verified-By: {test}\n", GOOD)
    (fault,) = lint_header(text)
    assert f"`Verified-By: {test}` is not a witness" in fault.message


def test_a_field_that_is_there_twice() -> None:
    text = GOOD + "Why: again\nReviewed-by: y\n"
    assert lint_header(text) == [HeaderFault(text.count("\n") - 1, "`Why:` is there twice.")]
