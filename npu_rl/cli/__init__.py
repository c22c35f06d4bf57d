"""The command line: parse, call, print. Heavy imports wait inside the commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run npu-rl. Exit codes: 0 done, 1 failed, 2 usage, 3 the workspace or host is not what it should be."""
    from npu_rl.cli.app import app
    from npu_rl.errors import NpuRlError

    try:
        app()
    except NpuRlError as error:
        sys.stdout.flush()
        print(f"npu-rl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("npu-rl: stopped. Nothing is half done; run the same command to go on.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: not our failure, and nobody to tell
        raise SystemExit(1) from None
