"""What spoils a training is refused unless the recipe says that it is only to be timed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.code_trees import check_recipe, megatron, recipe

KEY = "actor_rollout_ref"


def found(loaded: Any) -> list[tuple[str, str]]:
    errors = [error for error in check_recipe(loaded, None).errors if error.rule == "benchmark-only"]
    return [(".".join(map(str, error.path)), f"{error.message}; {error.fix}") for error in errors]


SPOILED = [
    ({"rollout": {"ignore_end": True}}, "rollout.ignore_end", "true means that responses don't stop"),
    ({"model": {"path": "m", "load_weights": False}}, "model.load_weights", "false means that the weights"),
    ({"env": {"VLLM_ENABLE_FIX_ROUTE": "1"}}, "env.VLLM_ENABLE_FIX_ROUTE", "1 means that tokens don't go"),
    *(
        ({"overrides": {f"{KEY}.{name}": value}}, f"overrides.{KEY}.{name}", message)
        for name, value, message in (
            ("rollout.ignore_eos", True, "responses don't stop"),
            ("ref.load_weight", False, "the actor's are not the reference's"),
            ("actor.megatron.fix_router", True, "tokens don't go to the experts"),
        )
    ),
]


@pytest.mark.parametrize(("said", "path", "message"), SPOILED, ids=[case[1] for case in SPOILED])
def test_a_training_must_not_have_it_and_a_benchmark_may(
    said: dict[str, Any], path: str, message: str
) -> None:
    ((where, told),) = found(megatron(**said))
    assert where == path
    assert message in told and "set benchmark to true if the run is only to be timed" in told
    assert found(megatron(**said, benchmark=True)) == []


def test_the_last_word_counts() -> None:
    """An override puts right what a section says, and the other way round."""
    key = f"{KEY}.rollout.ignore_eos"
    assert found(recipe(rollout={"ignore_end": True}, overrides={key: False})) == []
    assert len(found(recipe(rollout={"ignore_end": False}, overrides={key: True}))) == 1
