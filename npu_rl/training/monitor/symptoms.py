"""Known symptoms in logs, with cause, hint, and the issue thread or source file that documents them."""

from __future__ import annotations

import re

from npu_rl.training.monitor.loss_symptoms import ADDRESS, DEAD_PROCESSES, GONE_RANK_HINT, LOST_NODES
from npu_rl.training.monitor.symptom import symptom

# How Ray 2.42.1 ends a driver whose local Ray did not come up in time (core_worker.cc:496, _private/node.py:352).
RAY_NOT_STARTED = re.compile(
    r"Failed to register worker (?:\w+ )?to Raylet|The current node timed out during startup"
)

_TREE = (
    symptom(
        r"Two tensor dict must have identical batch size",
        "The HF rollout repeats each prompt n times although the trainer already did: this tree lacks the patchset "
        "verl/0.5.0.",
        "Run `npu-rl verify`, then `npu-rl setup --manifest quickstart`.",
        "verl/workers/rollout/hf_rollout.py@0.5.0",
        "RuntimeError: Two tensor dict must have identical batch size. Got torch.Size([8]) and torch.Size([32])",
    ),
    symptom(
        r"MLA is not supported with Tensor Parallelism",
        "MindSpeed at this pin does not support multi-head latent attention with tensor parallelism.",
        "Set actor.parallel.tensor to 1, and shard the model with actor.parallel.pipeline and actor.parallel.expert.",
        "MindSpeed@7ff818c4",
        "AssertionError: MLA is not supported with Tensor Parallelism yet,     use Expert Parallelism and Pipeline "
        "Parallelism for better performance.",
    ),
    symptom(
        r"argument 'k_channels'",
        "Megatron-core built standard attention for a model with latent attention, because its key is not set.",
        "Set actor.transformer.multi_latent_attention to true (MindSpeed's own key has another name).",
        "megatron/core@0.12.1",
        "TypeError: DotProductAttention.__init__() got an unexpected keyword argument 'k_channels' when instantiating "
        "DotProductAttention",
    ),
    symptom(
        r"args is not initialized",
        "megatron.training is importable, so MindSpeed reads its global arguments, which are not initialized.",
        "Keep only megatron/core on PYTHONPATH; `npu-rl verify` lists other files in the tree.",
        "MindSpeed@7ff818c4",
        "AssertionError: args is not initialized.",
    ),
    symptom(
        r"getenv\(.VLLM_ENABLE_FIX_ROUTE.\)",
        "vllm-ascend at this pin reads VLLM_ENABLE_FIX_ROUTE without a default.",
        "Set env.VLLM_ENABLE_FIX_ROUTE to 0.",
        "vllm_ascend/ops/fused_moe.py@f20869ef",
        'if int(os.getenv("VLLM_ENABLE_FIX_ROUTE")) == 1:',
    ),
    symptom(
        r"Key '[^']+' is not in struct|Could not override '[^']+'|ConfigAttributeError",
        "The trainer's configuration at this pin does not have a key that the command line sets.",
        "Run `npu-rl recipes check RECIPE`, which suggests the closest key.",
        "verl/trainer/config@0.5.0",
        "Key 'rolout' is not in struct",
    ),
    symptom(
        r"InvalidVersion: |Invalid vllm version",
        "vLLM installed from source has no valid version number.",
        "Set env.VLLM_VERSION to the release in the tree, such as 0.9.1.",
        "vllm-ascend FAQ 14, vllm_ascend/utils.py@0.9.1",
        "ValueError: Invalid vllm version dev found. A dev version of vllm is installed probably. Set the environment "
        "variable VLLM_VERSION to control it by hand. And please make sure the value follows the format of x.y.z.",
    ),
    symptom(
        r"Failed to compile the C\+\+ dataset helper functions",
        "Megatron compiles helpers for its datasets when it starts; make, g++ or pybind11 is missing.",
        "Add the patch nothing-compiled-in-the-tree, as the bundled manifests do: compiled files change a locked tree.",
        "megatron/core/datasets/utils.py@0.12.1",
        "Failed to compile the C++ dataset helper functions",
    ),
)
_PACKAGES = (
    symptom(
        r"libatb\.so|_register_atb_extensions",
        "NNAL (ATB) is not installed, or its environment script was not sourced.",
        "Run `source /usr/local/Ascend/nnal/atb/set_env.sh` in the shell that runs npu-rl.",
        "vllm-ascend#152, #2727",
        "ImportError: libatb.so: cannot open shared object file: No such file or directory",
    ),
    symptom(
        r"lib(?:ascend_hal|hccl|ascendcl)\.so: cannot open shared object",
        "The Ascend driver or CANN is not in the library path, or is not mounted into the container.",
        "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh`; in a container, mount /usr/local/Ascend/driver.",
        "vllm-ascend#262, #1440",
        "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
    ),
    symptom(
        r"camem allocator is not available",
        "vllm-ascend's compiled extension, which its sleep mode needs, is missing.",
        "If the tree has it, enable adaptations.rollout-offload, which does not use sleep mode; otherwise set "
        "rollout.free_cache to false, and read what `npu-rl plan` reports as stale-prefix-cache.",
        "vllm-ascend#556, #3998",
        "AssertionError: camem allocator is not available",
    ),
    symptom(
        r"_ARRAY_API not found|numpy\.core\.multiarray failed to import|numpy\.dtype size changed",
        "A package was built for another major version of numpy.",
        "Install numpy 1.26 in the training environment: `python -m pip install --no-deps numpy==1.26.4`.",
        "verl#5123",
        "ImportError: numpy.core.multiarray failed to import",
    ),
    symptom(
        # Not vllm._C or vllm._version, which only a build makes and vLLM does without.
        r"No module named '(?:torch_npu|vllm|vllm_ascend|mindspeed|megatron|tensordict|transformers)(?:\.(?!_)\w+)*'",
        "The training interpreter lacks a package.",
        "Install the stack's packages with `npu-rl setup --install` and the options of your setup, or pass an "
        "interpreter that has them: --python PATH.",
        "verl#5123",
        "ModuleNotFoundError: No module named 'torch_npu'",
    ),
)
_RESOURCES = (
    symptom(
        r"Total available GPUs \S+ is less than total desired GPUs",
        "Ray has fewer devices than the recipe needs; it counts NPUs only as the resource `NPU`.",
        "Compare cluster.nodes and cluster.dies with `ray status`. `npu-rl train RECIPE --dry-run` writes head.sh and "
        "worker.sh, which start Ray with the resource `NPU`.",
        "ray#55137, verl#6741",
        "ValueError: Total available GPUs 8.0 is less than total desired GPUs 16",
    ),
    symptom(
        r"No available node types can fulfill resource request|cannot be scheduled right now",
        "Ray is waiting for a resource that no node has.",
        "Compare `ray status` with cluster.nodes and cluster.dies.",
        "verl#3583, rllm#35",
        "(autoscaler +34s) Error: No available node types can fulfill resource request defaultdict(<class 'float'>, "
        "{'CPU': 8.0, 'GPU': 8.0}). Add suitable node types to this cluster to resolve this issue.",
    ),
    symptom(
        r"Error setting ASCEND_RT_VISIBLE_DEVICES",
        "Ray and vLLM both set the visible devices, with data parallelism over several nodes.",
        "Set env.RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES to 1; on several nodes, also in the shell that "
        "starts Ray.",
        "vllm-ascend#2879",
        'Exception: Error setting ASCEND_RT_VISIBLE_DEVICES: local range: [8, 12) base value: "0,1,2,3,4,5,6,7"',
    ),
    symptom(
        r"node running low on memory|exceeds the memory usage threshold|ray\.exceptions\.OutOfMemoryError"
        r"|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
        "The node ran out of host memory, and Ray killed a worker.",
        "Lower data.batch, or offload less to host memory: offload.optimizer, offload.parameters and "
        "offload.reference. `npu-rl plan RECIPE` shows the estimate.",
        "verl#2950, #3453",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
    symptom(
        r"NPU out of memory|CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "A device ran out of memory.",
        "Lower rollout.memory_share, rollout.log_prob_micro_batch or actor.micro_batch; or set offload.parameters, "
        "offload.gradients and offload.optimizer to true.",
        "vllm-ascend#977, #19",
        "RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB total capacity; 10.24 GiB "
        "already allocated; 10.24 GiB current active; 19.79 MiB free; 10.65 GiB reserved in total by PyTorch)",
    ),
    symptom(
        r"Memory usage increased after sleeping",
        "Another process allocated device memory while vLLM entered sleep mode.",
        "If the tree has it, enable adaptations.rollout-offload, which does not use sleep mode; otherwise set "
        "rollout.free_cache to false, and read what `npu-rl plan` reports as stale-prefix-cache.",
        "verl#3902",
        "AssertionError: Memory usage increased after sleeping.",
    ),
    symptom(
        r"[Ee]xpandable[_ ]segments[^\n]*(?:not supported|conflict|memory pool)",
        "vLLM's sleep mode does not work with expandable segments.",
        "Set the variable that enables them, env.PYTORCH_NPU_ALLOC_CONF or env.PYTORCH_CUDA_ALLOC_CONF, to "
        "expandable_segments:False; or, if the tree has it, enable adaptations.rollout-offload.",
        "ms-swift#6636, vllm#14189, vllm_ascend/device_allocator/camem.py@0.9.1",
        "AssertionError: Expandable segments are not compatible with memory pool. Please track "
        "https://github.com/pytorch/pytorch/issues/147851 for the latest updates.",
    ),
    symptom(
        r"No space left on device",
        "A disk or /dev/shm, where Ray keeps its objects, is full.",
        "Check the run folder, the temporary folder and /dev/shm with `df -h`.",
        "verl#275",
        "OSError: [Errno 28] No space left on device",
    ),
)
NETWORK = (
    symptom(
        r"EI0001|for environment variable \S+ is invalid",
        "HCCL rejected the value of an environment variable; this line names it and the valid values.",
        "Correct it under env; `npu-rl recipes check RECIPE` checks HCCL's variables.",
        "hccl/docs/zh/user_guide/fault_diagnosis/env_config_error_EI0001.md@09300b70",
        "[PID:3729526]2025-10-23-17:30:40.098.984Config_Error_Invalid_Environment_Variable(EI0001): Value 1000 for "
        "environment variable HCCL_RDMA_SL is invalid. Expected value : range[0, 7].",
    ),
    symptom(
        r"EI0002|Notify register times out",
        "HCCL timeout: a device waited in a collective operation for another rank, which did not come within "
        "HCCL_EXEC_TIMEOUT (1800 s by default). That rank has failed, hangs, or is far behind.",
        "Find the rank whose log has an earlier error or no EI0002, and read that log. Set env.HCCL_EXEC_TIMEOUT "
        "higher only if a phase really takes that long.",
        "vllm-ascend#3413, vllm-ascend#1443",
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: "
        "The Notify register has not received the Notify record from remote rank: [24].",
    ),
    symptom(
        r"EI0006|Getting socket times out",
        "A device timed out waiting for another to connect: a rank is stuck, dead or late.",
        "Find the rank whose log does not have this error, and read that log; env.HCCL_CONNECT_TIMEOUT sets the "
        "timeout in seconds.",
        "vllm-ascend#486",
        "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send "
        "the data in time. Please check the reason for the rank being stuck",
    ),
    symptom(
        r"EI0009|Transport init error",
        "A link between two devices could not be established.",
        "Read the log of the other rank; check cluster.interface and the device network (`hccn_tool -i N -link -g`).",
        "vllm-ascend#3162",
        "EI0009: [PID: 2225827] 2025-09-24-20:59:48.119.066 Transport init error. Reason: [Create][DestLink]Create "
        "Dest error! createLink para:rank[1]-localUserrank[1]-localIpAddr[172.16.0.114], "
        "dst_rank[0]-remoteUserrank[0]-remote_ip_addr[172.16.0.114]",
    ),
    symptom(
        r"EJ0001|Failed to initialize the HCCP process",
        "Processes of an earlier run still use the devices.",
        "Stop them (`npu-smi info` lists them), wait ten seconds, and start again.",
        "verl#332, vllm-ascend#2546",
        "EJ0001: [PID: 35532] 2025-08-26-04:05:21.569.071 Failed to initialize the HCCP process. Reason: Maybe the "
        "last training process is running.",
    ),
    symptom(
        r"/\d+ clients joined|client socket has timed out",
        "Some processes did not reach rank 0: the network interface or address is wrong, or a node is missing.",
        "Set cluster.interface to the network interface that reaches the other nodes.",
        "vllm-ascend#167, verl#849",
        "[E331 20:50:12.688969421 socket.cpp:1011] [c10d] The client socket has timed out after 1800000ms while trying "
        "to connect to (10.123.x.x, 38321)",
    ),
    symptom(
        # What the other ranks print when rank 0, which has torch's store, is gone. HCCL has no such line of its own.
        # Torch up to 2.9 writes "failed to recv".
        rf"remote=\[(?:::ffff:)?{ADDRESS}\]:\d+\): "
        r"(?:Connection reset by peer|Broken pipe|[Ff]ailed to (?:recv|send), \w+ 0 bytes)",
        "The process of another rank on {address} is gone: the process or its node died, or the network failed.",
        GONE_RANK_HINT,
        "torch/csrc/distributed/c10d/TCPStore.cpp of torch@2.13.0",
        "[c10d] recvValue failed on SocketImpl(fd=5, addr=[node1]:4444, remote=[10.0.0.3]:29500): Connection reset by "
        "peer",
    ),
    symptom(
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)",
        "A collective operation timed out: a rank is slow, stuck or dead.",
        "Find the rank that did not reach it; raise overrides.actor_rollout_ref.nccl_timeout (seconds) if a step can "
        "take that long.",
        "verl#607, LlamaFactory#6269",
        "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, "
        "Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
    ),
    symptom(
        r"Address already in use|EADDRINUSE",
        "A port is already in use, often by an earlier run.",
        "Find the process with `ss -ltnp`, and stop what is left of the earlier run.",
        "vllm-ascend#1955",
        "OSError: [Errno 98] Address already in use",
    ),
    symptom(
        r"Failed to register worker (?:\w+ )?to Raylet",
        "The raylet of that node exited before a process could register with it: often one of its agents did not start "
        "in time on a busy machine, or host memory ran out.",
        "Read the end of that node's raylet.out (in workers/, or in /tmp/ray/session_latest/logs of the node) for the "
        "reason; wait until the machine is less busy, and start again.",
        "ray#21479, smallpond#17",
        "[2025-03-03 13:03:38,823 E 53766 2515875] core_worker.cc:499: Failed to register worker to Raylet: IOError: "
        "[RayletClient] Unable to register worker with raylet. Failed to read data from the socket: End of file "
        "worker_id=01000000ffffffffffffffffffffffffffffffffffffffffffffffff",
    ),
)
# In order of precedence: of several symptoms in a log, the first is reported. A lost node's other reports, of dead
# workers, look like want of memory, so it comes before resources; the last ones only report another failure.
SYMPTOM_GROUPS = {
    "The tree and its settings": _TREE,
    "Packages and libraries of the host": _PACKAGES,
    "A node that is gone": LOST_NODES,
    "Ray and resources": _RESOURCES,
    "The network": NETWORK,
    "A process that died": DEAD_PROCESSES,
}
SYMPTOMS = tuple(one for group in SYMPTOM_GROUPS.values() for one in group)
