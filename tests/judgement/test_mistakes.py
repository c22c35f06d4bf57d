"""What people write by mistake, and what is unusual and right, against the trees of the bundled manifests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import check_recipe
from tests.patchsets import flagship_tree

FLAGSHIP = "deepseek-r1-zero-256die"
COMPONENTS = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed")
ENGINE = "rollout.engine_arguments"
GRAPHS = f"{ENGINE}.additional_config.torchair_graph_config"
RAW, T = "overrides.actor_rollout_ref", "actor.transformer"
ALONE = "alone"

# What the recipe's own words and ranges refuse before any code is read: argument -> words of the message.
OF_THE_SCHEMA = {
    "actor.megatron.tensor=1": "did you mean 'actor.parallel.tensor'?",
    "rollout.n=4": "did you mean 'rollout.responses'?",
    "checkpoint.save_freq=10": "did you mean 'checkpoint.every'?",
    "rollout.gpu_memory_utilisation=0.8": "did you mean 'rollout.memory_share'?",
    "trainer.nnodes=16": "did you mean 'cluster.nodes'?",
    "actor.kl_loss_type=k3": "did you mean 'actor.kl_loss.kind'?",
    "optimizer.lr=1e-6x": "must be a number",
    "optimizer.lr=0": "must be more than 0",
    "actor.kl_loss.coefficient=-1": "must be 0 or more",
    "actor.micro_batch=0": "must be 1 or more",
    "rollout.memory_share=80": "must be more than 0 and at most 1",
    "rollout.temperature=-1": "must be 0 or more",
    "rollout.top_p=0": "must be more than 0 and at most 1",
    "rollout.top_k=-2": "must be -1 or more",
    "data.overlong=truncate": "must be 'error', 'left', 'right' or 'middle'",
    "data.loader_workers=-1": "must be 0 or more",
    "adaptations.deepscaler_reward=true": "such as deepscaler-reward",
    "cluster.address=nonsense": "must be HOST:PORT",
    "cluster.address=h:70000": "a port from 1 to 65535",
    "cluster.dies_per_card=3": "no Ascend card has 3 dies",
    "cluster.dies=15": "15 dies are not whole cards of 2 dies",
    "steps=1.5": "must be a whole number",
}
# What the tree refuses, by rule: argument -> words of the message or the file that says so, and the right value or key.
OF_THE_TREE = {
    "invalid-value": {
        f"{RAW}.rollout.temperature=-1": ("must be 0 or more", ""),
        f"{RAW}.actor.entropy_coeff=-1": ("must be 0 or more", ""),
        "overrides.algorithm.gamma=1.5": ("must be from 0 to 1", ""),
        "overrides.algorithm.lam=-0.1": ("must be from 0 to 1", ""),
    },
    "unknown-key": {
        f"{T}.multi_head_latent_atention=true": (
            "TransformerConfig or MindSpeed has no",
            f"{T}.multi_head_latent_attention",
        ),
        "overrides.trainer.total_epoch=3": ("", "overrides.trainer.total_epochs"),
        "overrides.trainer.nodes=3": ("", "cluster.nodes"),
        f"{ENGINE}.enable_expert_paralel=true": ("", f"{ENGINE}.enable_expert_parallel"),
        f"{GRAPHS}.enabledd=true": ("vllm-ascend", f"{GRAPHS}.enabled"),
        f"{GRAPHS}.enable_frozen_parameter=true": ("vllm-ascend", ""),
        f"{RAW}.rollout.presence_penalty=1": ("", ""),
        f"{RAW}.rollout.min_p=0.1": ("", ""),
        f"{RAW}.profiler.discrete=true": ("", ""),
    },
    "unknown-adaptation": {
        "adaptations.rollout-offlaod=true": ("", "adaptations.rollout-offload"),
    },
    "reserved-key": {
        "overrides.trainer.resume_mode=auto": ("--resume", ""),
    },
}
REFUSED = [(rule, argument, *row) for rule, rows in OF_THE_TREE.items() for argument, row in rows.items()]
RIGHT = [
    f"{RAW}.nccl_timeout=3600",
    f"{RAW}.actor.optim.lr_warmup_steps_ratio=0.1",
    f"{RAW}.actor.optim.override_optimizer_config.optimizer_cpu_offload=true",
    f"{RAW}.actor.megatron.override_ddp_config.overlap_grad_reduce=true",
    f"{RAW}.actor.checkpoint.save_contents=[model]",
    f"{RAW}.actor.clip_ratio_high=0.28",
    f"{RAW}.actor.loss_agg_mode=seq-mean-token-sum-norm",
    f"{RAW}.rollout.mode=async",
    "overrides.ray_init.num_cpus=8",
    "overrides.algorithm.filter_groups.enable=true",
    "overrides.algorithm.kl_ctrl.type=adaptive",
    "overrides.data.custom_cls.path=/x.py",
    "actor.transformer.moe_aux_loss_coeff=0.001",
    "actor.transformer.moe_router_bias_update_rate=0.001",
    "actor.transformer.use_fused_moe_token_permute_and_unpermute=true",
    "actor.transformer.reuse_fp32_param=true",
    "actor.transformer.moe_alltoall_overlap_comm=true",
    "actor.transformer.moe_token_dispatcher_type=alltoall_seq",
    "actor.kl_loss.kind=k3",
    "algorithm.estimator=rloo",
    "optimizer.schedule=WSD",
    "optimizer.schedule=inverse-square-root",
    "reward.manager=dapo",
    "logging.backends=[console,swanlab]",
    "logging.backends=console",
    f"{ENGINE}.enable_prefix_caching=true",
    f"{ENGINE}.num_gpu_blocks_override=1000",
    f"{ENGINE}.kv_cache_dtype=fp8",
    f"{ENGINE}.additional_config.expert_map_path=/x.json",
    f"{GRAPHS}.use_cached_graph=true",
    "data.train=/shared/x.parquet",
    "steps=1e2",
    "rollout.temperature=0",
    "rollout.top_k=50",
    "rollout.dtype=float16",
    "rollout.load_format=dummy_megatron",
    "overrides.algorithm.gamma=0.99",
    "actor.transformer.attention_backend=fused",
]


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flagship_tree.tree(upstreams, tmp_path_factory.mktemp("flagship") / "code", COMPONENTS)


@pytest.fixture(scope="module")
def found(code: Path) -> dict[str, list[Finding]]:
    """What is found because of each argument."""
    return in_rounds(code, [*(argument for _, argument, *_ in REFUSED), *RIGHT])


@pytest.fixture(scope="module")
def found_of_fixes(code: Path, found: dict[str, list[Finding]]) -> dict[str, list[Finding]]:
    fixes = [fixed(argument, one) for _, argument, *_ in REFUSED for one in found[argument] if one.fix]
    return in_rounds(code, fixes)


def in_rounds(code: Path, arguments: Iterable[str]) -> dict[str, list[Finding]]:
    """As few recipes as possible, each with arguments of different keys; what changes the rollout has one alone."""
    rounds: list[dict[str, str]] = []
    for argument in arguments:
        key = argument.partition("=")[0]
        alone = key in ("rollout.engine", f"{RAW}.rollout.mode")
        free = (one for one in rounds if key not in one and not alone and ALONE not in one)
        place = next(free, None)
        if place is None:
            place = {ALONE: ""} if alone else {}
            rounds.append(place)
        place[key] = argument
    found: dict[str, list[Finding]] = {}
    for given in rounds:
        given.pop(ALONE, None)
        errors = of_keys(code, *given.values())
        for key, argument in given.items():
            found[argument] = [one for one in errors if ".".join(map(str, one.path)) == key]
    return found


def judged(code: Path, *arguments: str, recipe: str = FLAGSHIP) -> Judgement:
    return judge(load_recipe(recipe, arguments), AssembledTree(code, "deepseek-r1-zero"))


def of_keys(code: Path, *arguments: str) -> list[Finding]:
    """The errors of keys and values."""
    return check_recipe(load_recipe(FLAGSHIP, arguments), code).errors


def fixed(argument: str, found: Finding) -> str:
    """The argument that a finding's fix asks for, with a value that the key takes."""
    what = found.fix.removeprefix("set ").removeprefix("write ")
    if " to " in what:
        return "=".join(what.split(" to "))
    key = what.partition(" in place of ")[0]
    value = {"rollout.free_cache": "true", "cluster.nodes": "16"}.get(key, argument.partition("=")[2])
    return f"{key}={value}"


@pytest.mark.parametrize(("argument", "words"), OF_THE_SCHEMA.items(), ids=OF_THE_SCHEMA)
def test_schema_refuses_unknown_keys_and_values_out_of_range(argument: str, words: str) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(FLAGSHIP, [argument])
    (problem,) = caught.value.problems
    key = "cluster.dies_per_card" if "cards" in words else argument.partition("=")[0]
    assert dotted(problem.path) == key and words in problem.message
    if "did you mean" in words:
        load_recipe(FLAGSHIP, [f"{words.split(chr(39))[1]}={argument.partition('=')[2]}"])


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("data.train=/shared/x.parquet", ["/shared/x.parquet"]),
        ("data.test=~/x.parquet", ["~/x.parquet"]),
        ("logging.backends=console", ["console"]),
        ("steps=1e2", 100),
        ("steps=2E+1", 20),
        ("steps=1_000", 1000),
    ],
)
def test_one_of_a_list_and_round_numbers(argument: str, meant: object) -> None:
    value: object = load_recipe(FLAGSHIP, [argument]).recipe
    for name in argument.partition("=")[0].split("."):
        value = getattr(value, name)
    assert value == meant


def test_an_unknown_key_of_a_file_has_a_hint_too(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"schema: 1\nname: r\ntitle: t\nextends: {FLAGSHIP}\nrollout: {{n: 4}}\n")
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(str(path))
    (problem,) = caught.value.problems
    assert problem.message == "unknown key; did you mean 'rollout.responses'?"


@pytest.mark.upstreams
@pytest.mark.parametrize(("rule", "argument", "words", "right"), REFUSED, ids=[row[1] for row in REFUSED])
def test_tree_refuses_mistakes_with_fixes_that_work(
    found: dict[str, list[Finding]],
    found_of_fixes: dict[str, list[Finding]],
    rule: str,
    argument: str,
    words: str,
    right: str,
) -> None:
    (error,) = found[argument]
    assert error.rule == rule and words in error.message
    key = argument.partition("=")[0]
    fix = f"set {key} to {right}" if rule == "invalid-value" else f"write {right} in place of {key}"
    assert error.fix == (fix if right else "")
    assert not right or found_of_fixes[fixed(argument, error)] == [], "the fix works"


@pytest.mark.upstreams
@pytest.mark.parametrize("argument", RIGHT)
def test_what_is_unusual_and_right(found: dict[str, list[Finding]], argument: str) -> None:
    assert found[argument] == []


@pytest.mark.upstreams
@pytest.mark.parametrize("name", [FLAGSHIP, f"{FLAGSHIP}-random-init"])
def test_the_bundled_recipes_have_no_notes(code: Path, name: str) -> None:
    found = judged(code, recipe=name)
    assert [one for one in found.key_findings if one.severity is not Severity.ADVICE] == []
    assert found.unchecked == {}
