"""What a tree's trainer passes to ray.init, whichever way its verl has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED
from tests.support import byte_code

CONSTANT = "PPO_RAY_RUNTIME_ENV = {'env_vars': {'NCCL_DEBUG': 'WARN'}}\n"
FUNCTION = "def get_ppo_ray_runtime_env():\n    return {'env_vars': {'NCCL_DEBUG': 'INFO'}}\n"


@pytest.mark.parametrize(
    ("constants", "passed"),
    [
        (CONSTANT, {"env_vars": {"NCCL_DEBUG": "WARN"}}),  # cccc2ef2, of Pai-Megatron-Patch
        (CONSTANT + FUNCTION, {"env_vars": {"NCCL_DEBUG": "INFO"}}),  # 0.5.0
        ("", {}),
        (None, {}),
    ],
)
def test_the_trainers_own_environment(
    constants: str | None, passed: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "verl/trainer").mkdir(parents=True)
    if constants is not None:
        (tmp_path / "verl/trainer/constants_ppo.py").write_text(constants)
    program = "import json, npu_rl_start_ray as r; print(json.dumps(r._trainer_runtime_env()))"
    environment = {"PYTHONPATH": os.pathsep.join([str(INJECTED), str(tmp_path)]), **byte_code()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == passed


def test_the_ids_that_ray_draws_do_not_follow_from_the_runs_seed() -> None:
    """Ray draws the id of a driver's log subscription from `random`; the trainer draws what it would have drawn."""
    program = (
        "import random, npu_rl_start_ray as r; random.seed(1)\n"
        "with r._unseeded(): print(random.getrandbits(224))\nprint(random.random())"
    )
    environment = {"PYTHONPATH": str(INJECTED), **byte_code()}
    (one, drawn), (other, again) = (
        subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).split()
        for _ in range(2)
    )
    assert one != other and drawn == again == "0.13436424411240122"
