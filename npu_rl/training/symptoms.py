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
        "Set tensor parallelism of actor and reference to 1 and use pipeline and expert parallelism.",
        "MindSpeed@7ff818c4",
    ),
    _row(
        r"argument 'k_channels'",
        "Megatron-core built plain attention for a model with latent attention: its own key is not set.",
        "Add actor.megatron.override_transformer_config.multi_latent_attention=True; MindSpeed's key has another name.",
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
        "Set VLLM_ENABLE_FIX_ROUTE=0 in the recipe's env.",
        "vllm_ascend/ops/fused_moe.py@f20869ef",
    ),
    _row(
        r"Key '[^']+' is not in struct|Could not override '[^']+'|ConfigAttributeError",
        "A key on the command line is not in the trainer's configuration at this pin.",
        "Run `npu-rl recipes check`; it names the nearest right key.",
        "verl/trainer/config@0.5.0",
    ),
    _row(
        r"InvalidVersion: ",
        "vLLM installed from source has no version that can be compared.",
        "Set VLLM_VERSION=0.9.1 (the release the tree holds) in the recipe's env.",
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
        "Build vllm-ascend with COMPILE_CUSTOM_KERNELS=1, or set rollout.free_cache_engine=False.",
        "vllm-ascend#556, #3998",
    ),
    _row(
        r"_ARRAY_API not found|numpy\.core\.multiarray failed to import|numpy\.dtype size changed",
        "A package was built for another major version of numpy.",
        "Install the versions that the `rehearsal` extra pins (numpy below 2).",
        "verl#5123",
    ),
    _row(
        # Not vllm._C or vllm._version, which only a build makes and vLLM does without.
        r"No module named '(?:torch_npu|vllm|vllm_ascend|mindspeed|megatron|tensordict|transformers)(?:\.(?!_)\w+)*'",
        "The training interpreter lacks a package.",
        "Choose another interpreter with --python, or install the package there.",
        "verl#5123",
    ),
    # -- Ray and resources
    _row(
        r"Total available GPUs \S+ is less than total desired GPUs",
        "Ray offers fewer devices than the recipe asks for; it counts NPUs only as the resource `NPU`.",
        "Check cluster.nodes and devices per node; start Ray with --resources='{\"NPU\": 16}' and trainer.device=npu.",
        "ray#55137, verl#6741",
    ),
    _row(
        r"No available node types can fulfill resource request|cannot be scheduled right now",
        "Ray waits for a resource that no node has.",
        "Compare `ray status` with the recipe's cluster section.",
        "verl#3583",
    ),
    _row(
        r"Error setting ASCEND_RT_VISIBLE_DEVICES",
        "Ray and vLLM both choose the visible devices, with data parallelism over several nodes.",
        "Set RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1 on every node before Ray starts.",
        "vllm-ascend#2879",
    ),
    _row(
        r"node running low on memory|exceeds the memory usage threshold|ray\.exceptions\.OutOfMemoryError",
        "The node ran out of main memory and Ray killed a worker.",
        "Fewer workers or a smaller batch; optimizer and parameter offload need main memory per die.",
        "verl#2950, #3453",
    ),
    _row(
        r"NPU out of memory|CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "A device ran out of memory.",
        "Lower rollout.gpu_memory_utilization or the micro batch, or switch on offload of parameters and gradients.",
        "vllm-ascend#977",
    ),
    _row(
        r"Memory usage increased after sleeping",
        "Something else allocated device memory while vLLM went to sleep.",
        "Use the manual offload switch of the recipe in place of vLLM's sleep mode.",
        "verl#3902",
    ),
    _row(
        r"expandable_segments[^\n]*(?:not supported|conflict|memory pool)",
        "vLLM's sleep mode and expandable segments exclude each other.",
        "Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:False.",
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
        r"EI0006|Getting socket times out",
        "A device waited in vain for another to connect: some rank is stuck or dead, or comes too late.",
        "Find the rank without this error, its log tells more; set the same HCCL_CONNECT_TIMEOUT on all nodes.",
        "vllm-ascend#486",
    ),
    _row(
        r"EI0009|Transport init error",
        "A link between two devices could not be made.",
        "Look at the other end's log; check HCCL_SOCKET_IFNAME and the devices' network (`hccn_tool -i N -link -g`).",
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
        "Set GLOO_SOCKET_IFNAME and HCCL_SOCKET_IFNAME to the interface that reaches the other nodes.",
        "vllm-ascend#167, verl#849",
    ),
    _row(
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)",
        "A collective waited longer than its limit: some rank is slow, stuck or dead.",
        "Find the rank that did not get there; raise actor_rollout_ref.nccl_timeout if a step may take so long.",
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
