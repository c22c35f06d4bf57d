"""The comparison of every tensor at a weight sync, with faults put in on both sides."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.python_roots import REHEARSAL, TENSORS
from npu_rl.rehearsal.training_checks.weight_syncs import read_weight_syncs, require_sync_per_step

torch: Any = pytest.importorskip("torch")
from npu_rl.runtime.router_bias import without_offset  # noqa: E402
from tests.patchsets.run_router_choices import KEPT, MOVED  # noqa: E402

pytest.importorskip("transformers")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

Weights = Iterable[tuple[str, Any]]
O_PROJ, NORM = "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"
EXPERT = "model.layers.1.mlp.experts.{}.gate_proj.weight"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.fixture(scope="module")
def packages() -> Iterator[Any]:
    """What the training interpreter imports, in this process."""
    sys.path[:0] = [str(REHEARSAL), str(TENSORS)]
    try:
        yield importlib.import_module
    finally:
        del sys.path[:2]


@dataclass
class Sync:
    """A trainer and a rollout of one tiny model, the check between them, and faults that a test puts in.

    Attributes:
        on_the_way: Changes what the trainer sends.
        after: Changes the rollout after loading.
        parts: Number of tensors of the model.
    """

    check: Any
    trainer: Any
    rollout: Any
    on_the_way: Callable[[Weights], Weights] = lambda weights: weights
    after: Callable[[Any], None] = lambda _: None

    def enter(self) -> None:
        """Enter, as verl's sharding managers do."""
        self.check.enter(self, Sync.load)

    def load(self) -> None:
        self.rollout.load_weights(self.on_the_way(self.trainer.state_dict().items()))
        self.after(self.rollout)

    def __exit__(self, *_: object) -> None:
        """Leave, as between two entries."""

    def learn(self, but: str) -> None:
        """Change every parameter of the trainer but one, as an update does."""
        with torch.no_grad():
            for name, value in self.trainer.named_parameters():
                if name != but:
                    value += 0.01


@pytest.fixture
def sync(packages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sync:
    watch, made = packages("npu_rl_weight_sync.sync_check"), packages("npu_rl_make_tiny")
    tokenizer = made.make_tokenizer(["What is 1 + 1?"])
    trainer = made.random_model(tokenizer, 1)
    with torch.no_grad():
        for name, value in trainer.state_dict().items():
            if "norm" in name:
                value += 0.1 * torch.randn_like(value)
    trainer.save_pretrained(tmp_path / "model")
    rollout = made.random_model(tokenizer, 2).bfloat16()
    standin = packages("npu_rl_standins.rollout")
    standin.keep_biases_precise(rollout)

    def load_weights(weights: Weights) -> None:
        names = rollout.state_dict()
        with torch.no_grad():
            for name, value in weights:
                names[name].copy_(value)

    rollout.load_weights = load_weights
    config = trainer.config
    config.name_or_path = str(tmp_path / "model")
    (tmp_path / "usage").mkdir()
    monkeypatch.setenv("NPU_RL_USAGE", str(tmp_path / "usage"))
    return Sync(watch.Check(watch.fsdp_sides(trainer, config, rollout)), trainer, rollout)


def test_equal_tensors_pass_and_the_trainer_keeps_its_own(sync: Sync, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in sync.trainer.state_dict().items()}
    for _ in range(3):
        sync.enter()
    assert all(torch.equal(value, before[name]) for name, value in sync.trainer.state_dict().items())
    found = read_weight_syncs([tmp_path / "usage"])
    assert (found.syncs, found.tensors, found.unknown, found.faults) == (3, len(before), [], [])
    assert O_PROJ in found.untrained and NORM not in found.untrained  # there was no update
    assert found.lines() == [
        f"{len(before)} tensors of the rollout equal the trainer's after each of 3 weight syncs"
    ]


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Weights], Weights]:
    return lambda weights: ((found, change(value) if found == name else value) for found, value in weights)


def exchanged(one: str, other: str) -> Callable[[Weights], Weights]:
    names = {one: other, other: one}
    return lambda weights: ((names.get(name, name), value) for name, value in weights)


def left_out(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: ((found, value) for found, value in weights if found != name)


@pytest.mark.parametrize("build", ["build_on_fsdp", "build_on_megatron"])
def test_the_standin_for_the_rollout_is_watched(
    build: str, packages: Any, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sides that verl's worker has; the stand-in itself knows nothing of the check."""

    class Manager:
        rollout_model = sync.rollout
        __enter__, __exit__ = Sync.load, Sync.__exit__
        trainer, after, on_the_way = sync.trainer, staticmethod(sync.after), staticmethod(sync.on_the_way)
        rollout = sync.rollout

    module = SimpleNamespace(build_on_fsdp=lambda _: ("rollout", Manager()))
    module.build_on_megatron = module.build_on_fsdp
    packages("npu_rl_weight_sync.watched_syncs")._watch_standin(module)
    asked: list[Any] = []
    check = packages("npu_rl_weight_sync.sync_check")
    for sides in ("fsdp_sides", "megatron_sides"):
        monkeypatch.setattr(check, sides, lambda *given: asked.append(given) or sync.check.sides)
    actor = SimpleNamespace(actor_module="chunks")
    worker = SimpleNamespace(actor=actor, hf_config=1, actor_module_fsdp="module", actor_model_config=1)
    _, manager = getattr(module, build)(worker)
    with manager:
        assert asked == [("module" if build.endswith("fsdp") else "chunks", 1, sync.rollout)]
    sync.rollout.state_dict()[O_PROJ].zero_()
    Manager.on_the_way = staticmethod(left_out(O_PROJ))
    with pytest.raises(RuntimeError, match=f"{O_PROJ}: zeros, not sent to this rank"), manager:
        pass


ON_THE_WAY = {
    "a projection zeroed": (changed(O_PROJ, torch.zeros_like), f"{O_PROJ}: zeros, as the trainer sent it; "),
    "one expert zeroed": (
        changed(EXPERT.format(5), torch.zeros_like),
        f"{EXPERT.format(5)}: zeros, as the trainer sent it; ",
    ),
    "a norm not sent": (left_out(NORM), f"{NORM}: other values, not sent to this rank; "),
    "the bias rounded": (
        changed(BIAS, lambda value: value.bfloat16().float()),
        f"{BIAS}: rounded, as the trainer sent it; ",
    ),
    "a weight rounded to FP8": (
        changed(O_PROJ, lambda value: value.to(torch.float8_e4m3fn).float()),
        f"{O_PROJ}: rounded, as the trainer sent it; ",
    ),
    "the shards of two ranks exchanged": (
        changed(O_PROJ, lambda value: torch.cat(value.chunk(2)[::-1])),
        f"{O_PROJ}: its own shards in another order, as the trainer sent it; ",
    ),
    "two experts exchanged": (
        exchanged(EXPERT.format(1), EXPERT.format(5)),
        f"{EXPERT.format(1)}: the values of {EXPERT.format(5)}, as the trainer sent it; ",
    ),
    "a value that is not finite": (
        changed(O_PROJ, lambda value: value / 0),
        f"{O_PROJ}: values that are not finite, as the trainer sent it; ",
    ),
}


@pytest.mark.parametrize("fault", ON_THE_WAY)
def test_a_fault_on_the_way_is_named_at_the_first_sync(fault: str, sync: Sync, tmp_path: Path) -> None:
    sync.on_the_way, expected = ON_THE_WAY[fault]
    with pytest.raises(
        RuntimeError, match="weight sync 1, rank 0: the rollout does not hold the trainer's tensors"
    ):
        sync.enter()
    found = read_weight_syncs([tmp_path / "usage"])
    assert found.faults[0].startswith(f"sync 1, rank 0: {expected}norm ")
    assert len(found.faults) == (2 if fault == "two experts exchanged" else 1)
    assert "in the trainer, " in found.faults[0] and found.syncs == 0
    with pytest.raises(NpuRlError, match="The weight sync is wrong"):
        found.require_equal(tmp_path, 1)


def test_a_tensor_that_the_rollout_does_not_have_is_lost(sync: Sync, tmp_path: Path) -> None:
    """As where the rollout takes the head for the embedding's, and leaves its weights out."""
    sync.rollout.lm_head = torch.nn.Identity()
    sync.on_the_way = left_out("lm_head.weight")
    norm = f"{sync.trainer.lm_head.weight.double().norm():.4g}"
    with pytest.raises(
        RuntimeError, match=f"lm_head.weight: lost: the rollout of no rank has it; norm {norm} in the trainer"
    ):
        sync.enter()
    assert (
        read_weight_syncs([tmp_path / "usage"]).faults[0].startswith("sync 1, rank 0: lm_head.weight: lost")
    )


def test_a_fault_of_the_rollouts_loader_is_told_from_the_trainers(sync: Sync) -> None:
    sync.after = lambda rollout: rollout.state_dict()[O_PROJ].zero_()
    with pytest.raises(RuntimeError, match=f"{O_PROJ}: zeros, sent as it is in the trainer; norm "):
        sync.enter()


@pytest.mark.parametrize(
    ("sent", "phase"), [(False, "not sent to this rank"), (True, "sent as it is in the trainer")]
)
def test_a_rollout_that_keeps_the_first_weights_is_stale_at_the_second_sync(
    sent: bool, phase: str, sync: Sync
) -> None:
    """Without an update in between, since a small one is lost in bfloat16."""
    sync.enter()
    if sent:
        kept = sync.rollout.state_dict()[O_PROJ].clone()
        sync.after = lambda rollout: rollout.state_dict()[O_PROJ].copy_(kept)
    else:
        sync.on_the_way = left_out(O_PROJ)
    with pytest.raises(
        RuntimeError,
        match=f"weight sync 2, rank 0: .*\\n  {O_PROJ}: stale: the values of the sync before, {phase}; ",
    ):
        sync.enter()


def test_a_rollout_that_takes_nothing_was_sent_nothing_at_this_sync(sync: Sync) -> None:
    sync.enter()
    sync.rollout.load_weights = lambda weights: None
    with pytest.raises(RuntimeError, match=f"{O_PROJ}: stale: .*, not sent to this rank; "):
        sync.enter()


def test_a_tensor_that_no_rank_trains_is_not_passed_over(sync: Sync) -> None:
    trained = sync.check.sides.trained
    sync.check.sides = replace(
        sync.check.sides, trained=lambda unknown: [one for one in trained(unknown) if one.name != NORM]
    )
    with pytest.raises(RuntimeError, match=f"the trainer's ranks disagree\n  {NORM}: no rank trains it"):
        sync.enter()


def test_a_checkpoint_that_the_trainer_did_not_load_whole(sync: Sync) -> None:
    sync.trainer.state_dict()[BIAS].copy_(sync.trainer.state_dict()[BIAS].bfloat16())
    with pytest.raises(
        RuntimeError,
        match=f"the trainer did not load the checkpoint's tensors\n  {BIAS}: rounded; norm .* in the checkpoint, ",
    ):
        sync.enter()


def test_a_trainer_whose_bias_is_bfloat16_did_not_load_it(sync: Sync) -> None:
    """As Megatron's Float16Module leaves it, where nothing makes it float32 again."""
    for module in sync.trainer.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias = module.e_score_correction_bias.bfloat16()
    with pytest.raises(RuntimeError, match=f"{BIAS}: rounded; norm .* in the checkpoint, "):
        sync.enter()


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", [*KEPT, *MOVED])
def test_a_bias_may_have_another_offset(name: str, kind: str, packages: Any) -> None:
    """As the adaptation router-bias sends it. Another value is found, and so is one that is coarser than need be."""
    equal = packages("npu_rl_weight_sync.tensor_difference").equal
    want = {**KEPT, **MOVED}[name](64, torch.Generator().manual_seed(0))
    ((_, sent),) = without_offset([(BIAS, want)])
    got = sent.to(getattr(torch, kind))
    assert equal(BIAS, got, want)
    assert not equal(BIAS, got.flip(0), want) and not equal(BIAS, got * 1.25, want)
    lone = got.clone()
    lone[want.argsort()[32]] += 4 * 2.0**-8 * got.abs().max()
    assert not equal(BIAS, lone, want)
    upstreams = want.to(getattr(torch, kind))
    assert equal(BIAS, upstreams, want) == (kind == "float32" or name in KEPT)


def test_a_trainer_that_began_with_random_weights_has_no_checkpoint(sync: Sync) -> None:
    with torch.no_grad():
        for value in sync.trainer.parameters():
            value += 0.01
    sync.enter()


def test_a_made_checkpoint_is_compared_even_if_most_of_it_differs(
    sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_RL_LOADS", "1")
    with torch.no_grad():
        for value in sync.trainer.parameters():
            value.copy_(value.to(torch.float8_e4m3fn).to(value.dtype))
    with pytest.raises(
        RuntimeError, match=r"the trainer did not load the checkpoint's tensors\n  .*: rounded; norm "
    ):
        sync.enter()


def test_a_loader_that_refuses_is_told_which_tensor_it_lacks(sync: Sync) -> None:
    """As the stand-in for the rollout, and vLLM's loaders where a tensor is not given."""
    load = sync.rollout.load_weights

    def refusing(weights: Weights) -> None:
        given = dict(weights)
        load(given.items())
        if NORM not in given:
            raise RuntimeError("the converter left 1 weight of the rollout unset")

    sync.rollout.load_weights = refusing
    sync.on_the_way = left_out(NORM)
    with pytest.raises(
        RuntimeError,
        match="weight sync 1, rank 0: the converter left 1 weight of the rollout unset; the rollout does not hold "
        f"the trainer's tensors\n  {NORM}: other values, not sent to this rank; norm .* in the trainer, ",
    ):
        sync.enter()
    sync.on_the_way, sync.rollout.load_weights = left_out(NORM), load


def test_a_matrix_that_no_update_changes_is_named(sync: Sync, tmp_path: Path) -> None:
    for number in range(4):
        if number:
            sync.learn(but=O_PROJ)
        sync.enter()
        found = read_weight_syncs([tmp_path / "usage"])
        assert found.untrained == ([O_PROJ] if number > 1 else []) and found.updated == (number > 1)
    with pytest.raises(
        NpuRlError, match=f"No update changed some .*\n.*\n.*{O_PROJ}: as at the first weight sync"
    ):
        found.require_equal(tmp_path, 1)


def test_an_expert_without_tokens_counts_as_trained_in_the_first_steps(sync: Sync, tmp_path: Path) -> None:
    """With another's matrix of the same kind; later each expert has to have learnt."""
    silent = EXPERT.format(3)
    for number in range(8):
        if number:
            sync.learn(but=silent)
        sync.enter()
        assert read_weight_syncs([tmp_path / "usage"]).untrained == ([silent] if number == 7 else [])


def test_copies_that_differ_and_parts_that_nobody_trains(packages: Any) -> None:
    held = packages("npu_rl_weight_sync.held")
    upper, lower = ((0, 2), (0, 4)), ((2, 4), (0, 4))
    ranks = [
        [held.Held("split", upper, torch.ones(2, 4)), held.Held("copied", upper, torch.ones(2, 4))],
        [held.Held("split", lower, torch.ones(2, 4)), held.Held("copied", upper, torch.zeros(2, 4))],
    ]
    found = held.put_together(ranks, {"split": (4, 4), "copied": (4, 4)})
    assert torch.equal(found.tensors["split"], torch.ones(4, 4))
    assert found.faults == ("copied: rank 1 trains another copy than a rank before it",)
    found = held.put_together(ranks[:1], {"split": (4, 4), "copied": (4, 4)})
    assert found.faults[0] == "split: no rank trains 8 of its 16 values"
    assert held.put_together(ranks[:1], {"split": (4, 4), "copied": (4, 4), "lost": (1,)}).faults[-1] == (
        "lost: no rank trains it"
    )


def test_a_rollout_that_is_filled_in_another_way_is_an_error(sync: Sync, tmp_path: Path) -> None:
    """A comparison of nothing once passed: "0 tensors of the rollout equal the trainer's"."""
    sync.enter()
    load = sync.rollout.load_weights  # as a manager would that calls the loader of the model's class

    def enter(_manager: Any) -> None:
        load(sync.trainer.state_dict().items())

    with pytest.raises(RuntimeError, match="load_weights of the rollout's model was not called"):
        sync.check.enter(sync, enter)
    with pytest.raises(NpuRlError, match="load_weights of the rollout's model was not called"):
        read_weight_syncs([tmp_path / "usage"]).require_equal(tmp_path, 1)


def test_a_training_without_a_compared_sync_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NpuRlError, match="No weight sync was compared") as caught:
        read_weight_syncs([tmp_path]).require_equal(tmp_path, 3)
    assert "The training made 3 steps" in str(caught.value)
    read_weight_syncs([tmp_path]).require_equal(tmp_path, 0)  # it ended before one, for a reason that is told


def test_a_step_whose_rollout_keeps_the_weights_of_an_earlier_one_is_an_error(tmp_path: Path) -> None:
    for rank, syncs in ((0, (1, 2, 3)), (1, (1, 2))):
        lines = (
            {"sync": sync, "rank": rank, "compared": ["a"], "unknown": [], "faults": []} for sync in syncs
        )
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / f"weight-sync-node-{rank}.jsonl").write_text(text)
    require_sync_per_step(tmp_path, 2)  # the third is of a validation
    with pytest.raises(NpuRlError, match="A weight sync is missing") as caught:
        require_sync_per_step(tmp_path, 3)
    assert "Rank 1 trained 3 steps, and its rollout got the trainer's weights 2 times" in str(caught.value)
