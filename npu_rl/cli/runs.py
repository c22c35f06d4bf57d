"""The group `npu-rl runs`."""

from __future__ import annotations

from npu_rl.cli.command_group import group

app = group(
    "Inspect, compare and stop recorded runs.",
    {
        "list": "runs_list:list_runs",
        "show": "runs_show:show",
        "compare": "runs_compare:compare",
        "stop": "runs_stop:stop",
    },
)
