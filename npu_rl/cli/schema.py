"""npu-rl schema"""

from __future__ import annotations

import sys


def run() -> None:
    from npu_rl.manifest.json_schema import export_schema

    sys.stdout.write(export_schema())
