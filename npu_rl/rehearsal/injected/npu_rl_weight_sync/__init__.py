"""Comparison of the rollout's tensors after a weight sync with the trainer's.

`sync_check` reads the trainer's own parameters, by tables of names that are npu-rl's own (`npu_rl_tensors.layouts`),
what the trainer sends, and the rollout's parameters; so it names the tensor and the side. Only `sync_check` knows
verl's sharding managers, and only `rollout_tensors` an engine.
"""
