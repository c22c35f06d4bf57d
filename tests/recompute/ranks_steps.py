"""One update of verl's FSDP actor on one of several gloo ranks, which share a batch: `ranks_steps.py RANK WORLD FILE`.

Printed are weights after the update.
"""

from __future__ import annotations

import json
import sys

import torch
from fsdp_steps import ACTOR, DEFAULTS, batch_of, config_of, tiny_model
from npu_rl_recompute import loss_hooks
from torch.distributed.fsdp import FullyShardedDataParallel

ROWS = 16


def weights(rank: int, world: int) -> list[float]:
    from verl import DataProto

    job = {**DEFAULTS, "mini": ROWS // world, "entropy": 0.0}
    torch.manual_seed(1)
    model = FullyShardedDataParallel(tiny_model(), device_id=torch.device("cpu"))
    config = config_of(job)
    config.grad_clip = 1e9
    actor = sys.modules[ACTOR].DataParallelPPOActor(
        config, model, torch.optim.SGD(model.parameters(), lr=1.0)
    )
    batch = batch_of(torch.Generator().manual_seed(1), ROWS)
    own = {name: values[rank * job["mini"] :][: job["mini"]] for name, values in batch.items()}
    facts = {"temperature": 1.0, "micro_batch_size": 4, "use_dynamic_bsz": False}
    data = DataProto.from_dict(tensors=own, meta_info=facts)
    data.batch["old_log_probs"] = actor.compute_log_prob(data)[0]
    data.batch["ref_log_prob"] = data.batch["old_log_probs"] - 0.3
    actor.update_policy(data)
    with FullyShardedDataParallel.summon_full_params(model):
        return [float(value.double().norm()) for value in model.parameters()]


if __name__ == "__main__":
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world
    )
    loss_hooks.install()
    print("\n" + json.dumps(weights(rank, world)))
    torch.distributed.destroy_process_group()
