"""Environment variables of a recipe and its manifest, against a small tree, the tables and the real trees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, bundled_recipes
from npu_rl.common.environment_variables import reserved
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.environment.environment_check import (
    EnvironmentFault,
    environment_faults,
    known_variables,
)
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.runtime.deepscaler.score import VARIANTS
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.code_trees import lay

LISTS = {
    "vllm/envs.py": """
import os
environment_variables = {
    "VLLM_USE_V1": lambda: bool(int(os.getenv("VLLM_USE_V1", "1"))),
    "VLLM_DP_SIZE": lambda: int(os.getenv("VLLM_DP_SIZE", "1")),
    "VLLM_ATTENTION_BACKEND": lambda: os.getenv("VLLM_ATTENTION_BACKEND", None),
}
""",
    "verl/worker.py": """
import logging
import os
logging.getLogger(__name__).setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))
TRACK = os.getenv("VERL_ENABLE_TRACKER", "0") == "1"
""",
}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay(tmp_path_factory.mktemp("tree") / "code", LISTS)


def faults(code: Path | None, *said: str) -> list[EnvironmentFault]:
    return environment_faults(dict(one.split("=", 1) for one in said), code, ["kv-cache-reuse"])


def of_environment(judgement: Judgement) -> list[Finding]:
    return [one for one in judgement.findings if one.rule.startswith("environment")]


@pytest.mark.parametrize(
    ("said", "certain", "part", "fix"),
    [
        ("HCCL_BUFFSIZE=300MB", True, "(HCCL user guide", "set env.HCCL_BUFFSIZE to 300"),
        ("HCCL_BUFFSIZE=0", False, "within 1 to any MB", "set env.HCCL_BUFFSIZE to 1"),
        ("HCCL_CONNECT_TIMEOUT=60", False, "120 to 7200 seconds", "set env.HCCL_CONNECT_TIMEOUT to 120"),
        ("HCCL_EXEC_TIMEOUT=10m", True, "not a number of seconds", "set env.HCCL_EXEC_TIMEOUT to a number of seconds"),
        ("HCCL_EXEC_TIMEOUT=600s", True, "'600s'", "set env.HCCL_EXEC_TIMEOUT to 600"),
        ("HCCL_IF_BASE_PORT=99999", False, "1024 to 65520", "set env.HCCL_IF_BASE_PORT to 65520"),
        ("HCCL_OP_EXPANSION_MODE=aiv", False, "is not one of AIV", "set env.HCCL_OP_EXPANSION_MODE to AIV"),
        ("TASK_QUEUE_ENABLE=3", False, "(torch_npu", "set env.TASK_QUEUE_ENABLE to 2"),
        ("TASK_QUEUE_ENABLE=on", True, "whole number", "set env.TASK_QUEUE_ENABLE to a whole number"),
        ("PYTORCH_NPU_ALLOC_CONF=expandable_segments:true", False, "'true' for expandable_segments",
         "set env.PYTORCH_NPU_ALLOC_CONF to expandable_segments:True"),
        ("PYTORCH_NPU_ALLOC_CONF=expandable_segment:True", False, "unknown key 'expandable_segment'",
         "set env.PYTORCH_NPU_ALLOC_CONF to expandable_segments:True"),
        ("PYTORCH_NPU_ALLOC_CONF=True", False, "KEY:VALUE", "set env.PYTORCH_NPU_ALLOC_CONF to KEY:VALUE,KEY:VALUE"),
        ("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64", False,
         "max_split_size_mb, which conflicts with expandable_segments:True", "remove env.PYTORCH_NPU_ALLOC_CONF"),
        ("HYDRA_FULL_ERROR=true", False, "is not one of 0, 1", "set env.HYDRA_FULL_ERROR to one of 0, 1"),
        ("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=0", False, "read as on",
         "remove env.RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"),
        ("VLLM_USE_V1=true", True, "'true'", "set env.VLLM_USE_V1 to a whole number"),
        ("VLLM_USE_V1=", True, "''", "remove env.VLLM_USE_V1"),
        ("VLLM_DP_SIZE=x", True, "(vllm/envs.py)", "set env.VLLM_DP_SIZE to a whole number"),
        ("VERL_LOGGING_LEVEL=debug", True, "not one of DEBUG", "set env.VERL_LOGGING_LEVEL to DEBUG"),
        ("NPU_RL_KV_CACHE_REUSE=never", True, "nor 0", "set adaptations.kv-cache-reuse to true or false instead"),
        ("NPU_RL_DEEPSCALER_WORKERS=-", True, "whole", "set env.NPU_RL_DEEPSCALER_WORKERS to a whole number"),
        ("NPU_RL_DEEPSCALER_VARIANT=x", True, "accuracy, format",
         "set env.NPU_RL_DEEPSCALER_VARIANT to one of accuracy, format"),
    ],
)  # fmt: skip
def test_an_invalid_value(code: Path, said: str, certain: bool, part: str, fix: str) -> None:
    (found,) = faults(code, said)
    assert (found.rule, found.certain, found.advice, found.fix) == ("environment-value", certain, False, fix)
    assert found.message.startswith(said.partition("=")[0]) and part in found.message, found.message
    told = re.fullmatch(r"set env\.(\w+) to (\S+:\S+|[\w.-]+)", fix)
    if told and "KEY" not in fix:
        assert faults(code, f"{told[1]}={told[2]}") == [], "the fix works"


@pytest.mark.parametrize(
    "said",
    [
        "HCCL_BUFFSIZE=300", "HCCL_EXEC_TIMEOUT=0.05", "HCCL_OP_EXPANSION_MODE=AIV", "TASK_QUEUE_ENABLE=2",
        "HCCL_DETERMINISTIC=TRUE", "HCCL_IF_BASE_PORT=64247", "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,base_addr_aligned_kb:16",
        "PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:32,garbage_collection_threshold:0.6",
        "PYTORCH_NPU_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2,>:8]",
        "PYTORCH_NPU_ALLOC_CONF=an_option_of_tomorrow:7",
        "RAY_DEDUP_LOGS=0", "RAY_a_setting_nobody_listed=1", "HYDRA_FULL_ERROR=1",
        "VLLM_USE_V1=1", "VLLM_ATTENTION_BACKEND=ANYTHING", "VERL_LOGGING_LEVEL=INFO", "VERL_ENABLE_TRACKER=yes",
        "NPU_RL_KV_CACHE_REUSE=off", "LD_PRELOAD=/usr/lib/libjemalloc.so.2", "MYFLAG=1", "A=b",
        "NCCL_BUFFSIZE=1", "NCCL_ALGO=Ring", "TORCH_NCCL_BLOCKING_WAIT=1", "NCCL_SOCKET_IFNAME=eth0",
        "MUSA_VISIBLE_DEVICES=0", "HCCL_SOMETHING_NEWER=1", "ASCEND_SOMETHING_NEWER=x",
        "SOME_PROGRAMS_OWN_SETTING=maybe",
    ],
)  # fmt: skip
def test_a_value_that_is_valid_or_unknown_is_let_through(code: Path, said: str) -> None:
    assert faults(code, said) == []


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("HCCL_EXEC_TIMOUT=600", "HCCL_EXEC_TIMEOUT"),
        ("HCCL_BUFSIZE=300", "HCCL_BUFFSIZE"),
        ("HCLL_BUFFSIZE=300", "HCCL_BUFFSIZE"),
        ("hccl_buffsize=300", "HCCL_BUFFSIZE"),
        ("HCCL_TIMEOUT_CONNECT=300", "HCCL_CONNECT_TIMEOUT"),
        ("TASK_QUEUE_ENABLED=2", "TASK_QUEUE_ENABLE"),
        ("CUDA_DEVICE_MAX_CONNECTION=1", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("RAY_DEDUP_LOG=0", "RAY_DEDUP_LOGS"),
        ("VERL_LOGING_LEVEL=INFO", "VERL_LOGGING_LEVEL"),
        ("VLLM_ATENTION_BACKEND=X", "VLLM_ATTENTION_BACKEND"),
        ("VLLM_USE_V=1", "VLLM_USE_V1"),
        ("NPU_RL_KV_CACH_REUSE=0", "NPU_RL_KV_CACHE_REUSE"),
    ],
)
def test_a_misspelt_name(code: Path, said: str, right: str) -> None:
    name = said.partition("=")[0]
    (found,) = faults(code, said)
    assert (found.rule, found.advice, found.certain) == ("environment-name", True, False)
    assert found.fix == f"write env.{right} for env.{name}"
    assert faults(code, said.replace(name, right)) == [], "the fix works"


@pytest.mark.parametrize("name", ["VLLM_ENABLE_MC2", "VERL_NOBODY", "VERL_AUTO_PADDING", "NPU_RL_NOBODY"])
def test_a_name_of_the_tree_that_nothing_reads_is_advice(code: Path, name: str) -> None:
    (found,) = faults(code, f"{name}=1")
    assert (found.rule, found.advice, found.fix) == ("environment-name", True, f"remove env.{name}")


def test_without_a_tree_only_what_no_tree_reads_is_judged() -> None:
    found = faults(None, "HCCL_BUFFSIZE=x", "HCCL_BUFSIZE=1", "VLLM_NOBODY=1", "NCCL_BUFFSIZE=1")
    assert [fault.name for fault in found] == ["HCCL_BUFFSIZE", "HCCL_BUFSIZE"]


@pytest.mark.parametrize("name", sorted(reserved()))
def test_what_is_npu_rls_to_set(code: Path, name: str) -> None:
    (found,) = faults(code, f"{name}=1")
    assert (found.rule, found.certain) == ("environment-owned", True)
    assert "{" not in found.fix and (name in found.fix or found.fix == "set seed instead")


def test_the_table_holds_what_the_reward_reads() -> None:
    assert known_variables().values["NPU_RL_DEEPSCALER_VARIANT"]["words"] == list(VARIANTS)


def test_a_fault_of_the_manifest_mentions(tmp_path: Path, code: Path) -> None:
    """A recipe that extends nothing of it, and a manifest beside it whose environment is wrong."""
    manifest = bundled_manifests()["quickstart"].read_text()
    text = manifest.replace('  VLLM_USE_V1: "1"', "  HCCL_BUFFSIZE: 300MB")
    recipe = "schema: 1\nextends: quickstart\nname: r\nmanifest: ./m.yaml\n"
    path = str(lay(tmp_path, {"m.yaml": text, "r.yaml": recipe}) / "r.yaml")
    (found,) = of_environment(judge(load_recipe(path)))
    assert (found.rule, found.key) == ("environment-value", "env.HCCL_BUFFSIZE")
    assert found.severity is Severity.ERROR and "the manifest ./m.yaml sets it" in found.message
    # the recipe's own value goes over the manifest's
    assert of_environment(judge(load_recipe(path, ["env.HCCL_BUFFSIZE=300"]))) == []


def test_a_name_may_be_overruled_by_id_where_it_is_found_and_where_not() -> None:
    reason = "plan.except.environment-name=our own HCCL build reads it"
    for said in (["env.HCCL_BUFSIZE=300"], []):
        judgement = judge(load_recipe("deepseek-r1-zero-256die", [reason, *said]))
        assert not judgement.errors
    certain = "plan.except.environment-value=I say so"
    errors = judge(load_recipe("deepseek-r1-zero-256die", [certain, "env.HCCL_BUFFSIZE=300MB"])).errors
    assert {one.rule for one in errors} == {"environment-value", "exception-to-a-certain-rule"}


def test_the_bundled_environments_have_no_finding() -> None:
    for name in bundled_manifests():
        assert environment_faults(load_manifest(name).manifest.env, None) == [], name
    for name in bundled_recipes():
        assert of_environment(judge(load_recipe(name))) == [], name


def test_a_tree_of_another_manifest_is_not_read(code: Path) -> None:
    tree = AssembledTree(code, "another")
    assert of_environment(judge(load_recipe("quickstart", ["env.VLLM_NOBODY=1"]), tree)) == []
