"""The state of this host and the expected one: the lines of `npu-rl doctor`."""
