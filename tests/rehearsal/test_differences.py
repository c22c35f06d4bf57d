"""What the report begins with: versions, the device, and branches that a CPU decides otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from npu_rl.common.interpreter import Interpreter
from npu_rl.rehearsal.executed_modules import executed_modules
from npu_rl.rehearsal.run_differences.device_branches import BranchFacts, device_branches
from npu_rl.rehearsal.run_differences.differences import Differences, OtherVersion, differences
from tests.code_trees import lay
from tests.training.fake_run import FakeRun

BRANCHES = """\
from device import get_device_name, is_cuda_available, is_npu_available
if is_npu_available:
    import torch_npu
    torch_npu.setup()
elif is_cuda_available:
    pass
if not is_npu_available and debug:
    warn()
name = "hccl" if get_device_name() == "npu" else "gloo"
if self.device_name in ("npu", "cuda") and use_gpu:
    options = 1
if get_device_name() != "cpu":
    load()
else:
    skip()
if torch.cuda.is_available():
    pass
if other or is_torch_npu_available(check_device=False):
    patch()
if current_platform.is_cpu():
    threads()
if device_name == wanted:
    pass
"""


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (
            "npu",
            [
                "a.py:2: is_npu_available: lines 3 to 4 not rehearsed",
                "a.py:7: not is_npu_available and debug: runs here only",
                "a.py:9: get_device_name() == 'npu': line 9 not rehearsed",
                "a.py:10: self.device_name in ('npu', 'cuda') and use_gpu: line 11 not rehearsed",
                "a.py:12: get_device_name() != 'cpu': line 13 not rehearsed",
                "a.py:18: other or is_torch_npu_available(check_device=False): line 19 not rehearsed",
                "a.py:20: current_platform.is_cpu(): runs here only",
            ],
        ),
        (
            "cuda",
            [
                "a.py:5: is_cuda_available: line 6 not rehearsed",
                "a.py:10: self.device_name in ('npu', 'cuda') and use_gpu: line 11 not rehearsed",
                "a.py:12: get_device_name() != 'cpu': line 13 not rehearsed",
                "a.py:20: current_platform.is_cpu(): runs here only",
            ],
        ),
    ],
)
def test_branches_that_a_cpu_decides_otherwise(device: str, expected: list[str], tmp_path: Path) -> None:
    """Conditions that depend on something else, or whose answer MindSpeed changes, are left out."""
    code = lay(tmp_path / "code", {"a.py": BRANCHES, "b.py": "if x:\n    pass\n", "broken.py": "if ("})
    found = device_branches(
        code, ["b.py", "a.py", "broken.py", "a.py"], BranchFacts("cpu"), BranchFacts(device)
    )
    assert sorted(branch.text() for branch in found) == sorted(expected)


VERSIONS = """\
if version.parse(torch.__version__) >= version.parse("2.6"):
    from torch import new
elif version.parse(torch.__version__) >= version.parse("2.4"):
    from torch import old
else:
    new = None
if torch.__version__ < "2.3.0":
    warn()
if get_torch_version() <= PkgVersion("2.5.1"):
    save()
if is_torch_min_version("2.7.0a0") and fast:
    jit()
if not is_torch_equal_or_newer("2.8"):
    patch()
if torch.__version__.startswith("2.5"):
    cache()
if sys.version_info[:2] >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout
if sys.version_info < (3, 9):
    raise SystemExit
if version.parse(tensordict.__version__) >= version.parse("0.5.0") or sys.version_info >= wanted:
    pass
if type(current_platform).__module__.partition(".")[0] == "vllm_ascend":
    adapt_patch()
"""


MORE_KINDS = """\
while tensor.is_cpu:
    move()
names = [name for name in every if is_npu_available]
fused = use_fused and is_cuda_available and load()
native = current_platform.is_cpu() or compiled()
if weights[0].device.type == "cpu":
    pin()
if self.model_config.use_mla:
    latent()
device = "npu" if current_platform.is_out_of_tree() else "cpu"
try:
    import torch_npu
    from torch_npu import npu
except ImportError:
    npu = None
assert not tensor.is_cpu
if target_device.type == "cpu":
    load()
if value.device == torch.device("cpu"):
    store()
"""


def test_loops_filters_operands_and_imports_are_branches_too(tmp_path: Path) -> None:
    code = lay(tmp_path, {"a.py": MORE_KINDS})
    here = BranchFacts("cpu", missing=frozenset({"torch_npu"}))
    found = device_branches(code, ["a.py"], here, BranchFacts("npu"))
    assert sorted(branch.text() for branch in found) == [
        "a.py:10: current_platform.is_out_of_tree(): line 10 not rehearsed",
        "a.py:11: try: import torch_npu: lines 12 to 13 not rehearsed",
        "a.py:17: target_device.type == 'cpu': runs here only",
        "a.py:19: value.device == torch.device('cpu'): runs here only",
        "a.py:1: tensor.is_cpu: runs here only",
        "a.py:3: is_npu_available: line 3 not rehearsed",
        "a.py:5: current_platform.is_cpu() or compiled(): line 5 not rehearsed",
        "a.py:6: weights[0].device.type == 'cpu': runs here only",
        "a.py:8: self.model_config.use_mla: line 9 not rehearsed",
    ]
    assert not device_branches(code, ["a.py"], here, here)
    on_cuda = device_branches(code, ["a.py"], BranchFacts("cpu"), BranchFacts("cuda"))
    assert "a.py:4: use_fused and is_cuda_available and load(): line 4 not rehearsed" in [
        branch.text() for branch in on_cuda
    ]


def test_branches_that_another_version_decides_otherwise(tmp_path: Path) -> None:
    """torch's __version__ compares with a text as a version does, and not as texts: 2.13 is not below 2.3."""
    code = lay(tmp_path / "code", {"a.py": VERSIONS})
    here = BranchFacts("cpu", {"torch": Version("2.13.0+cpu"), "python": Version("3.11.7")})
    run = BranchFacts("npu", {"torch": Version("2.5.1"), "python": Version("3.10")})
    found = [branch.text() for branch in device_branches(code, ["a.py"], here, run)]
    assert sorted(found) == sorted(
        [
            "a.py:1: version.parse(torch.__version__) >= version.parse('2.6'): lines 3 to 6 not rehearsed",
            "a.py:9: get_torch_version() <= PkgVersion('2.5.1'): line 10 not rehearsed",
            "a.py:11: is_torch_min_version('2.7.0a0') and fast: runs here only",
            "a.py:13: not is_torch_equal_or_newer('2.8'): line 14 not rehearsed",
            "a.py:15: torch.__version__.startswith('2.5'): line 16 not rehearsed",
            "a.py:17: sys.version_info[:2] >= (3, 11): line 20 not rehearsed",
            "a.py:25: type(current_platform).__module__.partition('.')[0] == 'vllm_ascend': line 26 not rehearsed",
        ]
    )


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


def found_in(tmp_path: Path, usage: list[Path], device: str = "npu", *, engine: bool = False) -> Differences:
    lay(tmp_path / "code", TREE)
    made = FakeRun(tmp_path).prepared([])
    python = tmp_path / "probed"
    packages = {"torch": "2.13.0+cpu", "numpy": "2.0.0", "transformers": "4.52.4"}
    answer = {
        "path": str(python),
        "version": "3.11.7",
        "packages": packages,
    }
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    python.chmod(0o755)
    lock = replace(
        made.lock,
        host={"python": ">=3.11,<3.12", "torch": "2.5.1", "torch_npu": "2.5.1.post1", "cann": "8.2"},
        requirements=("numpy==1.26.4", "transformers==4.52.4", "pylatexenc"),
    )
    trainer = made.recipe.trainer.model_copy(update={"module": "verl.main"})
    recipe = made.recipe.model_copy(update={"device": device, "trainer": trainer})
    report = replace(made.report, lock=lock)
    interpreter = Interpreter(str(python), "3.11.7")
    prepared = replace(made, report=report, interpreter=interpreter).with_recipe(recipe)
    return differences(prepared, ["verl/never.py", "gone.py", "README.md"], usage, engine=engine)


def test_versions_packages_and_branches_are_told(tmp_path: Path) -> None:
    found = found_in(tmp_path, [])
    assert found.versions == (
        OtherVersion("torch", "2.13.0+cpu", "2.5.1"),
        OtherVersion("torch_npu", None, "2.5.1.post1"),
    )
    assert found.packages == (
        OtherVersion("numpy", "2.0.0", "==1.26.4"),
        OtherVersion("pylatexenc", None, "any version"),
    )
    assert found.lines() == [
        "torch 2.13.0+cpu (2.5.1)",
        "torch_npu not installed (2.5.1.post1)",
        "2 packages: numpy 2.0.0 (==1.26.4), pylatexenc not installed (any version)",
        "device: cpu for npu",
        "2 branches on the device or a version in patched files and those that a step imports:",
        "  verl/never.py:4: is_torch_min_version('2.6'): runs here only",
        "  verl/other.py:1: is_npu_available: line 2 not rehearsed",
    ]


def test_the_files_are_those_that_a_training_imported_where_it_did(tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.mkdir()
    places = [str(tmp_path / "code" / "verl" / "main.py"), "/usr/lib/python3/os.py"]
    (usage / "executed-node-7.json").write_text(json.dumps(places))
    (usage / "executed-node-8.json").write_text('["cut')
    found = found_in(tmp_path, [usage])
    assert found.executed and [branch.file for branch in found.branches] == ["verl/never.py"]


def test_variables_that_only_the_rehearsal_sets_for_the_engine_are_told(tmp_path: Path) -> None:
    found = found_in(tmp_path, [], engine=True)
    assert "VLLM_MLA_DISABLE=1" in found.variables and found.to_json()["variables"] == list(found.variables)
    assert any(line.startswith("variables: VLLM_PLUGINS=npu_rl_cpu, ") for line in found.lines())


def test_a_recipe_for_a_cpu_differs_in_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path, [], "cpu") == Differences("cpu")
