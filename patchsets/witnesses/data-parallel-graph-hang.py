"""Let one of two data-parallel engines decode while the other, without requests, runs its dummy batch.

vllm-ascend's model runner asks the other engines for their sizes before each forward pass. At 1de16ea a pass with
requests asks twice where graphs are on (get_dp_padding and _get_forward_metadata_across_dp, vllm_ascend/worker/
model_runner_v1.py:1073,1200), and a dummy batch once (:1933): the first waits for an answer that never comes.

Two gloo ranks, which this script starts itself, run the tree's own _process_reqs and _dummy_run up to what comes after
these questions. The methods are taken out of their files, since the rest of them imports all of vLLM; the runner has
the attributes that they read, and no model. A rank that is not through after PATIENCE seconds hangs.
"""

from __future__ import annotations

import ast
import math
import sys
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from witness_common import join_ranks, run_ranks, show

WORLD, PATIENCE = 2, 10
RUNNER, CONTEXT = Path("vllm_ascend/worker/model_runner_v1.py"), Path("vllm/forward_context.py")


class Through(Exception):
    """The pass needs no further messages between the engines."""


def main() -> dict[str, object]:
    found = {mode: run_ranks(WORLD, mode) == ["through"] * WORLD for mode in ("eager", "graph")}
    return {"fault": not found["graph"], "both go on": found}


def be_a_rank(mode: str, folder: str) -> str:
    """Return "through", or "hangs"."""
    import torch.distributed as dist

    rank = join_ranks(folder)
    dist.barrier()  # from here on a rank waits for the other's questions, not for its imports
    asked = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))
    runner = the_runner(SimpleNamespace(cpu_group=asked, device_group=asked), rank, eager=mode == "eager")
    step = SimpleNamespace(
        total_num_scheduled_tokens=1, num_scheduled_tokens={"a": 1}, scheduled_spec_decode_tokens={}
    )
    try:
        if rank == 0:
            runner._process_reqs(step)
        else:
            runner._dummy_run(1)
    except Through:
        return "through"
    except RuntimeError as error:
        if "imed out" in str(error) or "onnection" in str(error):
            return "hangs"
        raise
    raise SystemExit("the pass went on without a model")


def the_runner(group: Any, rank: int, *, eager: bool) -> Any:
    """Return a runner with the tree's methods and one decoding request. Its pass ends after the communication."""
    import numpy as np
    import torch
    import torch.distributed as dist

    def through(*arguments: object, **named: object) -> None:
        raise Through

    state = Enum(
        "AscendAttentionState", "PrefillNoCache PrefillCacheHit DecodeOnly ChunkedPrefill SpecDecoding"
    )
    graphs = Enum("CUDAGraphMode", "NONE PIECEWISE FULL")
    known: dict[str, Any] = {
        "torch": torch, "dist": dist, "np": np, "math": math, "get_dp_group": lambda: group, "DummyCommImpl": None,
        "AscendAttentionState": state, "CUDAGraphMode": graphs, "AscendCommonAttentionMetadata": through,
        "get_ascend_config": lambda: SimpleNamespace(ascend_scheduler_config=SimpleNamespace(enabled=False)),
        "envs_ascend": SimpleNamespace(VLLM_ASCEND_ENABLE_DBO=False), "cdiv": lambda one, by: -(-one // by),
    }  # fmt: skip
    counted = methods(CONTEXT, "DPMetadata", known)["num_tokens_across_dp"]
    sys.modules["vllm.distributed.parallel_state"] = SimpleNamespace(get_dp_group=lambda: group)  # type: ignore[assignment]
    known["DPMetadata"] = SimpleNamespace(num_tokens_across_dp=counted)
    runner = type("NPUModelRunner", (), methods(RUNNER, "NPUModelRunner", known))()
    numbers, zeros = np.arange(16, dtype=np.int64), torch.zeros(16, dtype=torch.int32)
    model = SimpleNamespace(enforce_eager=eager, use_mla=False)
    parallel = SimpleNamespace(data_parallel_size=WORLD, data_parallel_rank=rank)
    batch = MagicMock(num_reqs=1, req_ids=["a"], num_computed_tokens_cpu=np.array([5], dtype=np.int32))
    table = torch.zeros(1, 16).int()
    batch.block_table.__getitem__.return_value = SimpleNamespace(
        get_cpu_tensor=lambda: table, get_device_tensor=lambda: table
    )
    vars(runner).update(
        vllm_config=SimpleNamespace(model_config=model, parallel_config=parallel, pad_for_cudagraph=lambda size: size),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=16, max_num_seqs=1), dp_size=WORLD, dp_rank=rank,
        use_aclgraph=not eager, aclgraph_batch_sizes=[1], attn_metadata_builder=MagicMock(), input_batch=batch,
        lora_config=None, arange_np=numbers, device=torch.device("cpu"), positions_np=numbers.copy(),
        positions=zeros.long(), positions_cpu=zeros.long(), uses_mrope=False, seq_lens=zeros.clone(),
        seq_lens_np=np.zeros(16, dtype=np.int32), seq_lens_cpu=zeros.clone(), max_num_blocks_per_req=16, block_size=128,
        slot_mapping_np=numbers.copy(), slot_mapping_cpu=zeros.clone(), speculative_config=None, use_eagle=False,
        chunked_prefill_enabled=True, query_start_loc=zeros.clone(), query_start_loc_cpu=zeros.clone(),
        query_start_loc_np=np.zeros(16, dtype=np.int32), is_kv_producer=False, torchair_graph_enabled=False,
        max_num_reqs=1, decode_token_per_req=1, uniform_decode_query_len=1, actual_seq_lengths_q=[], attn_mask=None,
        spec_attn_mask=None, _make_attention_mask=lambda **named: None, _build_attention_metadata=through,
    )  # fmt: skip
    return runner


def methods(file: Path, name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the methods of a class, compiled separately. A global that `known` lacks raises when used."""
    (found,) = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    wanted = {
        "_process_reqs", "_dummy_run", "get_dp_padding", "_get_forward_metadata_across_dp",
        "_get_forward_metadata_across_dp_and_pad", "_check_dbo_is_valid", "num_tokens_across_dp",
    }  # fmt: skip
    body = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    given: dict[str, Any] = {}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *body], []), str(file), "exec"), known, given)
    return given


if __name__ == "__main__":
    show(lambda: be_a_rank(*sys.argv[1:]) if sys.argv[1:] else main())
