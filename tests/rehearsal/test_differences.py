"""What the report begins with: versions and the device; and what a step imports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from npu_rl.common.interpreter import Interpreter
from npu_rl.rehearsal.executed_modules import executed_modules
from npu_rl.rehearsal.run_differences.differences import Differences, OtherVersion, differences
from tests.code_trees import lay
from tests.training.fake_run import FakeRun

TREE = {
    "verl/__init__.py": "",
    "verl/main.py": "import os\nfrom . import workers\n\ndef main():\n    from verl.other import run\n",
    "verl/workers/__init__.py": "from .vllm_rollout import Rollout\n",
    "verl/workers/vllm_rollout.py": "import vllm.engine.llm\nfrom vllm import SamplingParams\n",
    "verl/other.py": "if is_npu_available:\n    run = 1\n",
    "verl/never.py": "import sys\nif sys.version_info >= (3, 12):\n    x = 1\nif is_torch_min_version('2.6'):\n    y\n",
    "vllm/__init__.py": "import vllm.config\n",
    "vllm/config.py": "",
    "vllm/engine/llm.py": "",
    "megatron/__init__.py": "",
    "recipe/dapo/main.py": "import verl.main\nimport numpy\n",
}


def test_a_step_executes_what_its_packages_import_and_what_these_import_of_others(tmp_path: Path) -> None:
    code = lay(tmp_path / "code", TREE)
    verls = [
        "verl",
        "verl.main",
        "verl.other",
        "verl.workers",
        "verl.workers.vllm_rollout",
        "vllm",
        "vllm.engine.llm",
    ]
    assert executed_modules(code, "verl.main") == verls
    assert executed_modules(code, "recipe.dapo.main") == ["recipe.dapo.main", *verls]


def found_in(tmp_path: Path, device: str = "npu", *, engine: bool = False) -> Differences:
    made = FakeRun(tmp_path).prepared([])
    python = tmp_path / "probed"
    packages = {"torch": "2.13.0+cpu", "numpy": "2.0.0", "transformers": "4.52.4"}
    answer = {"path": str(python), "version": "3.11.7", "packages": packages}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    python.chmod(0o755)
    lock = replace(
        made.lock,
        host={"python": ">=3.11,<3.12", "torch": "2.5.1", "torch_npu": "2.5.1.post1", "cann": "8.2"},
        requirements=("numpy==1.26.4", "transformers==4.52.4", "pylatexenc"),
    )
    recipe = made.recipe.model_copy(update={"device": device})
    interpreter = Interpreter(str(python), "3.11.7")
    prepared = replace(made, report=replace(made.report, lock=lock), interpreter=interpreter).with_recipe(
        recipe
    )
    return differences(prepared, engine=engine)


def test_versions_and_packages_are_told(tmp_path: Path) -> None:
    assert found_in(tmp_path) == Differences(
        "npu",
        (OtherVersion("torch", "2.13.0+cpu", "2.5.1"), OtherVersion("torch_npu", None, "2.5.1.post1")),
        (OtherVersion("numpy", "2.0.0", "==1.26.4"), OtherVersion("pylatexenc", None, "any version")),
    )
    assert found_in(tmp_path).lines() == [
        "torch 2.13.0+cpu (2.5.1)",
        "torch_npu not installed (2.5.1.post1)",
        "2 packages: numpy 2.0.0 (==1.26.4), pylatexenc not installed (any version)",
        "device: cpu for npu",
    ]


def test_variables_that_only_the_rehearsal_sets_for_the_engine_are_told(tmp_path: Path) -> None:
    found = found_in(tmp_path, engine=True)
    assert "VLLM_MLA_DISABLE=1" in found.variables
    assert any(line.startswith("variables: VLLM_PLUGINS=npu_rl_cpu, ") for line in found.lines())


def test_a_recipe_for_a_cpu_differs_in_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path, "cpu") == Differences("cpu")
