from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_good_header_has_no_problem() -> None:
    assert lint_header(GOOD) == []


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
        ("Subject: =?nonsense?q?x?=\n", "=?nonsense?q?x?="),
        ("\nJust a line\n\nWhy: x\n", "Just a line"),
        ("Why: x\n", ""),
        ("", ""),
        ("Subject: x\r\n\r\nWhy: y\r\n", "x"),
    ],
)
def test_subjects(text: str, subject: str) -> None:
    assert parse_header(text).subject == subject


def test_the_diffstat_of_a_mail_is_not_read() -> None:
    assert parse_header("Subject: x\n\nWhy: y\n---\n Why: z | 2 +-\nHow: no\n").fields == {"Why": "y"}


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_demanded(field: str) -> None:
    lines = GOOD.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{field}:"))
    end = next(i for i, line in enumerate(lines[start + 1 :], start + 1) if line[:1].isalpha())
    fault = HeaderFault(1, f"`{field}:` is missing or empty.")
    assert fault in lint_header("\n".join(lines[:start] + lines[end:]))
    empty = [*lines[:start], f"{field}:", *lines[end:]]
    assert fault in lint_header("\n".join(empty))


@pytest.mark.parametrize(
    "status",
    [
        "pending",
        "submitted https://github.com/volcengine/verl/pull/3054",
        "merged-in v0.10.0",
        "inappropriate",
        "inappropriate [only for this NPU]",
        "pending (waits for 0.10)",
    ],
)
def test_good_states(status: str) -> None:
    assert lint_header(GOOD.replace("Status: pending", f"Status: {status}")) == []


@pytest.mark.parametrize(
    "status", ["Pending", "submitted", "submitted by mail", "merged-in", "sent", "pendingly"]
)
def test_bad_states(status: str) -> None:
    text = GOOD.replace("Status: pending", f"Status: {status}")
    (fault,) = lint_header(text)
    assert "is invalid; write pending, submitted URL" in fault.message
    assert text.split("\n")[fault.line - 1].startswith("Upstream-Status:")


@pytest.mark.parametrize("test", ["by hand", "tests/x.py", "test_x.py::test_y", "tests/x.txt::y"])
@pytest.mark.parametrize("commands", [False, True])
def test_a_test_must_be_named(test: str, commands: bool) -> None:
    text = GOOD.replace("tests/runtime/test_kv.py::test_blocks", test)
    faults = lint_header(text, commands=commands)
    assert faults and all("is not a witness" in fault.message for fault in faults)
    text = re.sub(r"(?s)Verified-By:.*(?=Needs-NPU)", f"Verified-By: {test}\n", GOOD)
    (fault,) = lint_header(text, commands=commands)
    assert f"`Verified-By: {test}` is not a witness" in fault.message


COMMANDS = [
    "python code/x.py -q", "pytest -q here", "./check.sh", "bash x", "uv run pytest", "env A=1 pytest"
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_a_test_of_a_patch_of_ones_own(command: str) -> None:
    start, end = GOOD.index("Verified-By:"), GOOD.index("Retire-When:")
    text = f"{GOOD[:start]}Verified-By: {command}\n{GOOD[end:]}"
    assert lint_header(text, commands=True) == [
        fault for fault in lint_header(text) if "test id" not in fault.message
    ]
    assert any("is not a witness" in fault.message for fault in lint_header(text))


def test_a_field_that_is_there_twice() -> None:
    text = GOOD + "Why: again\nReviewed-by: y\n"
    assert lint_header(text) == [HeaderFault(text.count("\n") - 1, "`Why:` is there twice.")]


def test_no_header_names_every_gap() -> None:
    assert len(lint_header("")) == 1 + len(FIELDS)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    header = parse_header(text)
    assert set(header.fields) <= set(FIELDS)
    assert isinstance(lint_header(text), list)
