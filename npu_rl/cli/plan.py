"""npu-rl plan"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from npu_rl.cli import judged
from npu_rl.cli.show import print_json, say_text


def run(
    name: str,
    overrides: Sequence[str],
    workspace: Path | None,
    die_gb: float | None,
    host_gb: float | None,
    disk_gb: float | None,
    storage_gbs: float | None,
    every_rule: bool,
    as_json: bool,
) -> None:
    from npu_rl.errors import UsageError
    from npu_rl.judgement.judge import judge
    from npu_rl.judgement.plan_report import plan_json, plan_text
    from npu_rl.masking import masked_text
    from npu_rl.sizing.machine import Machine

    given = {
        "--die-memory-gb": die_gb,
        "--host-memory-gb": host_gb,
        "--disk-gb": disk_gb,
        "--storage-gbs": storage_gbs,
    }
    for option, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{option} needs a number above 0, not {value:g}")
    machine = Machine(_bytes(die_gb), _bytes(host_gb), _bytes(disk_gb))
    judgement = judge(judged.load(name, overrides, as_json), judged.tree_of(workspace), machine)
    speed = None if storage_gbs is None else storage_gbs * 1e9
    if as_json:
        print_json({**plan_json(judgement, speed), "findings": judged.rows(judgement.findings)})
    else:
        say_text(masked_text(plan_text(judgement, speed, every_rule)))
    if not judgement.ok:
        raise SystemExit(1)


def _bytes(gb: float | None) -> int | None:
    return None if gb is None else int(gb * 1e9)
