"""What this host is and what it should be: the lines of `npu-rl doctor`."""
