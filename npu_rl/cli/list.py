"""npu-rl list"""

from __future__ import annotations

from npu_rl.bundled import bundled_manifests, data_root
from npu_rl.cli.show import print_json, say, say_text
from npu_rl.errors import LockError
from npu_rl.lock import lock_model


def run(as_json: bool, patches: bool) -> None:
    if patches:
        _patches(as_json)
    else:
        _manifests(as_json)


def _patches(as_json: bool) -> None:
    from npu_rl.patches.patch_table import patch_rows, patch_table

    rows = patch_rows(data_root() / "patchsets")
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        say_text(patch_table(rows))


def _manifests(as_json: bool) -> None:
    rows = []
    for name, path in bundled_manifests().items():
        try:
            lock = lock_model.read(lock_model.lock_path(path))
        except LockError:
            rows.append(
                {"name": name, "title": "(not locked)", "device": None, "tree": None, "path": str(path)}
            )
            continue
        rows.append(
            {"name": name, "title": lock.title, "device": lock.device, "tree": lock.tree, "path": str(path)}
        )
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(f"{row['name']:<24} {row['device'] or '-':<5} {(row['tree'] or '-')[:12]:<13} {row['title']}")
