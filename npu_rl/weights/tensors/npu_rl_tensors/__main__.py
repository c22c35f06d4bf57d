"""Start a worker: `python -m npu_rl_tensors`."""

from .worker import main

main()
