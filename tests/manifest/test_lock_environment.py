"""`npu-rl lock` judges the manifest's environment before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from tests.support import clean_env, run_cli


@pytest.mark.parametrize(
    ("line", "code", "parts"),
    [
        ("HCCL_BUFFSIZE: 300MB", 1, ["invalid value", "m.yaml:", "env.HCCL_BUFFSIZE", "set env.HCCL_BUFFSIZE to 300"]),
        ("NPU_RL_SEED: '3'", 1, ["NPU_RL_SEED is npu-rl's to set"]),
        ("HCCL_EXEC_TIMOUT: '600'", None, ["note: ", "did you mean HCCL_EXEC_TIMEOUT?"]),
    ],
)  # fmt: skip
def test_a_manifests_environment(tmp_path: Path, line: str, code: int | None, parts: list[str]) -> None:
    text = bundled_manifests()["quickstart"].read_text()
    (tmp_path / "m.yaml").write_text(text.replace('  VLLM_USE_V1: "1"\n', f"  {line}\n"))
    env = clean_env(tmp_path)
    done = run_cli(["lock", "--manifest", "./m.yaml", "--check", "--offline"], env, tmp_path)
    assert done.returncode == 1, "at the latest for the lock that is not there"
    assert all(part in done.stderr for part in parts), done.stderr
    assert ("lock.json" in done.stderr) is (code is None)


def test_a_bundled_manifest_says_nothing(tmp_path: Path) -> None:
    text = bundled_manifests()["quickstart"].read_text()
    (tmp_path / "m.yaml").write_text(text)
    done = run_cli(["lock", "--manifest", "./m.yaml", "--check", "--offline"], clean_env(tmp_path), tmp_path)
    assert "env" not in done.stderr.replace("environment", ""), done.stderr
