"""verl passes keywords of its own to vLLM's engine, so that a recipe's engine argument of that name is a TypeError.

Made is verl's vLLMRollout (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@55e3c5b) up to vLLM's engine, with
arguments of recipes in engine_kwargs. "given" is what the engine gets of each, or the error; arguments that belong
elsewhere in a recipe are to be refused by name.
"""

from __future__ import annotations

from typing import Any

from witness_common import HasEngine, make_vllm_rollout, only_rank, show

ENVIRONMENT = {
    "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29558",
    "VLLM_USE_V1": "1", "VLLM_PLUGINS": "", "VLLM_VERSION": "0.9.1", "HF_HUB_OFFLINE": "0",
}  # fmt: skip

ASCEND = {"additional_config": {"torchair_graph_config": {"enabled": True, "graph_batch_sizes": [8, 64]}}}
GIVEN: list[dict[str, Any]] = [
    {"enable_expert_parallel": True, **ASCEND},
    {"enable_prefix_caching": False, "disable_custom_all_reduce": False, "seed": 7},
    {"enable_prefix_caching": True},
    {"swap_space": None},  # None stays vLLM's own
]
ELSEWHERE = {
    "model": "x", "tensor_parallel_size": 1, "distributed_executor_backend": "mp", "enable_sleep_mode": True,
    "dtype": "float16", "max_num_batched_tokens": 1, "skip_tokenizer_init": True, "trust_remote_code": True,
}  # fmt: skip


def main() -> dict[str, Any]:
    given = [given_of(arguments) for arguments in GIVEN]
    # Containers of OmegaConf are to become plain, however deep: vllm-ascend asks for a list.
    plain = given_of(GIVEN[0], omega=True)
    refused = {
        name: str(given_of({name: value})).startswith(f"ValueError: rollout.engine_arguments.{name}=")
        for name, value in ELSEWHERE.items()
    }
    right = [*GIVEN[:3], {"swap_space": 4.0}]
    fault = given != right or plain != GIVEN[0] or not all(refused.values())
    return {"fault": fault, "given": given, "plain": plain, "refused": refused}


def given_of(arguments: dict[str, Any], omega: bool = False) -> Any:
    """Return what the engine is given of the arguments, or the error."""
    from omegaconf import OmegaConf

    found: dict[str, Any] = {}

    def engine(engine_args: Any) -> None:
        found.update({name: getattr(engine_args, name) for name in arguments})
        raise HasEngine

    kwargs = {"vllm": arguments}
    try:
        make_vllm_rollout(engine, max_num_seqs=1, engine_kwargs=OmegaConf.create(kwargs) if omega else kwargs)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    if any(type(value).__module__.startswith("omegaconf") for value in found.values()):
        return "a container of OmegaConf"
    return found


if __name__ == "__main__":
    with only_rank():
        show(main)
