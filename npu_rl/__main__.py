"""`python -m npu_rl`."""

import sys

if not __package__:  # started as a file, by npu_rl.cli.isolation
    sys.path[0] = __file__.rpartition("/npu_rl/")[0]

from npu_rl.cli import program

if __name__ == "__main__":
    program()
