"""The command `npu-rl doctor`."""

from __future__ import annotations

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, ManifestOrWorkspace, Python, RecipeIfNamed
from npu_rl.cli.show import print_report, tell_next


@examples(
    "npu-rl doctor                      # what this host has",
    "npu-rl doctor --recipe deepseek-r1-zero-256die --python P",
)
def doctor(
    manifest: ManifestOrWorkspace = None,
    recipe: RecipeIfNamed = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Check this host before a run.

    It compares driver, CANN, torch, devices, limits and network interfaces with a recipe and its manifest. Nothing is
    written, and no device is opened. The exit code is 3 if a line is red.
    """
    from npu_rl.training.run.host_check import examine

    report = examine(manifest, recipe, python)
    print_report(report, report.text, as_json=json)
    if report.red:
        raise SystemExit(3)
    if recipe is not None and not json:
        tell_next("train", recipe, "--dry-run")
