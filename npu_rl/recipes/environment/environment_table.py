"""Environment variables that are read outside the code tree: by CANN, HCCL, torch_npu, Ray, Hydra and npu-rl.

Ranges and words are from the manuals named in `SOURCES`. A newer version may accept more, so a recipe may overrule
these findings. Names without an entry in `TYPES` only serve to recognise misspelt names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from npu_rl.common.environment_variables import reserved
from npu_rl.recipes.environment.environment_values import (
    ValueCheck,
    compared_switch,
    key_value_pairs,
    number,
    on_if_set,
    one_of,
    switch,
    whole_number,
)

SOURCES: Mapping[str, str] = {
    "HCCL_": "HCCL user guide, docs/zh/user_guide/hccl_env @ hicann/hccl 09300b70",
    "HCOMM_": "HCCL user guide, docs/zh/user_guide/hccl_env @ hicann/hccl 09300b70",
    "ASCEND_": "CANN 8.2.RC1, environment variable reference",
    "RAY_": "ray 2.42.1, _private/ray_constants.py",
    "HYDRA_": "hydra 1.3, _internal/utils.py:222",
    "CUDA_DEVICE_MAX_CONNECTIONS": "CUDA programming guide; Megatron-core compares it with 1",
    "NPU_RL_": "npu_rl_runtime",
    "": "torch_npu, docs/zh/environment_variable_reference @ Ascend/pytorch 05c6215c",
}


def _allocator_settings() -> ValueCheck:
    def flag(text: str) -> bool:
        return text in ("True", "False")

    def digits(text: str) -> bool:
        return text.isdecimal()

    def share(text: str) -> bool:
        return bool(re.fullmatch(r"0?\.[0-9]+|[01](\.[0-9]*)?", text))

    def anything(text: str) -> bool:
        return bool(text)

    def conflict(given: dict[str, str]) -> str:
        """Return why the settings conflict, "" if they don't.

        torch_npu asserts it (NPUAllocatorConfig.cpp @ Ascend/pytorch 00ebc60c).
        """
        limits = [key for key in ("max_split_size_mb", "garbage_collection_threshold") if key in given]
        if given.get("expandable_segments") == "True" and limits:
            return f"has {limits[0]}, which can't be with expandable_segments:True"
        return ""

    return key_value_pairs(
        {
            "max_split_size_mb": digits,
            "garbage_collection_threshold": share,
            "expandable_segments": flag,
            "base_addr_aligned_kb": lambda text: text.isdecimal() and int(text) <= 16,
            "page_size": lambda text: text == "1g",
            "segment_size_mb": lambda text: text.isdecimal() and 20 <= int(text) <= 512,
            "large_segment_size_mb": digits,
            "roundup_power2_divisions": anything,
            "multi_stream_lazy_reclaim": flag,
            "pin_memory_expandable_segments": flag,
            "pinned_mem_register": flag,
            "pinned_use_background_threads": flag,
            "pinned_reserve_segment_size_mb": digits,
            "per_process_memory_fraction": share,
            "release_lock_on_npumalloc": flag,
        },
        conflict,
    )


def _flag(on: set[str]) -> ValueCheck:
    values = compared_switch(frozenset(on), frozenset(), str.lower)
    assert values is not None
    return values


_TRUTH = ("true", "false")

TYPES: Mapping[str, ValueCheck] = {
    # -- HCCL: any other value is error EI0001 at the first communicator
    "HCCL_BUFFSIZE": whole_number(1, None, "MB"),
    "HCCL_CONNECT_TIMEOUT": whole_number(120, 7200, "seconds"),
    "HCCL_EXEC_TIMEOUT": number(0, 2147483647, "seconds"),
    "HCCL_IF_BASE_PORT": whole_number(1024, 65520),
    "HCCL_OP_EXPANSION_MODE": one_of(
        "AIV", "AI_CPU", "HOST", "HOST_TS", "AICPU_TS", "AICPU_CacheDisable", "CCU_MS", "CCU_SCHED"
    ),
    "HCCL_DETERMINISTIC": one_of(*_TRUTH, "strict", fold=True),
    "HCCL_INTRA_PCIE_ENABLE": switch(),
    "HCCL_INTRA_ROCE_ENABLE": switch(),
    "HCCL_INTER_HCCS_DISABLE": one_of("TRUE", "FALSE", fold=True),
    "HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT": one_of("TRUE", "FALSE", fold=True),
    "HCCL_WHITELIST_DISABLE": switch(),
    "HCCL_DIAGNOSE_ENABLE": switch(),
    "HCCL_ENTRY_LOG_ENABLE": switch(),
    "HCCL_SOCKET_FAMILY": one_of("AF_INET", "AF_INET6"),
    "HCCL_RDMA_TC": whole_number(0, 255),
    "HCCL_RDMA_SL": whole_number(0, 7),
    "HCCL_RDMA_TIMEOUT": whole_number(0, 31),
    "HCCL_RDMA_RETRY_CNT": whole_number(1, 7),
    "HCCL_RDMA_QPS_PER_CONNECTION": whole_number(1, 32),
    "HCCL_MULTI_QP_THRESHOLD": whole_number(1, 8192, "KB"),
    # -- torch_npu
    "TASK_QUEUE_ENABLE": whole_number(0, 2),
    "PYTORCH_NPU_ALLOC_CONF": _allocator_settings(),
    "ASCEND_LAUNCH_BLOCKING": switch(),
    "COMBINED_ENABLE": switch(),
    "PER_STREAM_QUEUE": switch(),
    "MULTI_STREAM_MEMORY_REUSE": whole_number(0, 3),
    "INF_NAN_MODE_ENABLE": switch(),
    "INF_NAN_MODE_FORCE_DISABLE": switch(),
    "HCCL_ASYNC_ERROR_HANDLING": whole_number(0),
    "HCCL_DESYNC_DEBUG": whole_number(0),
    "HCCL_EVENT_TIMEOUT": whole_number(0, None, "seconds"),
    "P2P_HCCL_BUFFSIZE": whole_number(0, None, "MB"),
    "ACL_DEVICE_SYNC_TIMEOUT": whole_number(0, None, "seconds"),
    "STREAMS_PER_DEVICE": whole_number(1),
    # -- CANN's logs
    "ASCEND_GLOBAL_LOG_LEVEL": whole_number(0, 4),
    "ASCEND_GLOBAL_EVENT_ENABLE": switch(),
    "ASCEND_SLOG_PRINT_TO_STDOUT": switch(),
    "ASCEND_HOST_LOG_FILE_NUM": whole_number(1, 1000),
    # -- Ray, Hydra, the device queues
    "RAY_DEDUP_LOGS": _flag({"1", "true"}),
    "RAY_DEDUP_LOGS_AGG_WINDOW_S": whole_number(0, None, "seconds"),
    "RAY_USAGE_STATS_ENABLED": switch(),
    "RAY_memory_monitor_refresh_ms": whole_number(0, None, "ms"),
    "RAY_memory_usage_threshold": number(0, 1),
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": on_if_set(),
    "HYDRA_FULL_ERROR": _flag({"1"}),
    "CUDA_DEVICE_MAX_CONNECTIONS": whole_number(1, 32),
    "OMP_NUM_THREADS": whole_number(1),
    "TOKENIZERS_PARALLELISM": one_of(*_TRUTH, "1", "0", "on", "off", fold=True),
    # -- the runtime of our patches
    "NPU_RL_DEEPSCALER_WORKERS": whole_number(1),
    "NPU_RL_WEIGHT_TRANSFER_SECONDS": number(0.001, 1e6),
    "NPU_RL_DEEPSCALER_VARIANT": one_of("accuracy", "format", certain=True),
}
"""The check of the values of each variable."""

_NAMES = """
HCCL_ALGO HCCL_ALG_MULTIPLE_DIMENSION_SPLIT_RATIO HCCL_DEBUG_CONFIG HCCL_DFS_CONFIG HCCL_HOST_SOCKET_PORT_RANGE
HCCL_NPU_SOCKET_PORT_RANGE HCCL_IF_IP HCCL_SOCKET_IFNAME HCCL_LOGIC_SUPERPOD_ID HCCL_OP_RETRY_ENABLE
HCCL_OP_RETRY_PARAMS HCCL_RDMA_QP_PORT_CONFIG_PATH HCCL_WHITELIST_FILE HCCL_BLOCKING_WAIT HCCL_SO_PATH
HCCL_CONCURRENT_ENABLE HCCL_OP_BASE_FFTS_MODE_ENABLE HCCL_HOST_RDMA_UDP_PORTS_LIST HCCL_UB_MULTI_CHANNEL_NUM
HCOMM_DEBUG_CONFIG HCOMM_TA_CTP_UB_TIMEOUT HCOMM_TA_RTP_UBOE_TIMEOUT HCOMM_TA_RTP_UB_TIMEOUT
TORCH_HCCL_BLOCKING_WAIT TORCH_HCCL_ZERO_COPY TORCH_NPU_USE_COMPATIBLE_IMPL TORCH_NPU_DISABLED_WARNING
TORCH_NPU_COMPACT_ERROR_OUTPUT TORCH_NPU_LOGS TORCH_NPU_LOGS_FILTER TORCH_NPU_DEVICE_CAPABILITY TORCH_NPUGRAPH_GC
TORCH_TRANSFER_TO_NPU PYTORCH_NO_NPU_MEMORY_CACHING PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF OOM_SNAPSHOT_ENABLE
OOM_SNAPSHOT_PATH RANK_TABLE_FILE NPU_ASD_ENABLE NPU_ASD_UPPER_THRESH NPU_ASD_SIGMA_THRESH NPU_ASD_CONFIG
CPU_AFFINITY_CONF PROF_CONFIG_PATH KINETO_USE_DAEMON ACL_OP_COMPILER_CACHE_DIR ACL_OP_COMPILER_CACHE_MODE
ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME ASCEND_OPP_PATH
ASCEND_AICPU_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_CUSTOM_PATH ASCEND_WORK_PATH ASCEND_CACHE_PATH ASCEND_DEVICE_ID
ASCEND_PROCESS_LOG_PATH ASCEND_MODULE_LOG_LEVEL ASCEND_LOG_DEVICE_FLUSH_TIMEOUT ASCEND_LOG_SYNC_SAVE
ASCEND_MAX_OP_CACHE_SIZE ASCEND_REMAIN_CACHE_SIZE_RATIO ASCEND_COREDUMP_SIGNAL ASCEND_TENSOR_COMPILER_INCLUDE
ASCEND_BUFFER_POOL ASCEND_TRANSPORT_PRINT ASCEND_AGGREGATE_ENABLE ASCEND_A3_ENABLE ASCEND_CONNECT_TIMEOUT
ASCEND_TRANSFER_TIMEOUT ASCEND_ENABLE_USE_FABRIC_MEM ASCEND_AUTO_CONNECT ASCEND_RDMA_TC ASCEND_RDMA_SL
ATB_HOME_PATH LCAL_COMM_ID LCCL_DETERMINISTIC LCCL_PARALLEL
LD_PRELOAD MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_ MALLOC_ARENA_MAX HF_HUB_OFFLINE HF_ENDPOINT HF_HUB_CACHE
TRANSFORMERS_OFFLINE WANDB_MODE WANDB_API_KEY WANDB_BASE_URL WANDB_DIR SWANLAB_API_KEY SWANLAB_MODE TENSORBOARD_DIR
GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME MASTER_ADDR MASTER_PORT WORLD_SIZE
RAY_ADDRESS RAY_TMPDIR RAY_TEMPDIR RAY_LOG_TO_STDERR RAY_LOG_TO_DRIVER RAY_COLOR_PREFIX RAY_BACKEND_LOG_LEVEL
RAY_NAMESPACE RAY_DEDUP_LOGS_ALLOW_REGEX RAY_DEDUP_LOGS_SKIP_REGEX RAY_DEBUG RAY_DEBUG_POST_MORTEM RAY_PROFILING
RAY_RUNTIME_ENV_HOOK RAY_OVERRIDE_JOB_RUNTIME_ENV RAY_DISABLE_MEMORY_MONITOR RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE
RAY_TASK_MAX_RETRIES
RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES RAY_ROTATION_MAX_BYTES
RAY_worker_register_timeout_seconds RAY_raylet_start_wait_time_s RAY_agent_register_timeout_ms RAY_worker_niceness
"""

NAMES = frozenset({*TYPES, *_NAMES.split()})
"""All names that are known without a tree."""

OWNED: Mapping[str, str] = reserved()
"""npu-rl's variables that a recipe can't set, each with what to do instead."""

PREFIXES_OF_TREES = ("VLLM_", "VERL_", "NPU_RL_")
"""Prefixes of variables that only the code tree reads."""


def source_of(name: str) -> str:
    """Return the manual or code that lists the accepted values of a variable in `TYPES`."""
    return next(text for prefix, text in SOURCES.items() if name.startswith(prefix))
