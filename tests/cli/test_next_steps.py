"""The last line of a command: what to run next, which works when it is pasted, and what an interruption leaves."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import ok, run_cli
from tests.workspace.stack import Stack


def next_lines(text: str) -> list[str]:
    """The commands of the lines from `Next:` on."""
    after = text.partition("Next: ")[2].splitlines()
    return [part.strip() for line in after for part in line.split(";")]


def test_setup_ends_with_commands_that_work_when_pasted(stack: Stack, tmp_path: Path) -> None:
    place = tmp_path / "two words" / "it's 空"
    place.parent.mkdir()
    done = ok(run_cli(["setup", "-m", stack.old, "-w", str(place)], stack.env))
    verify, activate, *others = next_lines(done.stdout)
    assert shlex.split(activate) == ["source", f"{place}/activate"]
    (last,) = others  # no bundled recipe is for this stack
    assert shlex.split(last, comments=True) == ["npu-rl", "recipes", "list"] and "npu-rl train" in last
    program, *words = shlex.split(verify)
    assert program == "npu-rl"
    assert "equals its lock" in ok(run_cli(words, stack.env)).stdout


def test_an_up_to_date_workspace_gets_the_same_commands(stack: Stack, paths: WorkspacePaths) -> None:
    done = ok(run_cli(["setup", "-m", stack.old, "-w", str(paths.root)], stack.env))
    assert "nothing to do" in done.stdout
    assert next_lines(done.stdout)[-1].startswith("npu-rl recipes list")


@pytest.mark.parametrize(
    ("command", "then"),
    [
        (["recipes", "check", "quickstart", "steps=3"], ["plan", "quickstart", "steps=3"]),
        (["plan", "quickstart", "steps=3"], ["train", "quickstart", "steps=3", "--dry-run"]),
    ],
)
def test_a_judged_recipe_goes_on_to_the_next_command(
    stack: Stack, tmp_path: Path, command: list[str], then: list[str]
) -> None:
    done = ok(run_cli(command, stack.env, tmp_path))
    assert shlex.split(done.stderr.splitlines()[-1]) == ["Next:", "npu-rl", *then]
    assert "Next:" not in done.stdout
    assert "Next:" not in ok(run_cli([*command, "--json"], stack.env, tmp_path)).stderr


def test_a_recipe_with_an_error_gets_no_next_command(stack: Stack, tmp_path: Path) -> None:
    done = run_cli(["plan", "quickstart", "data.batch=7"], stack.env, tmp_path)
    assert done.returncode == 1 and not re.search("^Next:", done.stderr, re.MULTILINE)


def test_a_run_that_does_not_exist_is_not_resumed(
    stack: Stack, template: WorkspacePaths, tmp_path: Path
) -> None:
    """Nothing is verified before: this workspace is not even the recipe's."""
    env = {**stack.env, "NPU_RL_RUNS": str(tmp_path)}
    done = run_cli(["train", "quickstart", "-w", template.root, "--resume"], env, tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"npu-rl: Unknown run quickstart\n  where: {tmp_path}\n"
        "  next:  No run is recorded there; `npu-rl train RECIPE` without --resume begins one.\n"
    )
