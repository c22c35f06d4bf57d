"""Save and load a model by verl's checkpoint manager of 54c9b73, as one rank of four: EP2 over DP4, on gloo.

    python run_expert_checkpoint.py VERL FOLDER

VERL: the folder of the package verl. Megatron-core 0.8.0 is on the path; rank and world are in the environment. The
model is a value of the rank's expert group and one that all ranks share. Prints JSON: the rank's expert group and what
it has after loading, or what loading raised.
"""

from __future__ import annotations

import json
import sys
import types
from types import SimpleNamespace
from typing import Any


def without_their_init(verl: str) -> None:
    """Make importable what is not installed: verl, whose __init__ needs more, and the old pkg_resources."""
    import packaging.version

    found: Any = types.ModuleType("pkg_resources")
    found.packaging = packaging  # all that Megatron-core 0.8.0 takes of it
    package = types.ModuleType("verl")
    package.__path__ = [verl]
    sys.modules |= {"pkg_resources": found, "verl": package}


def manager_of(folder: str, model: Any, optimizer: Any) -> Any:
    """verl's manager for one model, and its optimizer if there is one."""
    import torch
    from transformers import GenerationConfig, LlamaConfig
    from verl.utils.checkpoint import megatron_checkpoint_manager

    # As verl_patches/verl_adaptor.py:95 does: verl's own needs a later Megatron-core.
    megatron_checkpoint_manager.get_weight_saver = lambda _arch: None
    return megatron_checkpoint_manager.MegatronCheckpointManager(
        config=SimpleNamespace(model=SimpleNamespace(path=folder)),
        model_config=None,
        role="actor",
        model=[model],
        arch="DeepseekV3ForCausalLM",
        hf_config=LlamaConfig(),
        param_dtype=torch.float32,
        share_embeddings_and_output_weights=False,
        tokenizer=GenerationConfig(),  # something with save_pretrained
        optimizer=optimizer,
        use_distributed_optimizer=True,
        checkpoint_contents=["model"] if optimizer is None else ["model", "optimizer"],
    )


def main(verl: str, folder: str) -> dict[str, Any]:
    without_their_init(verl)
    import torch
    from megatron.core import mpu

    torch.distributed.init_process_group("gloo")
    mpu.initialize_model_parallel(expert_model_parallel_size=2)
    group = mpu.get_expert_model_parallel_rank()
    model = torch.nn.Module()
    model.experts = torch.nn.Parameter(torch.tensor([1.0 + group]))
    model.shared = torch.nn.Parameter(torch.tensor([7.0]))
    manager = manager_of(folder, model, None)
    manager.save_checkpoint(folder, global_step=1)
    torch.distributed.barrier()
    for value in model.parameters():
        torch.nn.init.zeros_(value)
    try:
        manager.load_checkpoint(folder)
    except FileNotFoundError as error:
        return {"group": group, "error": str(error)}
    return {"group": group, "loaded": [value.item() for value in model.parameters()]}


if __name__ == "__main__":
    print("\n" + json.dumps(main(*sys.argv[1:])))
