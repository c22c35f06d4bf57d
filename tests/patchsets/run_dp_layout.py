"""Form vLLM's groups by `npu_rl_runtime.rollout_dp_groups`, as each rank of a large world in turn, in one process.

    python run_dp_layout.py WORLD TENSOR_PARALLEL

WORLD: the number of ranks; vllm and `npu_rl_runtime` are on the path, and VLLM_DP_SIZE is set. Prints JSON: for
each rank its groups, VLLM_DP_RANK, and a digest of the groups that were asked for. Nothing is sent: the process group
is torch's fake one, and the queue in shared memory, which the tensor group has besides, is left out.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(world: int, tensor_parallel: int) -> list[dict[str, Any]]:
    from npu_rl_rehearsal.fake_world import as_rank
    from npu_rl_runtime.rollout_dp_groups import check_size, data_parallel_size
    from npu_rl_runtime.rollout_dp_groups.groups import form_groups
    from vllm.distributed import parallel_state

    begin = parallel_state.init_model_parallel_group
    parallel_state.init_model_parallel_group = lambda *given, **named: begin(
        *given, **{**named, "use_message_queue_broadcaster": False}
    )
    found = []
    for rank in range(world):
        with as_rank(rank, world) as asked:
            check_size(data_parallel_size(), tensor_parallel)
            form_groups(tensor_parallel)
            groups = {kind: getattr(parallel_state, f"_{kind}") for kind in ("TP", "PP", "DP", "EP")}
            found.append(
                {kind: group.ranks for kind, group in groups.items()}
                | {"place": {kind: group.rank_in_group for kind, group in groups.items()}}
                | {"dp_rank": os.environ["VLLM_DP_RANK"], "asked": asked.digest}
            )
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
