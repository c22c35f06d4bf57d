"""Origin of a file in the code tree: its component, and its path there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from npu_rl.stack.compose.assemble import upstream_paths
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.workspace.verification.verify import owner


def upstream_path(component: LockedComponent, path: str) -> str | None:
    """Return the component path of a file in the code tree, by the closest take above it, or None."""
    nearest_first = sorted(component.take, key=lambda take: 0 if take.to == "." else -len(take.to))
    return next(iter(upstream_paths(replace(component, take=tuple(nearest_first)), path)), None)


def origins_comment(lock: Lock, paths: Iterable[str]) -> bytes:
    """Return a comment for a patch of the code tree, with the component and path of each file."""
    lines = [
        "# Paths are those of the code tree: list this patch under `tree: {patches: [...]}` of the manifest.",
        "# For a patch with the paths of one component: npu-rl diff --component NAME",
    ]
    for path in sorted(paths):
        name = owner(lock, "code", path)
        component = lock.components.get(name or "")
        own = upstream_path(component, path) if component is not None else None
        lines.append(
            f"# {_line(path)}: " + (f"{name}, {_line(own)}" if own else name or "not from a component")
        )
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _line(path: str) -> str:
    return path if path.isprintable() else ascii(path)
