"""A worker's checks beside its update: the rollout's rows, the reference's weights, and float32 log-probabilities."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL, TENSORS

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.rehearsal


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Import modules of a rehearsal's processes, which write to `tmp_path`."""
    monkeypatch.syspath_prepend(str(REHEARSAL))
    monkeypatch.syspath_prepend(str(TENSORS))
    monkeypatch.setenv("NPU_RL_USAGE", str(tmp_path))
    counter = importlib.import_module("npu_rl_standins.used")._counter
    monkeypatch.setattr(counter, "_owner", 0)  # begins a new file
    return importlib.import_module


class Rollout:
    """As verl's HFRollout: `module` generates, and rows are made of its sequences. `order` is that of the responses."""

    def __init__(self, order: list[int]) -> None:
        self.order, self.module = order, SimpleNamespace(generate=self.generate)

    def generate(self, input_ids: Any, attention_mask: Any) -> Any:
        responses = torch.tensor([[5, 2, 0], [6, 7, 2]])
        return SimpleNamespace(sequences=torch.cat([input_ids, responses], 1))

    def generate_sequences(self, prompts: Any) -> Any:
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        responses = self.module.generate(input_ids=ids, attention_mask=mask).sequences[self.order, 2:]
        full = torch.cat([mask, torch.ones_like(responses)], 1)
        return SimpleNamespace(batch={"prompts": ids, "responses": responses, "attention_mask": full})


def test_responses_stay_with_their_prompts(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = module("npu_rl_recompute.sampled_rows")
    upstream = Rollout.generate_sequences
    monkeypatch.setattr(Rollout, "generate_sequences", upstream)
    rows._watch(Rollout, "module", rows._rows_of_sequences)
    prompts = SimpleNamespace(
        batch={"input_ids": torch.tensor([[0, 8], [9, 9]]), "attention_mask": torch.tensor([[0, 1], [1, 1]])},
        meta_info={"pad_token_id": 0},
    )
    Rollout([0, 1]).generate_sequences(prompts)
    error = module("npu_rl_recompute.difference").RecomputedDifferenceError
    for order, what in {(1, 0): "belongs to another prompt", (1, 1): "belongs to another prompt"}.items():
        with pytest.raises(error, match=f"sampled responses, row 0: .*{what}"):
            Rollout(list(order)).generate_sequences(prompts)


def test_the_reference_keeps_the_checkpoints_weights(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights, made = module("npu_rl_recompute.reference_weights"), module("npu_rl_make_tiny")
    error = module("npu_rl_recompute.difference").RecomputedDifferenceError
    tokenizer = made.make_tokenizer()
    model, folder = made.random_model(tokenizer, 1), tmp_path / "model"
    folder.mkdir()
    made.save_model(model, folder, tokenizer)
    transformers = module("transformers")

    class Actor:
        """As verl's DataParallelPPOActor."""

        def __init__(self, optimizer: Any = None) -> None:
            self.actor_module = transformers.AutoModelForCausalLM.from_pretrained(folder)
            self.actor_optimizer = optimizer

        def compute_log_prob(self) -> None:
            """Compute nothing."""

    weights._watch("Actor", SimpleNamespace(Actor=Actor))
    monkeypatch.setenv("NPU_RL_LOADS", "1")
    name = "model.layers.0.mlp.up_proj.weight"

    def change(actor: Any) -> None:
        actor.actor_module.state_dict()[name][0, 0] += 1

    reference, trained, other = Actor(), Actor(optimizer="one"), Actor()
    for actor in (reference, trained):
        actor.compute_log_prob()
    change(trained)
    trained.compute_log_prob()
    change(reference)
    with pytest.raises(error, match=f"reference's weights, .*{name}.*updates change the reference"):
        reference.compute_log_prob()
    change(other)
    with pytest.raises(error, match=f"in the checkpoint, norm of {name}.*the reference did not load it"):
        other.compute_log_prob()


def test_log_probabilities_of_a_cpu_are_not_rounded(module: Any, tmp_path: Path) -> None:
    def logprobs_from_logits(logits: Any, labels: Any, inplace_backward: bool = True) -> Any:
        return torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]

    verl = SimpleNamespace(logprobs_from_logits=logprobs_from_logits)
    module("npu_rl_standins.float_log_probs")._install_in(verl)
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    labels = torch.tensor([1, 2, 3, 4])
    found = verl.logprobs_from_logits(logits=logits, labels=labels)
    assert torch.equal(found, logprobs_from_logits(logits.float(), labels))
    assert not torch.equal(found, logprobs_from_logits(logits, labels).float())
    found.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16
    assert "verl.logprobs_from_logits: float32" in next(tmp_path.glob("*.txt")).read_text()
