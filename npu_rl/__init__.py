"""npu-rl: pinned, merged, patched and proven source trees for RL post-training on Ascend NPUs."""

__version__ = "0.2.0"
