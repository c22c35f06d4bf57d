"""The patch on-policy-logprob for verl 0.8 and 0.9: verl's own worker and loss, from the batch to the gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_server_mode_on_policy.py")
ONE_STEP = {"rows": 4, "mini": 4, "micro": 2, "epochs": 1, "loss": "vanilla", "bypass": ""}
ON, SWITCH = "1", "NPU_RL_ON_POLICY_LOGPROB"
TRAINER_V1 = "verl/trainer/ppo/v1/trainer_base.py"
STACKS = ["today", "newest"]
Trees = tuple[Path, Path]


@pytest.fixture(scope="module", params=STACKS)
def trees(request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """A tree with the patch and one without."""
    folder = tmp_path_factory.mktemp("on-policy")
    given = {"manifest": request.param}
    patched = tree(upstreams, folder / "after", ["verl", "Megatron-LM"], **given)
    return patched, tree(upstreams, folder / "before", ["verl", "Megatron-LM"], patched=False, **given)


def update(code: Path, *, usage: Path | None = None, switch: str = "", **job: Any) -> dict[str, Any]:
    environment = {"TORCHDYNAMO_DISABLE": "1", SWITCH: switch}
    found: dict[str, Any] = run(RUNNER, code, json.dumps(ONE_STEP | job), usage=usage, **environment)
    return found


def is_policy_gradient(found: dict[str, Any]) -> bool:
    (step,) = found["gradients"]
    return torch.allclose(torch.tensor(step), torch.tensor(found["policy gradient"]), rtol=1e-4, atol=1e-6)


def test_the_ratio_is_one_and_its_gradient_the_policys(trees: Trees, tmp_path: Path) -> None:
    patched, unpatched = trees
    before = update(unpatched, switch=ON)
    assert not is_policy_gradient(before)
    assert all(before["metrics"]["ppo_kl"]) and any(before["metrics"]["pg_clipfrac"])
    after = update(patched, switch=ON, usage=tmp_path / "usage")
    assert is_policy_gradient(after)
    for name in ("ppo_kl", "pg_clipfrac", "pg_clipfrac_lower"):
        assert after["metrics"][name] == [0.0, 0.0], name
    assert used(tmp_path / "usage", "on-policy-logprob") == 2  # micro batches


def test_what_is_not_one_step_is_refused(trees: Trees) -> None:
    """Before the first step. Upstream makes both, with the old log-probabilities that the second one needs.

    One test for all, since the patches' headers name it by its stack alone.
    """
    patched, unpatched = trees
    jobs: list[tuple[dict[str, Any], list[str]]] = [
        ({"mini": 2}, ["4 responses", "mini batch is 2", "actor.mini_batch", "data.batch"]),
        ({"epochs": 2}, ["actor.epochs is 2"]),
        ({"bypass": "v0"}, ["algorithm.rollout_correction.bypass_mode"]),
    ]
    if (unpatched / TRAINER_V1).is_file():  # the default of 0.9, which takes them by lines of its own
        jobs.append(({"bypass": "v1"}, ["algorithm.rollout_correction.bypass_mode"]))
    for job, parts in jobs:
        before = update(unpatched, switch=ON, **job)
        assert before == {"old is the rollout's": True} if "bypass" in job else len(before["gradients"]) == 2
        refused = update(patched, switch=ON, **job)
        assert refused["steps"] == 0
        for part in [*parts, SWITCH]:
            assert part in refused["error"]


def test_switched_off_it_is_upstream(trees: Trees, tmp_path: Path) -> None:
    patched, unpatched = trees
    upstreams = update(unpatched, mini=2)
    assert len(upstreams["gradients"]) == 2
    for switch in ("", "0"):
        usage = tmp_path / f"usage{switch}"
        assert update(patched, switch=switch, usage=usage, mini=2) == upstreams
        assert used(usage, "on-policy-logprob") == 0
