"""Compiled graphs and weights that move: with free addresses a graph follows them, with frozen ones it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from npu_rl.runtime import rollout_offload  # noqa: E402
from npu_rl.runtime.rollout_offload import graph  # noqa: E402
from tests.runtime.tiny_engine import TinyLLM, load, weights  # noqa: E402

pytestmark = pytest.mark.rehearsal

TOKENS = torch.tensor([1, 2, 3])


def backend(frozen_parameter: bool, compiled: list[Any]) -> Callable[..., Any]:
    """A compiler for torch.compile with torchair's option: frozen, a Parameter's memory is looked up only once."""

    def compile_graph(module: Any, _: Any) -> Callable[..., Any]:
        compiled.append(module)
        first: dict[int, Any] = {}

        def run(*inputs: Any) -> Any:
            given = [
                first.setdefault(place, one.data)
                if frozen_parameter and isinstance(one, torch.nn.Parameter)
                else one
                for place, one in enumerate(inputs)
            ]
            return module(*given)

        return run

    return compile_graph


def follow(frozen_parameter: bool) -> tuple[bool, int, int]:
    """Whether a graph's answers are the eager ones after two reloads, and the number of graphs before and after."""
    torch._dynamo.reset()
    llm = TinyLLM()
    rollout_offload.install(llm)
    compiled: list[Any] = []
    model = torch.compile(llm.model, backend=backend(frozen_parameter, compiled), dynamic=True)
    same = []
    for one in llm.runner.kv_caches[0]:  # as vllm-ascend does for the first cache, and for no later one
        torch._dynamo.mark_static(one)
    with torch.no_grad():
        assert torch.allclose(model(TOKENS), llm.model(TOKENS))
        before = len(compiled)
        for seed in (2, 3):
            llm.sleep(level=2)
            llm.wake_up(tags=["weights"])
            load(llm.model, weights(llm.model, seed))
            llm.wake_up(tags=["kv_cache"])
            same.append(torch.allclose(model(TOKENS), llm.model(TOKENS)))
    torch._dynamo.reset()
    return all(same), before, len(compiled)


def test_a_graph_with_free_addresses_follows_the_weights_without_a_new_capture() -> None:
    right, before, after = follow(graph.frozen_parameter())
    assert right and before == after > 0


def test_a_graph_with_frozen_addresses_goes_on_with_the_old_weights() -> None:
    """The reason why they may not be frozen. torchair would read memory that is someone else's by now."""
    right, *_ = follow(frozen_parameter=True)
    assert not right


def test_switched_off_it_is_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rollout_offload.frozen_parameter() is False
    monkeypatch.setenv("NPU_RL_ROLLOUT_OFFLOAD", "0")
    assert rollout_offload.frozen_parameter() is True


REFUSED = """
from npu_rl.runtime import rollout_offload
from tests.runtime.tiny_engine import TinyLLM
llm = TinyLLM()
{}
try:
    rollout_offload.install(llm)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("compiled", "refused"),
    [
        ("llm.runner.torchair_compiled_model = llm.model", True),
        ("llm.runner.torchair_compiled_models = {8: llm.model}", True),
        ("llm.runner.torchair_compiled_model, llm.runner.torchair_compiled_models = None, {}", False),
        ("rollout_offload.frozen_parameter(); llm.runner.torchair_compiled_model = llm.model", False),
    ],
)
def test_a_graph_that_never_asked_is_refused(compiled: str, refused: bool) -> None:
    """Its addresses are frozen, for upstream has it so: the patch is not in the tree. In a process of its own, where
    nobody has asked yet."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", REFUSED.format(compiled)],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ("0001-graph-parameters" in done.stdout) is refused
    assert refused or not done.stdout
