"""`npu-rl setup --build`: the build commands of a manifest, and their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_rl.cli.show import amount, say, tell

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.workspace.builds.build_components import BuildOutcome
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def built_components(paths: WorkspacePaths, lock: Lock, python: str | None) -> list[BuildOutcome]:
    """Run the build commands of a lock."""
    from npu_rl.training.run.interpreter import probe
    from npu_rl.workspace.builds.build_components import Builder, build_components
    from npu_rl.workspace.folder.chosen_interpreter import choose

    if not any(component.build for component in lock.components.values()):
        return []
    found = probe(choose(python, paths), ())
    builder = Builder(found.path, ".".join(map(str, found.version)))
    return build_components(paths, lock, builder, tell)


def built_json(built: list[BuildOutcome] | None) -> dict[str, Any]:
    """Return the builds' part of the JSON document; empty without --build."""
    return {} if built is None else {"built": [_outcome_json(one) for one in built]}


def _outcome_json(outcome: BuildOutcome) -> dict[str, object]:
    products = [{"path": one.path, "sha256": one.sha256, "size": one.size} for one in outcome.products]
    return {"component": outcome.component, "already": outcome.already, "products": products}


def say_built(lock: Lock, built: list[BuildOutcome] | None) -> None:
    """Print the built components; nothing without --build."""
    if built is None:
        return
    for outcome in built:
        how = "built already" if outcome.already else "built"
        for product in outcome.products:
            say(
                f"  {how}  {product.path}  ({outcome.component}, {amount(product.size)}, {product.sha256[:12]})"
            )
    if not built:
        say(f"{lock.manifest} has no build commands.")
