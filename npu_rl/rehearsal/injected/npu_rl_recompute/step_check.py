"""The recomputation of each step of one trainer, on the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import batch_rows, group_advantages, log_prob_checks, response_masks, rewards
from .counts import compared, hook_fired, hook_used, not_recomputed
from .difference import require_equal
from .step_batch import StepBatch, Tokens

MASK, ADVANTAGES = "response mask", "advantages"


class StepCheck:
    """Checks of a trainer's steps.

    Attributes:
        late: Number of comparisons of answers that ran out of time since the last step.
    """

    def __init__(self, trainer: Any) -> None:
        self.late = 0
        self._trainer = trainer
        self._place = f"{type(trainer).__module__}.{type(trainer).__name__}"
        self._ends: frozenset[int] | None = None
        self._answers: dict[Tokens, set[str]] = {}
        self._columns: set[str] = set()
        self._generated: set[tuple[Tokens, Tokens]] = set()
        self._checked: StepBatch | None = None
        self._rates: list[float | None] = []

    def read(self, row: Mapping[str, Any]) -> None:
        """Keep the right answer of a prompt, and the names of columns, from a row of the data."""
        self._columns.update(row)
        if "input_ids" in row and "reward_model" in row:
            prompt = tuple(row["input_ids"][row["attention_mask"].bool()].tolist())
            self._answers.setdefault(prompt, set()).add(batch_rows.answer(row["reward_model"]))

    def watch_workers(self) -> None:
        """Watch the rollout and the update of the trainer's workers."""
        workers = self._trainer.actor_rollout_wg
        for rollout in (workers, getattr(self._trainer, "async_rollout_manager", None)):
            if hasattr(rollout, "generate_sequences"):
                self._watch_rollout(rollout)
        update = workers.update_actor

        def update_actor(data: Any, *arguments: Any, **named: Any) -> Any:
            hook_used(self._place)
            self._before_update(data)
            result = update(data, *arguments, **named)
            self._after_update(result)
            return result

        workers.update_actor = update_actor

    def _watch_rollout(self, rollout: Any) -> None:
        upstream = rollout.generate_sequences

        def generate_sequences(*arguments: Any, **named: Any) -> Any:
            data = upstream(*arguments, **named)
            tensors = dict(data.batch.items())
            if "prompts" in tensors:
                batch = StepBatch(tensors, {}, self._trainer.global_steps)
                self._generated.update(zip(batch.prompts(), batch.responses(), strict=True))
            return data

        rollout.generate_sequences = generate_sequences

    def check(self, data: Any) -> None:
        """Recompute a batch with advantages. Raises RecomputedDifferenceError."""
        batch = StepBatch(dict(data.batch.items()), data.non_tensor_batch, int(self._trainer.global_steps))
        mask = self._check_rows(batch)
        self._check_rewards(batch)
        self._check_advantages(batch, mask)
        log_prob_checks.require_positions(batch, mask)
        self._checked = batch
        hook_fired(self._place)

    def _before_update(self, data: Any) -> None:
        """Check what is sent to the update if it isn't what was checked.

        cann-recipes-train sends advantages alone where its workers keep the rest (D2D_DATA_TRANSFER).
        """
        before = self._checked
        tensors = dict(data.batch.items()) if hasattr(data, "meta_info") else {}
        known = before.tensors if before else {}
        if all(name in known and torch.equal(values, known[name]) for name, values in tensors.items()):
            return
        if before is not None and not ("prompts" in tensors and "uid" in data.non_tensor_batch):
            want = known["advantages"]
            require_equal(ADVANTAGES, tensors["advantages"], want, 0.0, dict, before.step)
            return
        self.check(data)

    def _after_update(self, result: Any) -> None:
        """Check what shows only in a step whose update passed the worker's checks."""
        if self._checked is not None:
            log_prob_checks.require_own_reference(self._checked, self._rates)
        self._rates.append(log_prob_checks.rate(result))
        self._checked = None
        self._generated.clear()
        self.late = 0

    def _check_rows(self, batch: StepBatch) -> torch.Tensor:
        """Check groups, prompts and masks, and return the mask."""
        config = self._trainer.config.actor_rollout_ref
        batch_rows.require_groups(batch, int(config.rollout.n))
        compared(batch_rows.GROUPS)
        if self._generated:
            batch_rows.require_generated(batch, self._generated)
            compared(batch_rows.PROMPTS)
        if self._answers and "reward_model" in batch.labels:
            batch_rows.require_labels(batch, self._answers)
            compared(batch_rows.LABELS)
        given, responses = batch.tensors["response_mask"], batch.tensors["responses"]
        if config.rollout.get("multi_turn", {}).get("enable", False):
            not_recomputed(MASK, "a conversation has tokens that the model didn't sample")
            return given.bool()
        ends = self._end_tokens()
        mask = response_masks.response_mask(responses, ends)

        def mistakes() -> Mapping[str, torch.Tensor]:
            return response_masks.known_mistakes(responses, ends)

        require_equal(MASK, given, mask, 0.0, mistakes, batch.step)
        compared(MASK)
        return mask

    def _end_tokens(self) -> frozenset[int]:
        """Return the tokens that end a sequence: of the model's configuration, else the tokenizer's."""
        if self._ends is None:
            folder = Path(str(self._trainer.config.actor_rollout_ref.model.path))
            found: Any = None
            for file in (folder / "generation_config.json", folder / "config.json"):
                if found is None and file.is_file():
                    found = json.loads(file.read_text()).get("eos_token_id")
            found = self._trainer.tokenizer.eos_token_id if found is None else found
            self._ends = frozenset(found if isinstance(found, list) else [found])
        return self._ends

    def _check_rewards(self, batch: StepBatch) -> None:
        trainer = self._trainer
        manager = getattr(trainer, "reward_fn", None)
        if manager is None or getattr(trainer, "use_rm", False):
            not_recomputed(rewards.REWARDS, "they are not a reward manager's on the driver")
        else:
            for _ in range(rewards.require_rewards(batch, manager, self._columns, self.late)):
                compared(rewards.TIMED_OUT)
            compared(rewards.REWARDS)
        if trainer.config.algorithm.get("use_kl_in_reward", False):
            not_recomputed(rewards.TOKEN_REWARDS, "they have a KL term")
        else:
            rewards.require_token_rewards(batch)
            compared(rewards.TOKEN_REWARDS)

    def _check_advantages(self, batch: StepBatch, mask: torch.Tensor) -> None:
        algorithm = self._trainer.config.algorithm
        estimator = str(getattr(algorithm.adv_estimator, "value", algorithm.adv_estimator))
        if estimator != "grpo":
            not_recomputed(ADVANTAGES, f"npu-rl has no formula of {estimator}")
            return
        by_deviation = bool(algorithm.get("norm_adv_by_std_in_grpo", True))
        scores, groups = batch.tensors["token_level_rewards"].sum(-1), list(batch.labels["uid"])
        if (kept := algorithm.get("filter_groups")) and kept.get("enable", False):
            batch_rows.require_unequal(batch, str(kept.metric), scores)
            compared(batch_rows.KEPT)
        own = group_advantages.group_advantages(scores, groups, by_deviation=by_deviation)
        values = mask.double()

        def mistakes() -> Mapping[str, torch.Tensor]:
            known = group_advantages.known_mistakes(scores, groups, by_deviation=by_deviation)
            every = {name: of_row[:, None] * values for name, of_row in known.items()}
            return {**every, "tokens after the response have it, too": own.values[:, None].expand_as(values)}

        require_equal(
            ADVANTAGES,
            batch.tensors["advantages"],
            own.values[:, None] * values,
            own.tolerances[:, None],
            mistakes,
            batch.step,
        )
        compared(ADVANTAGES)
