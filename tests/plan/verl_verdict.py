"""Run verl's own configuration and validation code on argument lists, and the checks that a run meets later.

A script for an interpreter with hydra, and a code tree on PYTHONPATH: it reads [[arguments, sizes, changes], ...] as
JSON and prints for each the reasons for which a run with these arguments, and with each change, is refused, or "".
What happens on devices alone is called by verl's own registries and functions, or repeated here with its place.
Places are of verl@7aed6b230776 (0.9's 88512193628b has the same code some lines further on, but for what is said
here), Megatron-LM core_v0.16.1 and vLLM 0.18.0.

The model's files are not read: `sizes` has its layers, heads, groups and experts, where they are known. A key that is
switched off (the kind of a KL loss that is not used) is judged as if it were on.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import torch
import verl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config.model import HFModelConfig

ROOT = Path(verl.__file__).parent
HFModelConfig.__post_init__ = lambda self: None  # it reads the model's files
# What a run makes classes of before its first step (workers/engine_workers.py:501-592).
SECTIONS = ("model", "actor", "ref", "rollout")


def verdicts(argv: list[str], sizes: dict[str, int], changes: list[str]) -> Iterator[str]:
    """Yield the verdict on a script's arguments, and with each change behind them."""
    name = next((one.partition("=")[2] for one in argv if one.startswith("--config-name=")), "ppo_trainer")
    overrides = [one for one in argv if not one.startswith("--")]
    with hydra.initialize_config_dir(str(ROOT / "trainer/config"), version_base=None):
        config = hydra.compose(name.strip("'\"").removesuffix(".yaml"), overrides)
    yield _verdict(config, sizes, None)
    for change in changes:
        yield _verdict(config, sizes, change)


def _verdict(composed: Any, sizes: dict[str, int], change: str | None) -> str:
    config = deepcopy(composed)
    try:
        if change is not None:  # by Hydra's own hand, which composes each time for 1.3 s
            ConfigLoaderImpl._apply_overrides_to_config(
                [OverridesParser.create().parse_override(change)], config
            )
        OmegaConf.resolve(config)
        validate_config(config, need_reference_policy(config), need_critic(config))
        _algorithms(config)
        _rollout(config, sizes)
        _batches(config, _replicas(config, sizes))
        _refuse_unknown_keys_of_megatron(config)
        _align_reference(config)
        for section in SECTIONS:
            omega_conf_to_dataclass(config.actor_rollout_ref[section])
        omega_conf_to_dataclass(config.algorithm)
    except Exception as error:  # noqa: BLE001 - whatever it raises ends the run
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def _align_reference(config: Any) -> None:
    """As workers/engine_workers.py:507 does before it makes a class of it."""
    part = config.actor_rollout_ref.ref
    with open_dict(part):
        part.ppo_mini_batch_size = config.actor_rollout_ref.actor.ppo_mini_batch_size
        for name in ("micro_batch_size", "micro_batch_size_per_gpu", "max_token_len_per_gpu"):
            part[f"ppo_{name}"] = part.pop(f"log_prob_{name}", None)
        part.use_dynamic_bsz = part.pop("log_prob_use_dynamic_bsz", False)


def _algorithms(config: Any) -> None:
    actor = config.actor_rollout_ref.actor
    core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator)  # trainer/ppo/ray_trainer.py:248
    core_algos.get_policy_loss_fn(actor.policy_loss.loss_mode)  # workers/utils/losses.py:103
    for kind in (actor.kl_loss_type, config.algorithm.kl_penalty):  # losses.py:135, ray_trainer.py:98
        core_algos.kl_penalty(torch.zeros(1, 2), torch.zeros(1, 2), kind)


def _rollout(config: Any, sizes: dict[str, int]) -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    rollout, tensor = (
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.rollout.tensor_model_parallel_size,
    )
    engine = tensor * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    assert engine > 0 and _world(config) % engine == 0, "workers/engine_workers.py:600"
    RolloutReplicaRegistry._registry[rollout.name]  # workers/rollout/replica.py:315
    assert (rollout.name, rollout.mode) in _ROLLOUT_REGISTRY, "workers/rollout/base.py:100"
    # checkpoint_engine/base.py:93. Modules register where their packages can be imported, hence by text; on NPUs
    # hccl_checkpoint_engine.py registers the name nccl.
    assert rollout.checkpoint_engine.backend in set(_checkpoint_engines()), "checkpoint_engine/base.py:93"
    assert sizes.get("heads", 0) % tensor == 0, "vllm/config/model.py:1074"
    assert 0 < rollout.gpu_memory_utilization <= 1, "vllm/config/cache.py:41"


@cache
def _checkpoint_engines() -> tuple[str, ...]:
    texts = [file.read_text() for file in (ROOT / "checkpoint_engine").glob("*.py")]
    return tuple(name for text in texts for name in re.findall(r"Registry\.register\(\"(\w+)\"\)", text))


def _world(config: Any) -> int:
    return int(config.trainer.n_gpus_per_node * config.trainer.nnodes)


def _batches(config: Any, replicas: int) -> None:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    dynamic = actor.use_dynamic_bsz
    assert dynamic == rollout.log_prob_use_dynamic_bsz, "workers/engine_workers.py:557"
    mini, responses = actor.ppo_mini_batch_size * rollout.n, config.data.train_batch_size * rollout.n
    assert mini > 0 and mini % replicas == 0, "workers/engine_workers.py:258"
    if config.trainer.get(
        "use_v1"
    ):  # 0.9's: trainer/ppo/v1/trainer_base.py:1435@88512193628b fills a batch up
        responses = math.ceil(responses / math.lcm(mini, replicas)) * math.lcm(mini, replicas)
    else:
        assert responses % rollout.agent.num_workers == 0, "protocol.py:874"
        assert responses % replicas == 0, "utils/seqlen_balancing.py:147"
        assert responses % mini == 0, "utils/tensordict_utils.py:588, on each replica"
    for part, name, together in _passes(config, mini, responses):
        if part.get("use_dynamic_bsz", part.get("log_prob_use_dynamic_bsz")):
            limit, length = part[f"{name}_max_token_len_per_gpu"], _longest(config)
            assert limit is not None and limit * _sequence(actor) >= length, "utils/seqlen_balancing.py:384"
        else:
            micro = part[f"{name}_micro_batch_size_per_gpu"]
            assert micro is not None and (together // replicas) % micro == 0, "workers/engine/utils.py:91"


def _passes(config: Any, mini: int, responses: int) -> Iterator[tuple[Any, str, int]]:
    parts = config.actor_rollout_ref
    yield parts.actor, "ppo", mini
    yield parts.rollout, "log_prob", responses
    if need_reference_policy(config):
        yield parts.ref, "log_prob", responses


def _longest(config: Any) -> int:
    return int(config.data.max_prompt_length + config.data.max_response_length)


def _sequence(actor: Any) -> int:
    if actor.strategy == "megatron":
        return int(actor.megatron.context_parallel_size)
    own = actor.ulysses_sequence_parallel_size  # workers/config/actor.py:320
    return int(own if own > 1 else actor.fsdp_config.ulysses_sequence_parallel_size)


def _replicas(config: Any, model: dict[str, int]) -> int:
    """get_data_parallel_size of workers/engine/*/transformer_impl.py, with what the engines assert of sizes."""
    actor, world = config.actor_rollout_ref.actor, _world(config)
    if actor.strategy == "megatron":
        return _megatron(actor.megatron, world, model)
    sequence, heads = _sequence(actor), model.get("heads", 0)
    groups = model.get("groups", sequence)
    assert world % sequence == 0, "workers/engine/fsdp/transformer_impl.py: the mesh of data x sequence ranks"
    assert heads % sequence == 0, "models/transformers/monkey_patch.py:338"
    assert groups % sequence == 0 or sequence % groups == 0, "models/transformers/monkey_patch.py:341"
    return world // sequence


def _megatron(sizes: Any, world: int, model: dict[str, int]) -> int:
    tensor, stages = sizes.tensor_model_parallel_size, sizes.pipeline_model_parallel_size
    dense, groups = tensor * stages * sizes.context_parallel_size, model.get("groups", tensor)
    assert sizes.use_mbridge, "workers/engine/megatron/transformer_impl.py:90"
    assert world % dense == 0, "megatron/core/parallel_state.py:741"
    experts = (sizes.expert_tensor_parallel_size or tensor) * sizes.expert_model_parallel_size
    assert world % (experts * stages) == 0, "megatron/core/parallel_state.py:794"
    assert model.get("experts", 0) % sizes.expert_model_parallel_size == 0, (
        "megatron/core/transformer/moe/moe_layer.py:101"
    )
    assert model.get("heads", 0) % tensor == 0, "megatron/core/transformer/transformer_config.py:924"
    assert groups % tensor == 0 or tensor % groups == 0, "megatron/core/transformer/transformer_config.py:940"
    sequence = sizes.override_transformer_config.get("sequence_parallel")
    assert tensor > 1 or not sequence, "megatron/core/model_parallel_config.py:411"
    ends = [
        sizes.override_transformer_config.get(f"num_layers_in_{end}_pipeline_stage")
        for end in ("first", "last")
    ]
    outer = [one for one in ends if one is not None]
    if "layers" in model and stages > len(outer):
        left = model["layers"] - sum(outer)
        assert left % (stages - len(outer)) == 0, "megatron/core/transformer/transformer_block.py:131, :157"
    return int(world // dense)


def _refuse_unknown_keys_of_megatron(config: Any) -> None:
    """As OptimizerConfig(**given) (verl/utils/megatron/optimizer.py:61) and TransformerConfig(**given) do.

    The second is called in mbridge/core/llm_bridge.py:98 of mbridge 0.15.1. MindSpeed goes over it and keeps any name
    (mindspeed/core/megatron_basic/arguments_basic.py:102@e4772499), so a name of MindSpeed's is right, and one that no
    file of either has is set for nothing.
    """
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        for name in part.megatron.override_transformer_config if "megatron" in part else ():
            assert name in _words_of_megatron(), (
                f"TransformerConfig got an unexpected keyword argument {name}"
            )
    if config.actor_rollout_ref.actor.strategy == "megatron":
        text = (ROOT.parent / "megatron/core/optimizer/optimizer_config.py").read_text()
        for name in config.actor_rollout_ref.actor.optim.get("override_optimizer_config") or ():
            assert re.search(rf"^    {name}:", text, re.MULTILINE), f"OptimizerConfig has no {name}"


@cache
def _words_of_megatron() -> frozenset[str]:
    folders = (ROOT.parent / part for part in ("megatron", "mindspeed"))
    texts = (file.read_text().replace("-", "_") for folder in folders for file in folder.rglob("*.py"))
    return frozenset(word.lstrip("_") for text in texts for word in re.findall(r"\w+", text))


if __name__ == "__main__":
    print("verdicts:" + json.dumps([list(verdicts(*one)) for one in json.load(sys.stdin)]))
