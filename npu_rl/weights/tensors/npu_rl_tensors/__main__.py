"""Run tasks: `python -m npu_rl_tensors PROCESSES THREADS`."""

from .worker import main

if __name__ == "__main__":
    main()
