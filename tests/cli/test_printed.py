"""What is printed is whole: lines of several threads, and lists that are cut."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.cli.lock import _print
from npu_rl.cli.show import print_json
from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.lock import lock_model
from tests.support import clean_env, ok, run_program


def test_messages_of_parallel_fetches_are_whole_lines(tmp_path: Path) -> None:
    """Each in one write: `print` writes the end of a line by itself, and another's text came before it."""
    code = (
        "import sys, threading\n"
        "from npu_rl.cli.show import PlainWatcher\n"
        "sys.setswitchinterval(1e-6)\n"
        "watcher = PlainWatcher()\n"
        "def fetch(name):\n"
        "    for number in range(300): watcher.note(name, str(number))\n"
        "threads = [threading.Thread(target=fetch, args=(f'c{i}',)) for i in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    done = ok(run_program([sys.executable, "-u", "-c", code], env=clean_env(tmp_path)))
    lines = done.stderr.splitlines()
    assert len(lines) == 8 * 300
    assert all(re.fullmatch(r"c[0-7]: [0-9]+", line) for line in lines)


def test_a_document_with_nan_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever command prints it: `print_json` is the only one that does."""
    print_json({"a": [math.nan, (1.5, -math.inf)], "b": {"c": math.inf, "big": 10**400}, "text": "NaN"})

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "a": [None, [1.5, None]],
        "b": {"c": None, "big": 10**400},
        "text": "NaN",
    }


@pytest.mark.parametrize("count", [10, 11, 14])
def test_a_list_that_is_cut_says_how_many_more(capsys: pytest.CaptureFixture[str], count: int) -> None:
    lock = lock_model.read(lock_model.lock_path(bundled_manifests()["deepseek-v3-cann"]))
    verl = lock.components["verl"]
    merge = replace(verl.merges[0], outside=tuple(f"docs/{number}.md" for number in range(count)))
    _print(replace(lock, components={"verl": replace(verl, merges=(merge,))}))
    said = capsys.readouterr().out
    assert f"{count} outside:" in said
    assert said.count("outside: docs/") == 10
    assert (f"and {count - 10} more" in said) == (count > 10)
