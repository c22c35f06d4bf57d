"""The call that creates vLLM's engine, in a tree that is patched with the adaptation rollout-engine-args."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_keys.engine_call import find_engine_call
from tests.code_trees import lay
from tests.support import ROOT

CALL = """\
from npu_rl_runtime import rollout_engine_args

class vLLMRollout:
    def __init__(self, config):
        engine_kwargs = {}
        self.engine = rollout_engine_args.engine(LLM, engine_kwargs)(
            dtype=config.dtype, enable_prefix_caching=True, seed=0, skip_tokenizer_init=False, **engine_kwargs
        )
"""
BY_THE_RECIPE = {"enable_prefix_caching", "seed"}


@pytest.mark.parametrize("adapted", [True, False])
def test_the_adaptation_frees_what_its_runtime_says(tmp_path: Path, adapted: bool) -> None:
    """The runtime's list was renamed once, and every recipe with one of these arguments refused."""
    runtime = ROOT / "npu_rl/runtime/rollout_engine_args.py"
    files = {
        "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py": CALL,
        "npu_rl_runtime/__init__.py": "",
        "npu_rl_runtime/rollout_engine_args.py": runtime.read_text(encoding="utf-8"),
    }
    fixed = find_engine_call(SourceIndex(lay(tmp_path, files)), None, adapted).fixed
    assert fixed.keys() == {"dtype", "skip_tokenizer_init", *(() if adapted else BY_THE_RECIPE)}


@pytest.mark.parametrize("body", ['engine_kwargs.pop("speculative_config", None)', "None"])
def test_what_the_trainer_pops_is_the_recipes(tmp_path: Path, body: str) -> None:
    """Passed by name, since it is no longer among the keywords: only a recipe can set it."""
    text = f"""\
        def launch(self, config):
            engine_kwargs = config.get("engine_kwargs", {{}})
            speculative_config = {body}
            return LLM(dtype=config.dtype, speculative_config=speculative_config, **engine_kwargs)
        """
    code = lay(tmp_path, {"verl/workers/rollout/vllm_rollout/vllm_async_server.py": text})
    fixed = find_engine_call(SourceIndex(code), "async", False).fixed
    assert fixed.keys() == ({"dtype"} if "pop" in body else {"dtype", "speculative_config"})


def test_what_a_mapping_passes_a_recipe_can_set(tmp_path: Path) -> None:
    """verl 0.8's server writes its arguments as a mapping, and the recipe's come last (vllm_async_server.py:253)."""
    text = """\
        def launch(self):
            args = {"dtype": self.config.dtype, "seed": self.rank + self.config.seed, **engine_kwargs}
        """
    code = lay(tmp_path, {"verl/workers/rollout/vllm_rollout/vllm_async_server.py": text})
    call = find_engine_call(SourceIndex(code), "async", False)
    assert call.fixed == {}
    passed = {name: (one.own, one.unchanged) for name, one in call.passed.items()}
    assert passed == {"dtype": ("dtype", True), "seed": ("seed", False)}
