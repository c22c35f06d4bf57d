"""Known faults of the tree in the judgement of a recipe: what refuses devices, and what accepts a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.faults.fault import KnownFault, known_faults
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe
from tests.plan.helpers import loaded

ID = "attention-scale-ignored"
(FAULT,) = (fault for fault in known_faults() if fault.id == ID)
(PATCH,) = FAULT.ended
FAULTY = {place.file: place.text for place in FAULT.code}
PATCHED = {name: f"{text}\n{PATCH.places[0].text}" for name, text in FAULTY.items()}
OF_MEGATRON = next(fault for fault in known_faults() if fault.strategy == "megatron")
(OF_FSDP,) = (fault for fault in known_faults() if fault.id == "host-copies-not-awaited")


def judged(tmp_path: Path, files: dict[str, str], *changes: str) -> Judgement:
    code = lay(tmp_path / "code", files)
    return judge(loaded(*changes), AssembledTree(code, "deepseek-r1-zero"))


def rules(judgement: Judgement) -> dict[str, Severity]:
    return {
        one.rule: one.severity for one in judgement.findings if "fault" in one.rule or "accepted" in one.rule
    }


def test_an_open_wrong_result_refuses_devices_and_no_rehearsal(tmp_path: Path) -> None:
    judgement = judged(tmp_path, FAULTY)
    assert rules(judgement) == {"known-fault": Severity.ERROR}
    # those of a rehearsal are not in it
    (found,) = (one for one in judgement.plan_findings if one.rule == "known-fault")
    assert ID in found.message and f"faults.accept.{ID}=REASON" in found.fix
    assert "known-fault" not in {one.rule for one in judgement.key_findings}


def test_a_patched_tree_is_judged_by_the_switch(tmp_path: Path) -> None:
    assert rules(judged(tmp_path / "on", PATCHED)) == {}
    for change in ("adaptations.attention-scale=false", "env.NPU_RL_ATTENTION_SCALE=0"):
        judgement = judged(tmp_path / change, PATCHED, change)
        assert rules(judgement)["known-fault"] is Severity.ERROR, change


def test_the_shell_switches_an_adaptation_off_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run inherits the shell's variables; the recipe's own adaptations go before them."""
    monkeypatch.setenv("NPU_RL_ATTENTION_SCALE", "off")
    assert rules(judged(tmp_path / "shell", PATCHED))["known-fault"] is Severity.ERROR
    assert rules(judged(tmp_path / "recipe", PATCHED, "adaptations.attention-scale=true")) == {}


def test_an_accepted_fault_is_a_note_with_its_reason(tmp_path: Path) -> None:
    judgement = judged(tmp_path, FAULTY, f"faults.accept.{ID}=we train Qwen")
    assert rules(judgement) == {"accepted-fault": Severity.NOTE}
    assert dict(judgement.accepted_faults) == {ID: "we train Qwen"}
    assert judgement.overruled == {}


def test_it_can_only_be_accepted_by_its_own_key(tmp_path: Path) -> None:
    found = rules(judged(tmp_path, FAULTY, "plan.except.known-fault=we know"))
    assert found["known-fault"] is Severity.ERROR


@pytest.mark.parametrize("files", [FAULTY, None])
def test_an_unknown_id_is_an_error(tmp_path: Path, files: dict[str, str] | None) -> None:
    change = "faults.accept.attention-scale-ignord=x"
    judgement = judge(loaded(change)) if files is None else judged(tmp_path, files, change)
    (found,) = [one for one in judgement.errors if one.rule == "unknown-fault"]
    assert f"did you mean '{ID}'" in found.message


def test_an_acceptance_without_effect_is_a_note(tmp_path: Path) -> None:
    judgement = judged(tmp_path, PATCHED, f"faults.accept.{ID}=x")
    assert rules(judgement) == {"accepted-without-effect": Severity.NOTE}
    assert dict(judgement.accepted_faults) == {}


@pytest.mark.parametrize(
    ("fault", "strategy", "refused"),
    [
        (OF_MEGATRON, "megatron", True),
        (OF_MEGATRON, "fsdp", False),
        (OF_FSDP, "fsdp", True),
        (OF_FSDP, "fsdp2", True),
        (OF_FSDP, "megatron", False),
    ],
)
def test_a_fault_of_one_strategy_is_of_its_recipes(
    tmp_path: Path, fault: KnownFault, strategy: str, refused: bool
) -> None:
    files = {place.file: place.text for place in fault.code}
    found = rules(judged(tmp_path, files, f"actor.strategy={strategy}")).get("known-fault")
    assert found is (Severity.ERROR if refused else None)


def test_every_strategys_faults_count_for_a_trainer_with_keys_of_its_own(tmp_path: Path) -> None:
    """Its recipe does not name the workers that it starts."""
    code = lay(tmp_path / "code", {**TREE, **{place.file: place.text for place in OF_MEGATRON.code}})

    def found(*changes: str) -> dict[str, Severity]:
        recipe = load_recipe(str(write_recipe(tmp_path)), ["device=npu", *changes])
        return rules(judge(recipe, AssembledTree(code, "quickstart")))

    assert found() == {"known-fault": Severity.ERROR}
    assert found(f"faults.accept.{OF_MEGATRON.id}=ours") == {"accepted-fault": Severity.NOTE}
