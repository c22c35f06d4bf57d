"""A path or name on the command line that does not exist: one shape of message, exit code 2, and what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.in_process import run_here
from tests.support import clean_env

CHECKPOINT = "Pass the folder of a checkpoint; `npu-rl weights get NAME` prints how to download one."


@pytest.mark.parametrize(
    ("words", "what", "then"),
    [
        (["weights", "check", "none"], "The folder does not exist", CHECKPOINT),
        (["weights", "cast", "none", "out"], "The folder does not exist", CHECKPOINT),
        (["weights", "convert", "none", "out", "--format", "hf"], "The folder does not exist", CHECKPOINT),
        (["weights", "audit", "none", "none"], "The folder does not exist", CHECKPOINT),
        (["weights", "check", "file"], "The path is not a folder", CHECKPOINT),
        (["weights", "convert", ".", "out"], "Exactly one of --layout and --format", "--layout RECIPE"),
        (["setup", "--bundle", "none.tar"], "No such bundle", "npu-rl bundle create"),
        (["patches", "lint", "verl/0.5.1"], "No such patch or folder", "npu-rl patches lint verl/0.5.0"),
        (["recipes", "copy", "quickstart", "no ne/r.yaml"], "No such folder: no ne", "mkdir -p 'no ne'"),
        (
            ["train", "quickstart", "--rehearse=lay"],
            "did you mean 'layout'",
            "imports, layout, train, rollout",
        ),
        (["data", "get", "gsm8k", "--verify"], "The folder does not exist", "npu-rl data get gsm8k"),
        (["setup"], "Missing option '--manifest' / '-m'", "npu-rl setup --manifest quickstart"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_it_is_a_wrong_argument(tmp_path: Path, words: list[str], what: str, then: str) -> None:
    (tmp_path / "file").touch()
    done = run_here(words, clean_env(tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert what in done.stderr.splitlines()[0]
    assert then in re.split(r"^  next:  ", done.stderr, flags=re.MULTILINE)[1]
