"""Mistakes edited into the trainer's own code: each is named in the first step where it can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL, TENSORS
from npu_rl.rehearsal.patch_hooks import read_usage
from npu_rl.rehearsal.training_checks.recomputed_steps import read_recomputed_steps
from tests.code_trees import archive
from tests.support import byte_code

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

STEPS = 3
DAPO = "recipe.dapo.dapo_ray_trainer:RayDAPOTrainer"
FILTERED = [
    "+algorithm.filter_groups.enable=true",
    "+algorithm.filter_groups.metric=seq_final_reward",
    "+algorithm.filter_groups.max_num_gen_batches=0",
]
Edit = tuple[str, ...]
"""Module, function, its text, and the text with the mistake."""
TRAINER, ALGORITHMS = "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.core_algos"
FIT, GRPO = (TRAINER, "RayPPOTrainer.fit"), (ALGORITHMS, "compute_grpo_outcome_advantage")
MANAGER = ("verl.workers.reward_manager.naive", "NaiveRewardManager.__call__")
DEVIATION = "torch.std(torch.tensor([id2score[idx]]))"
REPEATED = "batch = batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave="
GENERATED = "batch = batch.union(gen_batch_output)"
REWARDED = 'batch.batch["token_level_scores"] = reward_tensor'
PLACED = "reward_tensor[i, valid_response_length - 1] = reward"


def followed(function: tuple[str, str], text: str, *statements: str) -> Edit:
    return *function, f"{text}\n", "; ".join([text, *statements]) + "\n"


CASES: dict[str, Edit] = {
    "advantages, step 1: its sign is exchanged": (
        *GRPO,
        "(scores[i] - id2mean[index[i]]) /",
        "(id2mean[index[i]] - scores[i]) /",
    ),
    "advantages, step 1: its sign is exchanged (as sent)": followed(
        FIT,
        'batch.meta_info["multi_turn"] = self.config.actor_rollout_ref.rollout.multi_turn.enable',
        'batch.batch["advantages"] = -batch.batch["advantages"]',
    ),
    "advantages, step 1: the group's statistics leave out its last response": followed(
        GRPO,
        f"id2std[idx] = {DEVIATION}",
        "id2std[idx] = torch.std(torch.tensor(id2score[idx][:-1]))",
        "id2mean[idx] = torch.mean(torch.tensor(id2score[idx][:-1]))",
    ),
    "advantages, step 1: the group's deviation is divided by n": (
        *GRPO,
        DEVIATION,
        DEVIATION.replace("]]))", "]]), unbiased=False)"),
    ),
    "advantages, step 1: groups are mixed": followed(
        GRPO, "bsz = scores.shape[0]", "index = [row % 4 for row in range(bsz)]"
    ),
    "response mask, step 1: the mask ends one token early": (
        "verl.utils.torch_functional",
        "get_response_mask",
        "(eos_mask.cumsum(dim=1) - eos_mask).eq(0)",
        "eos_mask.cumsum(dim=1).eq(0)",
    ),
    "response mask, step 1: the mask ends one token late": (
        TRAINER,
        "compute_response_mask",
        "[:, -response_length:]",
        "[:, -response_length - 1 : -1]",
    ),
    "groups, step 1: groups are mixed over prompts": (
        *FIT,
        f"{REPEATED}True",
        f"{REPEATED}False",
    ),
    "labels of prompts, step 1: the row's right answer belongs to another prompt": followed(
        FIT,
        GENERATED,
        'batch.non_tensor_batch["reward_model"] = np.roll(batch.non_tensor_batch["reward_model"], 4)',
    ),
    "prompts of responses, step 1: the response belongs to another prompt": followed(
        FIT,
        GENERATED,
        'batch.batch["responses"] = batch.batch["responses"].roll(4, 0)',
        'batch.batch["attention_mask"][:, -8:] = batch.batch["attention_mask"][:, -8:].roll(4, 0)',
    ),
    "rewards, step 1: it is the reward of the next row": (*FIT, REWARDED, f"{REWARDED}.roll(-1, 0)"),
    "rewards, step 1: it is the reward of the next row (by the manager)": (
        *MANAGER,
        PLACED,
        PLACED.replace("[i,", "[i - 1,"),
    ),
    "rewards of tokens, step 1: its sign is exchanged": (
        *FIT,
        'batch.batch["token_level_rewards"] = ',
        'batch.batch["token_level_rewards"] = -',
    ),
    "positions of log-probabilities, step 1: log-probabilities are one position late": followed(
        FIT,
        'old_log_prob.batch.pop("entropys")',
        'old_log_prob.batch["old_log_probs"] = old_log_prob.batch["old_log_probs"].roll(1, 1)',
    ),
    "reference's log-probabilities, step 2: the reference is the actor": followed(
        FIT, "batch = batch.union(ref_log_prob)", 'batch.batch["ref_log_prob"] = batch.batch["old_log_probs"]'
    ),
}
"""By what is reported, the place of the edit in brackets if there are several."""


def fitted(
    folder: Path, code_tree: Path, cases: Mapping[str, Edit], *trainer: str
) -> tuple[dict[str, str], Path]:
    path = os.pathsep.join(map(str, [INJECTED, REHEARSAL, TENSORS, code_tree]))
    env = {**os.environ, **byte_code(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    made, usage = folder / "made", folder / "usage"
    usage.mkdir()
    subprocess.run([sys.executable, "-m", "npu_rl_make", made, "1", "64"], env=env, check=True)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("fit_without_ray.py"), made, str(STEPS), *trainer],
        env={**env, "NPU_RL_STANDINS": "cpu", "NPU_RL_USAGE": str(usage)},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found, usage


def test_each_mistake_is_named_in_its_first_step(tmp_path: Path, code_tree: Path) -> None:
    found, usage = fitted(tmp_path, code_tree, CASES)
    assert found.keys() == CASES.keys()
    for name, text in found.items():
        where, _, mistake = name.partition(" (")[0].partition(": ")
        assert text.startswith(where), (name, text)
        assert mistake in text, (name, text)
    recorded = read_recomputed_steps([usage], read_usage(usage)[1])
    assert recorded.differences == list(found.values())


def test_a_clean_tree_has_every_comparison_in_each_step(tmp_path: Path, code_tree: Path) -> None:
    found, usage = fitted(tmp_path, code_tree, {"clean": ()})
    assert found == {"clean": ""}
    recorded = read_recomputed_steps([usage], read_usage(usage)[1])
    assert not recorded.left_out and not recorded.unfired and not recorded.differences
    assert recorded.comparisons.pop("reference's log-probabilities") == STEPS - 1
    assert set(recorded.comparisons.values()) == {STEPS} and len(recorded.comparisons) == 8
    recorded.require_right(tmp_path, STEPS)


@pytest.mark.upstreams
def test_dapos_own_trainer_is_recomputed(tmp_path: Path, upstreams: Path) -> None:
    tree = tmp_path / "tree"
    for package in ("verl", "recipe/dapo"):
        archive(upstreams / "volcengine+verl" / "repo", "796871d", package, tree)
    found, usage = fitted(tmp_path, tree, {"clean": ()}, DAPO, *FILTERED)
    assert found == {"clean": ""}
    recorded = read_recomputed_steps([usage], read_usage(usage)[1])
    assert recorded.comparisons["advantages"] == STEPS and not recorded.unfired
    assert recorded.comparisons["groups kept by dynamic sampling"] == STEPS
