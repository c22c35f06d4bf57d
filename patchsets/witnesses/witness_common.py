"""Stand-ins, tiny models, rank processes and output that several witnesses share.

A witness is a script, so this file's folder is on its path. Heavy imports wait inside: their order is the witness's.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def show(main: Callable[[], Any]) -> None:
    """Print the result as the last line. Earlier output of the tree goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        found = main()
    print("\n" + json.dumps(found))


@contextlib.contextmanager
def only_rank() -> Iterator[None]:
    """Form a gloo group of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_ranks(count: int, *arguments: str, seconds: float = 240, **environment: str) -> list[Any]:
    """Run the witness once for each rank, and return the JSON in each last line of output.

    The last argument of each is a folder that they share. None waits for one that has ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", sys.argv[0], *arguments, folder]
        given = {**os.environ, "WORLD_SIZE": str(count)}
        outputs = [Path(folder, f"output-{rank}") for rank in range(count)]
        running = []
        for rank, output in enumerate(outputs):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
            with output.open("w") as stream:
                running.append(subprocess.Popen(command, env=given | own, stdout=stream))
        end = time.monotonic() + seconds
        try:
            while any(one.poll() is None for one in running) and not any(one.returncode for one in running):
                if time.monotonic() > end:
                    raise TimeoutError(f"{seconds} s")
                time.sleep(0.1)
        finally:
            for one in running:
                one.kill()
        if any(one.wait() for one in running):
            raise RuntimeError(f"a rank ended with {[one.returncode for one in running]}")
        return [json.loads(output.read_text().strip().splitlines()[-1]) for output in outputs]


def join_ranks(folder: str) -> int:
    """Form the gloo group of the ranks that `run_ranks` started, and return this rank."""
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    return rank


def fork_ranks(count: int, target: Callable[..., Any], seconds: float) -> list[Any]:
    """Return what `target` returns on each of the ranks: forks of this process, so imports are made once.

    `target` gets its rank and a folder that all share.
    """
    import torch

    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:

        def run(rank: int) -> None:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(count)}
            join_ranks(folder)
            Path(folder, f"{rank}.json").write_text(json.dumps(target(rank, folder)))
            torch.distributed.barrier()  # a group's store lives in its first rank

        ranks = [fork.Process(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + seconds
        for rank in ranks:
            rank.join(max(0.0, end - time.monotonic()))
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        if any(code != 0 for code in codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(count)]


def make_packages(*names: str) -> None:
    """Create packages of the tree without running their __init__, which import much more than needed."""
    for name in names:
        package = ModuleType(name)
        package.__path__ = [str(Path(*name.split(".")).absolute())]
        sys.modules[name] = package


def make_module(name: str, **members: Any) -> Any:
    """Make a stand-in module importable, for one that isn't installed or imports too much."""
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(members)
    return module


def make_apex(**optimizers: Any) -> Any:
    """Make apex.optimizers importable, with torch's SGD as its FusedSGD; return it."""
    import torch
    import transformers  # noqa: F401  looks for apex when it is imported, and this one is not a package

    made = make_module("apex.optimizers", FusedSGD=torch.optim.SGD, **optimizers)
    make_module("apex", optimizers=made)
    return made


def find_ascend() -> None:
    """Let vLLM detect vllm-ascend's platform, as on first use."""
    import torch_npu

    # A type that vllm_ascend/utils.py names in a dataclass; the stand-in has no types of graphs.
    torch_npu._C._NPUTaskGroupHandle = object
    import vllm.platforms

    vllm.platforms.current_platform.device_name  # noqa: B018


def distributed_model(parameters: dict[str, Any], **options: Any) -> Any:
    """Return a module of `parameters` in Megatron-core's wrapper, with the distributed optimizer's buffers."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    config = TransformerConfig(**{"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, **options})
    module = MegatronModule(config)
    for name, value in parameters.items():
        setattr(module, name, torch.nn.Parameter(value))
    sharded = DistributedDataParallelConfig(use_distributed_optimizer=True)
    return DistributedDataParallel(config, sharded, module)


def distributed_optimizer(model: Any, **options: Any) -> Any:
    """Return Megatron-core's optimizer for a bfloat16 model."""
    import torch
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam", lr=0.1, clip_grad=0.0, use_distributed_optimizer=True, bf16=True,
        params_dtype=torch.bfloat16, **options,
    )  # fmt: skip
    return get_megatron_optimizer(config, [model])


def train(model: Any, optimizer: Any, size: float = 1.0) -> None:
    """Take one step, with a gradient of `size` everywhere."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    sum(one.sum() for one in model.module.parameters()).mul(size).backward()
    model.finish_grad_sync()
    optimizer.step()


def through_checkpoint(folder: str, state: Any, make_target: Callable[[], Any]) -> Any:
    """Save each rank's state as a distributed checkpoint, and load it into that of `make_target`."""
    import torch
    from megatron.core import dist_checkpointing

    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(state, checkpoint)
    torch.distributed.barrier()
    return dist_checkpointing.load(make_target(), checkpoint)


def verls_format() -> dict[str, Any]:
    """Return what verl gives an optimizer's sharded_state_dict for its format: nothing before Megatron-core 0.14."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    if not hasattr(DistributedOptimizer, "checkpoint_fully_reshardable_formats"):
        return {}
    metadata = {  # verl/utils/checkpoint/megatron_checkpoint_manager.py:409@7aed6b2
        "distrib_optim_sharding_type": "dp_reshardable",
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    return {"metadata": metadata}


def swap_optimizer_states(swap_optimizer: Any, adam: Any) -> None:
    """Install a MindSpeed's SwapDistributedOptimizer, and its step in the optimizer `adam`."""
    import megatron.core.optimizer
    from megatron.core.optimizer import distrib_optimizer

    swap_optimizer.get_args = lambda: SimpleNamespace(swap_optimizer_times=16)  # MindSpeed's default
    adam.step = swap_optimizer.swap_adamw_step
    for module in (megatron.core.optimizer, distrib_optimizer):
        module.DistributedOptimizer = swap_optimizer.SwapDistributedOptimizer


def weights_and_optimizer() -> tuple[Any, Any]:
    """Return the same bfloat16 model each time, with 512 weights for two ranks, and its optimizer."""
    import torch

    weight = torch.randn(512, generator=torch.Generator().manual_seed(0)).bfloat16()
    model = distributed_model({"weight": weight}, bf16=True, params_dtype=torch.bfloat16)
    return model, distributed_optimizer(model)


def fit_later_torch() -> None:
    """Let Megatron-core 0.12 write checkpoints with torch 2.7 and later, and without FP8 parameters."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.optimizer import distrib_optimizer
    from torch.distributed.checkpoint import filesystem

    if hasattr(filesystem, "SerializationFormat"):
        upstream: Any = filesystem_async._write_item
        as_then = filesystem.SerializationFormat.TORCH_SAVE
        filesystem_async._write_item = lambda *a, **k: upstream(*a, serialization_format=as_then, **k)
    distrib_optimizer.quantize_param_shard = lambda *_, **__: None  # as MindSpeed does


def import_checkpoint_manager() -> Any:
    """Import verl 54c9b73's checkpoint manager, with stand-ins for packages that aren't installed."""
    import packaging.version

    make_module("pkg_resources", packaging=packaging)  # all that Megatron-core 0.8.0 takes of it
    make_packages("verl")  # its own __init__ needs more
    from verl.utils.checkpoint import megatron_checkpoint_manager

    # As verl_patches/verl_adaptor.py:95 does: verl's own needs a later Megatron-core.
    megatron_checkpoint_manager.get_weight_saver = lambda _arch: None
    return megatron_checkpoint_manager.MegatronCheckpointManager


def checkpoint_manager(kind: Any, folder: str, model: Any, optimizer: Any = None) -> Any:
    """Return verl 54c9b73's checkpoint manager for one model and an optional optimizer."""
    import torch
    import transformers

    return kind(
        config=SimpleNamespace(model=SimpleNamespace(path=folder)), model_config=None, role="actor", model=[model],
        arch="DeepseekV3ForCausalLM", hf_config=transformers.LlamaConfig(), param_dtype=torch.float32,
        share_embeddings_and_output_weights=False, optimizer=optimizer, use_distributed_optimizer=True,
        tokenizer=transformers.GenerationConfig(),  # something with save_pretrained
        checkpoint_contents=["model", "optimizer"] if optimizer else ["model"],
    )  # fmt: skip


def router_groups() -> dict[str, Any]:
    """Return the process groups that TopKRouter takes since core 0.14, under either name."""
    from megatron.core.transformer.moe import moe_utils

    names = {"get_default_model_comm_pgs": "model_comm_pgs", "get_default_pg_collection": "pg_collection"}
    return {name: getattr(moe_utils, made)() for made, name in names.items() if hasattr(moe_utils, made)}


def layer_with_router(config: Any) -> Any:
    """Return a mixture-of-experts model of one layer, without experts."""
    import torch
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.moe.router import TopKRouter

    model, layer = MegatronModule(config), torch.nn.Module()
    layer.mlp = torch.nn.Module()
    layer.mlp.router = router = TopKRouter(config, **router_groups())
    model.decoder = torch.nn.Module()
    model.decoder.layers = torch.nn.ModuleList([layer])
    place = "decoder.layers.0.mlp.router."
    model.sharded_state_dict = lambda prefix="", *_, **__: router.sharded_state_dict(prefix + place)
    return model


def model_with_router(config: Any) -> tuple[Any, Any]:
    """Return `layer_with_router` wrapped by verl's get_model, and the router."""
    from verl.utils import megatron_utils

    model = megatron_utils.get_model(
        lambda **_: layer_with_router(config), wrap_with_ddp=False, transformer_config=config
    )
    return model, megatron_utils.unwrap_model(model[0]).decoder.layers[0].mlp.router


def use_mindspeed_llm_router(**arguments: Any) -> Any:
    """Install MindSpeed-LLM's routing in Megatron-core's router, by default for DeepSeek-V3. Returns its file."""
    import torch

    moe = "mindspeed_llm.core.transformer.moe"
    make_packages(
        "mindspeed_llm", "mindspeed_llm.core", "mindspeed_llm.core.transformer", moe, "mindspeed_llm.core.distributed",
        "mindspeed_llm.tasks", "mindspeed_llm.tasks.models", "mindspeed_llm.tasks.models.common",
    )  # fmt: skip
    import megatron.training.global_vars as training
    from megatron.core.transformer.moe.router import TopKRouter
    from mindspeed_llm.core.transformer.moe import router

    histc = torch.histc  # on a CPU it takes no whole numbers
    torch.histc = lambda values, **named: histc(values.float(), **named).long()
    usual = SimpleNamespace(
        n_group=8, topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_tp_extend_ep=False, seq_aux=False, fix_router=False,
        input_jitter=False, router_gating_in_fp32=False, micro_batch_size=1,
    )  # fmt: skip
    training._GLOBAL_ARGS = SimpleNamespace(**{**vars(usual), **arguments})
    TopKRouter.__init__ = router.topk_router_init_wrapper(TopKRouter.__init__)
    TopKRouter.routing = router.topk_router_routing
    return router


EXPERTS, TOP, TOKENS, COEFFICIENT = 256, 8, 2048, 0.001


def compare_auxiliary_losses(
    router: Any, biases: list[tuple[float, float]], *shape: int
) -> list[list[float]]:
    """Return how a router's loss gradient compares with that of DeepSeek-V3's report, for biases (offset, spread).

    The report's balance loss is in arXiv:2412.19437, equations 17 to 20.

    Args:
        shape: That of the logits, of TOKENS * EXPERTS random numbers.

    Returns:
        Cosine with the report's gradient and size relative to it, for each bias.
    """
    import torch

    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS, generator=numbers).requires_grad_()
    spread_out = torch.randn(EXPERTS, generator=numbers)
    affinity = torch.sigmoid(logits)
    highest = torch.zeros_like(affinity).scatter(1, affinity.topk(TOP, dim=1).indices, 1.0)
    f = highest.sum(0) * EXPERTS / (TOP * TOKENS)
    p = (affinity / affinity.sum(-1, keepdim=True)).mean(0)
    (right,) = torch.autograd.grad(COEFFICIENT * (f * p).sum(), logits)
    found = []
    for offset, spread in biases:
        router.expert_bias = offset + spread_out * spread
        scores, _ = router.routing(logits.view(shape))
        (gradient,) = torch.autograd.grad((scores * 0).sum(), logits)
        cosine = torch.cosine_similarity(gradient.flatten(), right.flatten(), dim=0)
        found.append([cosine.item(), (gradient.norm() / right.norm()).item()])
    return found


def send_weights(manager: Any, converter: Any, **members: Any) -> None:
    """Enter a Megatron sharding manager built from its parts, since its constructor needs device groups."""
    one = manager.__new__(manager)
    vars(one).update(members, model_config=SimpleNamespace(tie_word_embeddings=False))
    one.layer_name_mapping = {
        "qkv_layer_name": "self_attention.linear_qkv.",
        "gate_proj_layer_name": "linear_fc1.",
    }
    one.weight_converter = converter(SimpleNamespace(), one.transformer_config)
    with one:
        pass


class HasEngine(Exception):
    """The rollout has created its engine, and would need a real one from here on."""


def an_engine(engine_args: Any) -> SimpleNamespace:
    """Return the attributes of vLLM's engine that verl's rollout reads, with the requested sizes."""
    scheduler = SimpleNamespace(
        enable_chunked_prefill=True,
        max_num_batched_tokens=engine_args.max_num_batched_tokens,
        max_num_seqs=engine_args.max_num_seqs,
    )
    sizes = SimpleNamespace(
        scheduler_config=scheduler,
        cache_config=SimpleNamespace(num_gpu_blocks=None, block_size=128),
        model_config=SimpleNamespace(max_model_len=engine_args.max_model_len),
    )
    core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=SimpleNamespace(keeps_room=True)))
    return SimpleNamespace(vllm_config=sizes, engine_core=core, get_supported_tasks=lambda: ("generate",))


def make_vllm_rollout(engine: Callable[[Any], Any], **options: Any) -> None:
    """Create verl's vLLMRollout, or verl_patches' replacement, up to vLLM's engine.

    Args:
        engine: Takes the arguments of vLLM's engine in its place, and may raise HasEngine.
        options: Fields of the rollout's configuration.
    """
    from omegaconf import OmegaConf
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
    from vllm.entrypoints.llm import LLMEngine

    if is_patched():
        from verl_patches.workers.vllm_rollout.vllm_rollout_spmd import __init__ as of_patches

        vllm_rollout_spmd.vLLMRollout.__init__ = of_patches
    LLMEngine.from_engine_args = lambda engine_args, usage_context: engine(engine_args)
    given = {
        "prompt_length": 64, "response_length": 64, "max_num_batched_tokens": 256, "tensor_model_parallel_size": 1,
        "dtype": "float32", "free_cache_engine": False, "load_format": "dummy", "enable_chunked_prefill": True,
        **options,
    }  # fmt: skip
    try:
        from verl.workers.config import RolloutConfig

        config = RolloutConfig(**given)
    except ImportError:  # verl 0.5.0 and before has no class for it
        usual = {"enforce_eager": True, "gpu_memory_utilization": 0.5, "disable_log_stats": True}
        config = OmegaConf.create({**usual, "max_model_len": None, "engine_kwargs": {}, **given})
    with contextlib.suppress(HasEngine):
        vllm_rollout_spmd.vLLMRollout(
            tempfile.gettempdir(), config, SimpleNamespace(pad_token_id=0),
            SimpleNamespace(max_position_embeddings=8192, rope_scaling=None),
            device_mesh=None, trust_remote_code=False,
        )  # fmt: skip


def is_patched() -> bool:
    """Return whether the tree has verl_patches, which replaces functions of verl."""
    import importlib.util

    return importlib.util.find_spec("verl_patches") is not None


def import_qwen3_moe() -> tuple[Any, Any]:
    """Return transformers' Qwen3-MoE module as patched by verl_npu, and a tiny configuration."""
    import torch
    import torch_npu
    from transformers.models.qwen3_moe import modeling_qwen3_moe as modules

    modules.torch_npu = torch_npu  # imported there where there is an NPU
    torch.manual_seed(1)
    config = modules.Qwen3MoeConfig(
        hidden_size=8, intermediate_size=12, moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True,
    )  # fmt: skip
    return modules, config


def logit_table(vocabulary: int, scale: float = 1.0) -> Any:
    """Return a model for Megatron's schedule and verl's actor: the logits of the next token by the token."""
    import torch
    from megatron.core.enums import ModelType
    from megatron.core.transformer.transformer_config import TransformerConfig

    class Table(torch.nn.Module):
        model_type = ModelType.encoder_or_decoder

        def __init__(self) -> None:
            super().__init__()
            self.config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
            self.table = torch.nn.Parameter(scale * torch.randn(vocabulary, vocabulary))

        def forward(self, tokens: Any) -> Any:
            return self.table[tokens]

        def set_input_tensor(self, tensor: Any) -> None: ...
        def zero_grad_buffer(self) -> None: ...

    return Table()


def megatron_actor(mcore: Any, model: Any, optimizer: Any, config: Any) -> Any:
    """Return verl's MegatronPPOActor for a `logit_table`.

    Args:
        mcore: The module verl.models.mcore.
    """
    from verl.workers.actor.megatron_actor import MegatronPPOActor

    def forward(model: Any, tokens: Any, *_: Any, logits_processor: Any = None, **given: Any) -> Any:
        logits = model(tokens)
        return logits_processor(logits, **given["logits_processor_args"]) if logits_processor else logits

    mcore.get_mcore_forward_fn = lambda config: forward
    mcore.get_mcore_forward_fused_fn = None
    parallel = SimpleNamespace(sequence_parallel=False)
    actor = MegatronPPOActor(
        config=config, model_config=None, hf_config=None, tf_config=parallel, actor_module=[model],
        actor_optimizer=optimizer,
    )  # fmt: skip
    # It would reduce over the wrapper of Megatron's data parallel.
    model.config.finalize_model_grads_func = None
    return actor


def actor_batch(tokens: Any, mask: Any, old: Any, advantages: Any, **facts: Any) -> Any:
    """Return a batch for verl's actor: tokens [rows, prompt + response], the rest [rows, response]."""
    import torch
    from verl import DataProto

    attention = torch.ones_like(tokens)
    attention[:, -mask.shape[1] :] = mask
    tensors = {
        "responses": tokens[:, -mask.shape[1] :].clone(), "input_ids": tokens.clone(), "attention_mask": attention,
        "response_mask": mask, "position_ids": torch.arange(tokens.shape[1]).expand(len(tokens), -1).clone(),
        "old_log_probs": old.clone(), "advantages": advantages,
    }  # fmt: skip
    return DataProto.from_dict(tensors=tensors, meta_info=facts)


def dapo_trainer(
    prompts: str,
    *,
    samples: int,
    train: int,
    steps: int,
    filtered: bool,
    generations: int = 1,
    **options: Any,
) -> Any:
    """Return the state that verl_npu 2.3.0's RayDAPOTrainer.fit reads, with a rollout and a reward of its own.

    Args:
        prompts: One letter each; all responses to "b" get the same reward, so a filter drops its group.
        samples: Responses to a prompt.
        train: Prompts of an update.
        filtered: Whether groups with equal rewards are dropped.
        generations: At most as many batches are generated for an update; 0 for any number.
        options: More keys of the section `trainer`.
    """
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto

    def generate(batch: Any) -> Any:
        tensors = {
            "responses": torch.zeros(len(batch), 1, dtype=torch.int64),
            "attention_mask": torch.ones(len(batch), 3, dtype=torch.int64),
        }
        return DataProto.from_single_dict(tensors, meta_info={"timing": {}})

    def reward(batch: Any, return_dict: bool) -> dict[str, Any]:
        seen: dict[str, int] = {}
        scores = []
        for prompt in batch.non_tensor_batch["prompt"]:
            seen[prompt] = seen.get(prompt, 0) + 1
            scores.append(0.0 if prompt == "b" else float(seen[prompt]))
        return {"reward_tensor": torch.tensor(scores)[:, None], "reward_extra_info": {"acc": scores}}

    usual = {
        "project_name": "p", "experiment_name": "e", "logger": ["console"], "val_before_train": False,
        "profile_steps": None, "profile_continuous_steps": False, "total_epochs": 1,
    }  # fmt: skip
    filter_groups = {"enable": filtered, "metric": "acc", "max_num_gen_batches": generations}
    config = {
        "trainer": {**usual, **options},
        "actor_rollout_ref": {"rollout": {"n": samples}, "actor": {"loss_agg_mode": "token-mean"}},
        "data": {"train_batch_size": train},
        "algorithm": {
            "adv_estimator": "grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0,
            "filter_groups": filter_groups,
        },
    }  # fmt: skip
    letters, size = np.array(list(prompts), dtype=object), len(prompts)
    names = ("input_ids", "attention_mask", "position_ids")
    batch = {name: torch.zeros(size, 2, dtype=torch.int64) for name in names}
    return SimpleNamespace(
        config=OmegaConf.create(config), total_training_steps=steps,
        train_dataloader=[{**batch, "raw_prompt_ids": letters, "prompt": letters}],
        actor_rollout_wg=SimpleNamespace(generate_sequences=generate), reward_fn=reward, val_reward_fn=None,
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1), use_rm=False, use_critic=False,
        use_reference_policy=False, _load_checkpoint=lambda: None, _start_profiling=lambda _: None,
        _stop_profiling=lambda _: None,
    )  # fmt: skip


def by_the_formula(layer: Any, x: Any) -> Any:
    """Return the output of a gated layer."""
    import torch

    return layer.down_proj(torch.nn.functional.silu(layer.gate_proj(x)) * layer.up_proj(x))
