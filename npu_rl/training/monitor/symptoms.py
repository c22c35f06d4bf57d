"""Known failures: what a log says, why, and what to do. Each row names the thread or the source it is from."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """pattern: searched in the plain text of a log. source: OWNER#NUMBER of a thread, or path@version."""

    pattern: re.Pattern[str]
    cause: str
    hint: str
    source: str


def _row(pattern: str, cause: str, hint: str, source: str) -> Symptom:
    return Symptom(re.compile(pattern), cause, hint, source)


# The more telling come first: of several that a log shows, the first is told.
SYMPTOMS = (
    # -- the tree and its settings
    _row(
        r"Two tensor dict must have identical batch size",
        "The HF rollout repeats each prompt n times although the trainer has done so: the patch verl/0.5.0 is not in "
        "this tree.",
        "Run `npu-rl verify`, then `npu-rl setup --manifest quickstart`.",
        "verl/workers/rollout/hf_rollout.py@0.5.0",
    ),
    _row(
        r"MLA is not supported with Tensor Parallelism",
        "MindSpeed at this pin has no multi-head latent attention with tensor parallelism.",
        "Set actor.parallel.tensor to 1, and spread the model by actor.parallel.pipeline and actor.parallel.expert.",
        "MindSpeed@7ff818c4",
    ),
    _row(
        r"argument 'k_channels'",
        "Megatron-core built plain attention for a model with latent attention: its own key is not set.",
        "Set actor.transformer.multi_latent_attention to true; MindSpeed's key has another name.",
        "megatron/core@0.12.1",
    ),
    _row(
        r"args is not initialized",
        "megatron.training can be imported, and MindSpeed then asks it for arguments that nobody has set.",
        "Have only megatron/core on PYTHONPATH; `npu-rl verify` shows what else is in the tree.",
        "MindSpeed@7ff818c4",
    ),
    _row(
        r"getenv\(.VLLM_ENABLE_FIX_ROUTE.\)",
        "vllm-ascend at this pin reads VLLM_ENABLE_FIX_ROUTE and has no value for it if it is unset.",
        "Set env.VLLM_ENABLE_FIX_ROUTE to 0.",
        "vllm_ascend/ops/fused_moe.py@f20869ef",
    ),
    _row(
        r"Key '[^']+' is not in struct|Could not override '[^']+'|ConfigAttributeError",
        "A key on the command line is not in the trainer's configuration at this pin.",
        "Run `npu-rl recipes check RECIPE`; it names the nearest right key.",
        "verl/trainer/config@0.5.0",
    ),
    _row(
        r"InvalidVersion: ",
        "vLLM installed from source has no version that can be compared.",
        "Set env.VLLM_VERSION to the release that the tree holds, such as 0.9.1.",
        "vllm-ascend FAQ 14",
    ),
    # -- packages and libraries of the machine
    _row(
        r"libatb\.so|_register_atb_extensions",
        "NNAL (ATB) is not installed, or its environment was not sourced before the start.",
        "`source /usr/local/Ascend/nnal/atb/set_env.sh` in the shell that runs npu-rl.",
        "vllm-ascend#152, #2727",
    ),
    _row(
        r"lib(?:ascend_hal|hccl|ascendcl)\.so: cannot open shared object",
        "The Ascend driver or CANN is not in the library path, or is not mounted into the container.",
        "`source /usr/local/Ascend/ascend-toolkit/set_env.sh`; in a container mount /usr/local/Ascend/driver.",
        "vllm-ascend#262, #1440",
    ),
    _row(
        r"camem allocator is not available",
        "vllm-ascend's compiled part is missing, and its sleep mode needs it.",
        "Set rollout.free_cache to false; or, in a tree that has it, turn on adaptations.rollout-offload, which needs "
        "no sleep mode.",
        "vllm-ascend#556, #3998",
    ),
    _row(
        r"_ARRAY_API not found|numpy\.core\.multiarray failed to import|numpy\.dtype size changed",
        "A package was built for another major version of numpy.",
        "Install numpy 1.26 there: `python -m pip install --no-deps numpy==1.26.4`.",
        "verl#5123",
    ),
    _row(
        # Not vllm._C or vllm._version, which only a build makes and vLLM does without.
        r"No module named '(?:torch_npu|vllm|vllm_ascend|mindspeed|megatron|tensordict|transformers)(?:\.(?!_)\w+)*'",
        "The training interpreter lacks a package.",
        "Name an interpreter that has it: --python PATH. torch and torch_npu come with the image.",
        "verl#5123",
    ),
    # -- Ray and resources
    _row(
        r"Total available GPUs \S+ is less than total desired GPUs",
        "Ray offers fewer devices than the recipe asks for; it counts NPUs only as the resource `NPU`.",
        "Compare cluster.nodes and cluster.dies with `ray status`; head.sh and worker.sh, which "
        "`npu-rl train RECIPE --dry-run` writes, start a Ray that offers NPUs.",
        "ray#55137, verl#6741",
    ),
    _row(
        r"No available node types can fulfill resource request|cannot be scheduled right now",
        "Ray waits for a resource that no node has.",
        "Compare `ray status` with cluster.nodes and cluster.dies.",
        "verl#3583",
    ),
    _row(
        r"Error setting ASCEND_RT_VISIBLE_DEVICES",
        "Ray and vLLM both choose the visible devices, with data parallelism over several nodes.",
        "Set env.RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES to 1; on several nodes, in the shell that starts "
        "Ray, too.",
        "vllm-ascend#2879",
    ),
    _row(
        r"node running low on memory|exceeds the memory usage threshold|ray\.exceptions\.OutOfMemoryError",
        "The node ran out of main memory and Ray killed a worker.",
        "Lower data.batch, or keep less in main memory: offload.optimizer, offload.parameters and offload.reference. "
        "`npu-rl plan RECIPE` adds it up.",
        "verl#2950, #3453",
    ),
    _row(
        r"NPU out of memory|CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "A device ran out of memory.",
        "Lower rollout.memory_share, rollout.log_prob_micro_batch or actor.micro_batch, or set offload.parameters, "
        "offload.gradients and offload.optimizer to true.",
        "vllm-ascend#977",
    ),
    _row(
        r"Memory usage increased after sleeping",
        "Something else allocated device memory while vLLM went to sleep.",
        "In a tree that has it, turn on adaptations.rollout-offload, which needs no sleep mode; else set "
        "rollout.free_cache to false.",
        "verl#3902",
    ),
    _row(
        r"expandable_segments[^\n]*(?:not supported|conflict|memory pool)",
        "vLLM's sleep mode and expandable segments exclude each other.",
        "Set env.PYTORCH_NPU_ALLOC_CONF to expandable_segments:False; or, in a tree that has it, turn on "
        "adaptations.rollout-offload.",
        "ms-swift#6636, vllm#14189",
    ),
    _row(
        r"No space left on device",
        "A disk is full; /dev/shm too counts as one, and Ray puts its objects there.",
        "Look at `df -h` for the run folder, the temporary folder and /dev/shm.",
        "verl#275",
    ),
    # -- the network
    _row(
        r"EI0001|for environment variable \S+ is invalid",
        "HCCL refuses the value of an environment variable; this line names it and what it may be.",
        "Correct it under env; `npu-rl recipes check RECIPE` judges HCCL's variables.",
        "hccl/docs/zh/user_guide/fault_diagnosis/env_config_error_EI0001.md@09300b70",
    ),
    _row(
        r"EI0006|Getting socket times out",
        "A device waited in vain for another to connect: some rank is stuck or dead, or comes too late.",
        "Find the rank without this error, its log tells more; env.HCCL_CONNECT_TIMEOUT is how many seconds it waits.",
        "vllm-ascend#486",
    ),
    _row(
        r"EI0009|Transport init error",
        "A link between two devices could not be made.",
        "Look at the other end's log; check cluster.interface and the devices' network (`hccn_tool -i N -link -g`).",
        "vllm-ascend#3162",
    ),
    _row(
        r"EJ0001|Failed to initialize the HCCP process",
        "Processes of an earlier run still hold the devices.",
        "End them (`npu-smi info` lists them), wait ten seconds, start again.",
        "verl#332",
    ),
    _row(
        r"/\d+ clients joined|client socket has timed out",
        "Not all processes found the first one: a wrong network interface or address, or a node is missing.",
        "Set cluster.interface to the network interface that reaches the other nodes.",
        "vllm-ascend#167, verl#849",
    ),
    _row(
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)",
        "A collective waited longer than its limit: some rank is slow, stuck or dead.",
        "Find the rank that did not get there; raise overrides.actor_rollout_ref.nccl_timeout (seconds) if a step may "
        "take so long.",
        "verl#607",
    ),
    _row(
        r"Address already in use|EADDRINUSE",
        "A port is taken, often by an earlier run.",
        "Look who listens (`ss -ltnp`); end what is left of the earlier run.",
        "vllm-ascend#1955",
    ),
    _row(
        r"Failed to register worker (?:\w+ )?to Raylet",
        "The raylet on that node ended before a process could register with it: often one of its agents did not start "
        "in time on a busy machine, or main memory ran out.",
        "Look at the end of raylet.out there (in workers/, or in /tmp/ray/session_latest/logs of the node), which says "
        "what ended it; wait until the machine is less busy, and start again.",
        "ray#21479",
    ),
    # -- last, because it is only the messenger
    _row(
        r"ActorDiedError|RayActorError|Worker unexpectedly exits|died or was killed while executing",
        "A worker process died without a word: main memory that ran out, or a crash in compiled code.",
        "Look at `dmesg` for the OOM killer, and at the last lines of that worker's log.",
        "verl#275, #472",
    ),
)
