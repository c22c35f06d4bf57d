"""`patches new`: a commit message whose header is complete once its fields are filled in."""

from __future__ import annotations

from npu_rl.stack.patches.message_template import message_template
from npu_rl.stack.patches.patch_header import FIELDS, lint_header, parse_header
from tests.in_process import run_here
from tests.support import assert_told, ok


def test_the_fields_are_those_of_a_header() -> None:
    empty = message_template("verl/keep-kv-cache", "", {})
    assert empty.startswith("Keep kv cache\n\nWhy:\n") and empty.endswith("\nPatch: verl/keep-kv-cache\n")
    values = dict.fromkeys(FIELDS, "x") | {
        "Upstream-Status": "pending",
        "Verified-By": "tests/test_a.py::test_b",
    }
    whole = message_template("verl/keep-kv-cache", "Keep the KV cache", values)
    assert lint_header(whole) == []
    assert parse_header(whole).subject == "Keep the KV cache"


def test_the_command_prints_it_and_refuses_another_name() -> None:
    done = ok(run_here(["patches", "new", "verl/x-y", "--why", "because"], {}))
    assert "Why: because\n" in done.stdout and "Upstream-Status: pending\n" in done.stdout
    assert_told(run_here(["patches", "new", "X Y"], {}), "is not COMPONENT/SLUG", code=2)
