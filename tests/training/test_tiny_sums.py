"""The tiny model that half knows small sums, and the questions made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from npu_rl.common.python_roots import REHEARSAL

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.rehearsal


def make(folder: Path, *words: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "npu_rl_make", str(folder), "1", "64", *words],
        env={**os.environ, "PYTHONPATH": str(REHEARSAL), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Made once for all workers of pytest-xdist: it takes a minute."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if worker_id != "master" else base) / "sums-for-all"
    with FileLock(f"{folder}.lock"):
        return (
            folder
            if (folder / "test.parquet").is_file()
            else make(folder, "tiny-deepseek-v3-sums", "boxed-sums")
        )


def test_each_part_that_is_lost_shows_five_times_as_much_as_rounding(made: Path) -> None:
    """In the mean difference of a response token's probability, as verl's training/rollout_probs_diff_mean."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sys.path.insert(0, str(REHEARSAL))
    try:
        from npu_rl_make_sums import GROUPS, SCALE, without
        from npu_rl_make_tiny import to_bfloat16
    finally:
        sys.path.remove(str(REHEARSAL))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    actor = AutoModelForCausalLM.from_pretrained(
        made / "model", torch_dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert actor.config.vocab_size == len(tokenizer)  # no padding that would hide a token that is none
    rows = parquet.read_table(made / "train.parquet").to_pylist()
    sampled = []
    for text in sorted({row["prompt"][0]["content"] for row in rows}):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        tokens = torch.tensor([prompt] * 4)
        said = actor.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=6,
            do_sample=True,
            top_k=0,
            top_p=1.0,
        )
        sampled.append((tokens.shape[1], said))

    def probabilities(model: Any, replaced: dict[str, Any]) -> Any:
        found = []
        for asked, said in sampled:
            given = {"input_ids": said, "attention_mask": torch.ones_like(said)}
            with torch.no_grad():
                logits = torch.func.functional_call(model, replaced, (), given).logits
            log_probs = logits.float().log_softmax(-1)
            found.append(log_probs[:, asked - 1 : -1].gather(-1, said[:, asked:, None]).exp().flatten())
        return torch.cat(found)

    expected = probabilities(actor, {})
    rollout = to_bfloat16(actor)  # as a rollout holds it
    clean = float((probabilities(rollout, {}) - expected).abs().mean())
    assert clean < 0.002
    effects = {}
    for part in [*rollout.state_dict(), SCALE, GROUPS]:
        with without(rollout, part) as replaced:
            effects[part] = float((probabilities(rollout, replaced) - expected).abs().mean()) / clean
    worst = sorted(effects.items(), key=lambda pair: pair[1])[:3]
    assert len(effects) == 55 and min(effects.values()) > 5, worst


def test_rounding_changes_no_tokens_experts(made: Path) -> None:
    """An actor adds scores and float32 biases, a rollout what it is sent, in bfloat16: neither must decide a choice."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from npu_rl.runtime.router_bias import without_offset

    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    model = AutoModelForCausalLM.from_pretrained(made / "model", torch_dtype=torch.bfloat16).eval()
    (router,) = [part for part in model.modules() if hasattr(part, "e_score_correction_bias")]
    tensors = load_file(made / "model" / "model.safetensors")
    ((name, bias),) = [(name, value) for name, value in tensors.items() if name.endswith("correction_bias")]
    ((_, sent),) = without_offset([(name, bias)])
    seen: list[Any] = []
    router.register_forward_hook(lambda _router, inputs, _output: seen.append(inputs[0][0]))

    def chosen(scores: Any) -> Any:
        groups = scores.view(len(scores), router.n_group, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).argmax(-1, keepdim=True)
        others = torch.ones(groups.shape[:2], dtype=torch.bool).scatter(1, best, False)
        masked = groups.masked_fill(others[..., None], -float("inf")).flatten(1)
        return masked.topk(router.top_k, dim=-1).indices.sort(-1).values

    tokens = 0
    for row in parquet.read_table(made / "train.parquet").to_pylist()[:7]:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)
        for digit in range(6):
            answer = tokenizer.encode(f"\\boxed{{{digit}}}", add_special_tokens=False)
            with torch.no_grad():
                model(input_ids=torch.tensor([prompt + answer]))
            hidden = seen.pop()[len(prompt) - 1 :]
            exact = chosen((hidden.float() @ router.weight.float().T).sigmoid() + bias)
            scores = (hidden @ router.weight.T).sigmoid()
            assert torch.equal(chosen(scores + bias), exact)
            assert torch.equal(chosen(scores + sent.bfloat16()), exact)
            tokens += len(hidden)
    assert tokens == 7 * 6 * 6
