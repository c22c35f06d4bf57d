"""No secret in what a dry run writes or prints, nor in any message; its scripts take it from the shell."""

from __future__ import annotations

import importlib.util
import json
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from npu_rl.common.masking import Secrets
from npu_rl.training.run.dry_run import export_line, quote_argument
from tests.support import clean_env, run_cli

HAS_TORCH = importlib.util.find_spec("torch") is not None
OVERRIDES = [
    "env.MY_SECRET_KEY=en-S3CRET-1 with spaces",
    "logging.project=https://u:pj-S3CRET-2@h/x",
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs"), "WANDB_API_KEY": "wk-S3CRET-3"}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_takes_a_secret_from_the_shell_or_ends(shell: str) -> None:
    known = Secrets.of({"MY_TOKEN": "S3CRET 'x'"})
    quoted = [quote_argument(text, known) for text in ("+trainer.api_key=S3CRET", "plain=$x")]
    lines = [
        export_line("MY_TOKEN", "S3CRET 'x'", known),
        export_line("PLAIN", "a 'b' $c", known),
        export_line("ALSO", "see S3CRET 'x'", known),
        f'printf \'%s\\n\' {" ".join(quoted)} "$PLAIN" "$MY_TOKEN"',
    ]
    script = "\n".join(["set -eu", *lines])
    assert "S3CRET" not in script
    given = {"PATH": "/bin:/usr/bin", "MY_TOKEN": "t", "ALSO": "s", "TRAINER_API_KEY": "k"}
    done = subprocess.run([shell, "-c", script], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["+trainer.api_key=k", "plain=$x", "a 'b' $c", "t"]
    for missing in ("MY_TOKEN", "ALSO", "TRAINER_API_KEY"):
        less = {name: value for name, value in given.items() if name != missing}
        done = subprocess.run([shell, "-c", script], env=less, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and missing in done.stderr and "set this variable" in done.stderr


@pytest.mark.pypi
@pytest.mark.rehearsal
@pytest.mark.skipif(not HAS_TORCH, reason="Hydra composes in an interpreter with the packages of `rehearsal`")
def test_a_dry_run_writes_and_prints_none(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path
) -> None:
    words = ["--workspace", quickstart_workspace, "--dry-run", "--json"]
    done = run_cli(["train", "quickstart", *OVERRIDES, *words], env, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "S3CRET" not in done.stdout + done.stderr
    folder = Path(json.loads(done.stdout)["folder"])
    assert [path for path in folder.rglob("*") if b"S3CRET" in path.read_bytes()] == []
    assert [path for path in (folder, *folder.iterdir()) if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    script = f'. {shlex.quote(str(folder / "environment.sh"))}; echo "$MY_SECRET_KEY"'
    given = {"PATH": "/bin:/usr/bin", "MY_SECRET_KEY": "mine"}
    sourced = subprocess.run(["sh", "-c", script], env=given, capture_output=True, text=True, check=True)
    assert sourced.stdout == "mine\n"
