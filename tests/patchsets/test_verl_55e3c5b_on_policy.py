"""The patch on-policy-logprob of patchset verl/55e3c5b: verl's own actor, from the batch to the gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_on_policy.py")
COMPONENTS = ["verl", "Megatron-LM"]
ONE_STEP = {"rows": 4, "mini": 4, "micro": 2, "epochs": 1, "loss": "vanilla"}
ON, SWITCH = "1", "NPU_RL_ON_POLICY_LOGPROB"


def update(code: Path, *, usage: Path | None = None, switch: str = "", **job: Any) -> dict[str, Any]:
    environment = {"TORCHDYNAMO_DISABLE": "1", SWITCH: switch}
    found: dict[str, Any] = run(RUNNER, code, json.dumps(ONE_STEP | job), usage=usage, **environment)
    return found


def is_policy_gradient(found: dict[str, Any]) -> bool:
    (step,) = found["gradients"]
    return torch.allclose(torch.tensor(step), torch.tensor(found["policy gradient"]), rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def unpatched_tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("on-policy-upstream") / "code"
    return tree(upstreams, folder, COMPONENTS, without="on-policy-logprob")


def test_the_ratio_is_one_and_its_gradient_the_policys(
    patched_tree: Path, unpatched_tree: Path, tmp_path: Path
) -> None:
    before = update(unpatched_tree, switch=ON)
    assert not is_policy_gradient(before)
    assert all(kl != [0.0] for kl in before["metrics"]["ppo_kl"])
    assert any(share != [0.0] for share in before["metrics"]["pg_clipfrac"])

    after = update(patched_tree, switch=ON, usage=tmp_path / "usage")
    assert is_policy_gradient(after)
    for name in ("ppo_kl", "pg_clipfrac", "pg_clipfrac_lower"):
        assert after["metrics"][name] == [[0.0], [0.0]], name
    assert used(tmp_path / "usage", "on-policy-logprob") == 2  # micro batches


def test_another_loss_of_verls(patched_tree: Path, unpatched_tree: Path) -> None:
    """GSPO, a ratio per answer, with one answer per micro batch: its mean is then that of the formula."""
    assert not is_policy_gradient(update(unpatched_tree, switch=ON, loss="gspo", micro=1))
    after = update(patched_tree, switch=ON, loss="gspo", micro=1)
    assert is_policy_gradient(after)
    assert after["metrics"]["ppo_kl"] == [[0.0]] * 4


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"mini": 2}, ["4 responses", "mini batch is 2", "actor.mini_batch", "data.batch"]),
        ({"epochs": 2}, ["actor.epochs is 2"]),
    ],
)
def test_more_than_one_step_is_refused(
    patched_tree: Path, unpatched_tree: Path, job: dict[str, int], said: list[str]
) -> None:
    """Before the first step. Upstream makes both, with the old log-probabilities that the second one needs."""
    assert len(update(unpatched_tree, switch=ON, **job)["gradients"]) == 2
    refused = update(patched_tree, switch=ON, **job)
    assert refused["steps"] == 0
    for words in [*said, SWITCH]:
        assert words in refused["error"]


@pytest.mark.parametrize("job", [{}, {"mini": 2}])
def test_switched_off_it_is_upstream(
    patched_tree: Path, unpatched_tree: Path, tmp_path: Path, job: dict[str, int]
) -> None:
    upstreams = update(unpatched_tree, **job)
    assert upstreams["gradients"]
    for switch in ("", "0"):
        usage = tmp_path / f"usage{switch}"
        assert update(patched_tree, switch=switch, usage=usage, **job) == upstreams
        assert used(usage, "on-policy-logprob") == 0
