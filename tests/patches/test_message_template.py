"""`patches new`: a commit message whose header is complete once its fields are filled in."""

from __future__ import annotations

import re

from npu_rl.stack.patches.message_template import message_template
from npu_rl.stack.patches.patch_header import lint_header, parse_header
from tests.in_process import run_here
from tests.support import assert_told, ok


def test_the_fields_are_those_of_a_header() -> None:
    empty = message_template("verl/keep-kv-cache")
    assert empty.startswith("Keep kv cache\n\nWhy:\n") and empty.endswith("\nPatch: verl/keep-kv-cache\n")
    whole = re.sub("(?m)^Verified-By:$", "Verified-By: tests/test_a.py::test_b", empty)
    whole = re.sub("(?m)^([A-Z][A-Za-z-]+):$", r"\1: x", whole)
    assert lint_header(whole) == []
    assert parse_header(whole).subject == "Keep kv cache"


def test_the_command_prints_it_and_refuses_another_name() -> None:
    assert "Upstream-Status: pending\n" in ok(run_here(["patches", "new", "verl/x-y"], {})).stdout
    assert_told(run_here(["patches", "new", "X Y"], {}), "is not COMPONENT/SLUG", code=2)
