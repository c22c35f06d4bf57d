"""The reward where verl calls it: in a Ray actor, which Ray ends with a signal."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("math_verify")
pytestmark = pytest.mark.rehearsal

from tests.support import ROOT  # noqa: E402


class Trainer:
    """An actor as verl's: it calls the reward from its main thread and from others."""

    def score(self, answers: list[str], right: str) -> list[float]:
        from npu_rl.runtime.deepscaler import compute_scores

        return compute_scores(["deepscaler"] * len(answers), answers, [right] * len(answers))  # type: ignore[return-value]

    def server(self) -> int:
        from npu_rl.runtime.deepscaler import pool

        assert pool._started
        return pool._started.process.pid


def test_in_an_actor_and_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "NPU_RL_DEEPSCALER_WORKERS": "2"}
    ray.init(
        address="local", num_cpus=2, include_dashboard=False,
        _node_ip_address="127.0.0.1", object_store_memory=100 << 20,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    try:
        actor = ray.remote(Trainer).options(max_concurrency=4).remote()
        answers = [r"\boxed{2\sqrt2}", r"\boxed{9^{9^9}}", "8", r"\boxed{\sqrt{4+4}}"]
        calls = [actor.score.remote(answers, r"\sqrt8") for _ in range(4)]
        assert ray.get(calls, timeout=120) == [[1.0, 0.0, 0.0, 1.0]] * 4
        server = Path(f"/proc/{ray.get(actor.server.remote())}")
        assert server.exists()
        ray.kill(actor)
        end = time.monotonic() + 60
        while server.exists() and "Z" not in (server / "stat").read_text().rpartition(")")[2].split()[0]:
            assert time.monotonic() < end, "the server outlives the actor"
            time.sleep(0.05)
    finally:
        ray.shutdown()
