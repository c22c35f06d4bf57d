"""The actual and the expected state of this host: the lines of `npu-rl doctor`."""
