"""Show whether training survives a checkpoint, with the workers of cann-recipes-train bcd3be7 and verl 54c9b73.

verl's `save_checkpoint` leaves the actor's weights on the host (verl/workers/megatron_workers.py:572@54c9b73), and the
recipe's `generate_sequences` loads them only after start-up and after a validation
(verl_patches/workers/megatron_workers.py:425@bcd3be7). The worker's own generate, update, save and load methods run in
the trainer's order (verl_patches/trainer/ppo/ray_trainer.py:311-472) on one rank, on a real Megatron model whose
weights the tree's own functions offload and load. The engine, the loss and the checkpoint's files are left out:
entering the sharding manager reads every weight, as per_tensor_generator does.
"""

from __future__ import annotations

import contextlib
import gc
import os
from types import SimpleNamespace
from typing import Any

from witness_common import distributed_model, make_apex, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

STEPS = 9
# (checkpoint every, validation every, resumed): 0 is never.
RUNS = [
    (1, 0, 0),
    (2, 0, 0),
    (4, 0, 0),
    (1, 5, 1),
    (2, 5, 0),
    (4, 5, 1),
    (5, 5, 0),
    (1, 1, 0),
    (0, 0, 1),
    (0, 5, 0),
]


class Missing(Exception):
    """The weights were read while they weren't on the device."""


def worker(classes: Any) -> Any:
    """Return an actor and rollout worker as left by init_model, with its weights offloaded (:290@bcd3be7)."""
    import torch
    from verl_patches.utils.megatron_utils import offload_megatron_model_to_cpu

    one = object.__new__(classes.ActorRolloutRefWorker)
    one.__dict__.update(
        _is_actor=True, _is_rollout=True, _is_offload_param=True, _is_offload_optimizer=False,
        _should_load_megatron_model=True, actor_module=[distributed_model({"weight": torch.ones(64)})],
        generation_config=None, tokenizer=SimpleNamespace(eos_token_id=0, pad_token_id=0), _world_size=1, _rank=0,
    )  # fmt: skip
    offload_megatron_model_to_cpu(one.actor_module)

    def read() -> None:
        if any(weight.untyped_storage().size() == 0 for weight in one.actor_module[0].parameters()):
            raise Missing

    class Manager(contextlib.nullcontext):  # type: ignore[type-arg]
        def __enter__(self) -> None:
            read()

        preprocess_data = postprocess_data = staticmethod(lambda data: data)

    def update(**_: Any) -> dict[str, float]:
        read()
        return {}

    one.sharding_manager = Manager()
    one.rollout = SimpleNamespace(init_cache_engine=lambda: None, generate_sequences=lambda prompts: prompts)
    one.actor = SimpleNamespace(make_minibatch_iterator=lambda data: data, update_policy=update)
    one.flops_counter = SimpleNamespace(estimate_flops=lambda *_: (0.0, 1.0))
    one.config = SimpleNamespace(
        actor=SimpleNamespace(ppo_micro_batch_size_per_gpu=1, ppo_epochs=1),
        rollout=SimpleNamespace(temperature=1.0),
    )
    one.checkpoint_mananager = SimpleNamespace(
        save_checkpoint=lambda **_: read(), load_checkpoint=lambda **_: read()
    )
    return one


def dies_at(one: Any, every: int, validate: int, resumed: int) -> int | None:
    """Return the step at which a run of STEPS steps fails for lack of its weights, or None."""
    import torch
    from verl import DataProto

    def batch(**meta: Any) -> Any:
        return DataProto.from_dict(tensors={"input_ids": torch.zeros(1, 1)}, meta_info=meta)

    step = 0
    try:
        if resumed:
            one.load_checkpoint("")
        for step in range(1, STEPS + 1):
            one.generate_sequences(batch())
            one.update_actor(batch(global_token_num=[1]))
            if validate and step % validate == 0:
                one.generate_sequences(batch(validate=True))
            if every and step % every == 0:
                one.save_checkpoint("", global_step=step)
    except Missing:
        return step
    return None


def main() -> dict[str, Any]:
    """Do ten runs, and return those that fail, with the step."""
    from torch_npu.contrib import transfer_to_npu  # noqa: F401  Megatron's buffers ask for a CUDA device

    make_apex()  # the prelude puts MindSpeed's AdamW into it
    os.environ["D2D_DATA_TRANSFER"] = "0"
    os.environ["NPU_RL_NOISE_FOR_EACH_STEP"] = "0"  # asks the engine, which is left out, for its groups
    with only_rank():
        from megatron.core import mpu
        from verl.utils import megatron_utils
        from verl.workers import megatron_workers
        from verl_patches.utils import megatron_utils as replaced
        from verl_patches.workers import megatron_workers as patched

        # As verl_patches/verl_adaptor.py:insert_patch does before the workers are built.
        for name in ("offload_megatron_model_to_cpu", "load_megatron_model_to_gpu"):
            for module in (megatron_utils, megatron_workers, patched):
                setattr(module, name, getattr(replaced, name))
        mpu.initialize_model_parallel()
        gc.freeze()  # each offload collects garbage, among all of vLLM's objects: 40 s
        ends = {
            f"checkpoint every {every or '-'}, validation every {validate or '-'}{', resumed' if resumed else ''}":
            dies_at(worker(megatron_workers), every, validate, resumed)
            for every, validate, resumed in RUNS
        }  # fmt: skip
    return {"fault": any(step is not None for step in ends.values()), "ends at step": ends}


if __name__ == "__main__":
    show(main)
