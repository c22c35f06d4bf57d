"""`python -m npu_rl`."""

from npu_rl.cli import main

if __name__ == "__main__":
    main()
