"""`plan: {except: {ID: reason}}`: what it removes, what it can't, and where it is told."""

from __future__ import annotations

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import judge
from tests.plan.helpers import loaded

UNCERTAIN = ("env.HCCL_EXEC_TIMEOUT=-5", "plan.except.environment-value=our firmware takes them")
CERTAIN = ("actor.parallel.tensor=2", "plan.except.mla-tensor-parallel=we know")


def found(*changes: str) -> list[tuple[str, Severity, str]]:
    return [(one.rule, one.severity, one.key) for one in judge(loaded(*changes)).findings]


def test_an_exception_removes_the_finding_and_is_told() -> None:
    assert found(UNCERTAIN[0]) == [("environment-value", Severity.ERROR, "env.HCCL_EXEC_TIMEOUT")]
    judgement = judge(loaded(*UNCERTAIN))
    (told,) = judgement.findings
    assert judgement.ok
    assert (told.rule, told.severity, told.key) == (
        "overruled",
        Severity.NOTE,
        UNCERTAIN[1].partition("=")[0],
    )
    assert told.message.startswith(
        "overruled: environment-value: our firmware takes them (the finding: HCCL_EX"
    )
    assert dict(judgement.overruled) == {"environment-value": "our firmware takes them"}


def test_an_advice_may_be_overruled() -> None:
    change = "actor.transformer.moe_router_group_topk=8"
    assert found(change)[0][:2] == ("router-groups", Severity.ADVICE)
    assert found(change, "plan.except.router-groups=as published")[0][:2] == ("overruled", Severity.NOTE)


def test_a_certain_crash_stays() -> None:
    assert found(*CERTAIN) == [
        ("exception-to-a-certain-rule", Severity.ERROR, "plan.except.mla-tensor-parallel"),
        ("mla-tensor-parallel", Severity.ERROR, "actor.parallel.tensor"),
    ]
    assert judge(loaded(*CERTAIN)).overruled == {}


def test_an_exception_without_effect_is_a_note_with_the_nearest_id() -> None:
    (noted,) = judge(loaded("plan.except.checkpoint-layout=x")).findings
    assert (noted.rule, noted.severity) == ("exception-without-effect", Severity.NOTE)
    misspelt = judge(loaded(UNCERTAIN[0], "plan.except.environment-vlue=x"))
    (told,) = (one for one in misspelt.findings if one.rule == "exception-without-effect")
    assert "did you mean 'environment-value'" in told.message and not misspelt.ok


@pytest.mark.parametrize(
    "given",
    ["plan.except.checkpoint-on-every-node=", "plan.except.HCCL=x", "plan.exept.checkpoint-on-every-node=x"],
)
def test_what_is_no_exception(given: str) -> None:
    with pytest.raises(NpuRlError):
        loaded(given)
