"""`npu-rl setup --build`: the build commands of a manifest, and their output."""

from __future__ import annotations

from npu_rl.cli.show import amount, say, tell
from npu_rl.common.interpreter import read_interpreter
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.builds.build_components import Builder, BuildOutcome, build_components
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def built_components(paths: WorkspacePaths, lock: Lock, python: str | None) -> list[BuildOutcome]:
    """Run the build commands of a lock."""
    if not any(component.build for component in lock.components.values()):
        return []
    found = read_interpreter(choose(python, paths))
    builder = Builder(found.path, found.version)
    return build_components(paths, lock, builder, tell)


def built_json(built: list[BuildOutcome]) -> list[dict[str, object]]:
    """Return the builds' part of the JSON document."""
    return [
        {
            "component": outcome.component,
            "already": outcome.already,
            "products": [
                {"path": one.path, "sha256": one.sha256, "size": one.size} for one in outcome.products
            ],
        }
        for outcome in built
    ]


def say_built(lock: Lock, built: list[BuildOutcome]) -> None:
    """Print the built components."""
    for outcome in built:
        how = "built already" if outcome.already else "built"
        for one in outcome.products:
            say(f"  {how}  {one.path}  ({outcome.component}, {amount(one.size)}, {one.sha256[:12]})")
    if not built:
        say(f"{lock.manifest} has no build commands.")
