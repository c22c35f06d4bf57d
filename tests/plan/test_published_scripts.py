"""verl's example scripts for NPUs, of 0.8 and 0.9: as recipes they are accepted and say the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.config.finding import Severity
from npu_rl.judgement.judge import AssembledTree, judge
from npu_rl.recipes.load_recipe import load_recipe
from tests.patchsets.flagship_tree import tree
from tests.plan import published_scripts as published
from tests.plan.published_scripts import TREES, Script

pytestmark = [pytest.mark.upstreams, pytest.mark.rehearsal]
pytest.importorskip("hydra")

COMPONENTS = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "mbridge")


@dataclass
class Stack:
    """A code tree as it is locked, and the scripts of its verl."""

    manifest: str
    code: Path
    scripts: tuple[Script, ...]

    def stored(self) -> Iterator[tuple[Script, Path]]:
        """The scripts that are for NPUs only, and their recipes."""
        for script in self.scripts:
            if script.is_for_npus_only and script.is_ours and not script.has_critic:
                yield script, published.HERE / f"{self.manifest}-{script.name}.yaml"

    def refusals(self, recipe: Path, *changes: str) -> dict[str, str]:
        """The rules that refuse a recipe, but for estimates of memory, which verl has no code for."""
        found = judge(load_recipe(str(recipe), changes), AssembledTree(self.code, self.manifest)).findings
        memory = ("memory-", "kv-cache-")
        return {
            one.rule: f"{one.key}: {one.message}"
            for one in found
            if one.severity is Severity.ERROR and not one.rule.startswith(memory)
        }


@pytest.fixture(scope="module", params=sorted(TREES, reverse=True))
def stack(request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    code = tree(
        upstreams, tmp_path_factory.mktemp(request.param) / "code", COMPONENTS, manifest=request.param
    )
    return Stack(request.param, code, tuple(published.scripts(upstreams, TREES[request.param])))


def test_they_are_accepted_and_say_the_same(stack: Stack) -> None:
    """By the tree's own Hydra each key has the script's value, and nothing refuses it, estimates of memory included."""
    files = {file.name for _, file in stack.stored()}
    assert files == {file.name for file in published.HERE.glob(f"{stack.manifest}-*.yaml")}
    for script, recipe in stack.stored():
        assert published.differences(script, recipe, stack.code) == {}, script.name
        assert judge(load_recipe(str(recipe)), AssembledTree(stack.code, stack.manifest)).errors == (), (
            script.name
        )


def test_one_with_a_critic_is_refused_with_that_reason(stack: Stack, tmp_path: Path) -> None:
    found = [one for one in stack.scripts if one.is_for_npus_only and one.has_critic]
    assert [one.name for one in found] == (["ppo-qwen3-8b-fsdp"] if stack.manifest == "newest" else [])
    for script in found:
        recipe = tmp_path / "ppo.yaml"
        published.write_recipe(script, stack.code, stack.manifest, recipe)
        refused = stack.refusals(recipe)
        assert refused.keys() == {"unsupported"} and "a critic is not supported" in refused["unsupported"]
