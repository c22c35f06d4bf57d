"""The command `npu-rl manifests`."""

from __future__ import annotations

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json, NamedManifest

app = group(
    "List, show and check manifests.",
    {
        "list": "manifests:list_manifests",
        "show": "manifests:show",
        "check": "manifests:check",
        "schema": "manifests:schema",
    },
)


@examples(
    "npu-rl manifests list",
    "npu-rl manifests list --json   # with paths and whole tree ids",
    "npu-rl manifests list | grep cpu",
)
def list_manifests(json: Json = False) -> None:
    """List the bundled manifests."""
    from npu_rl.bundled import bundled_manifests
    from npu_rl.cli.show import print_json, say
    from npu_rl.errors import LockError
    from npu_rl.git.objects import short
    from npu_rl.lock import lock_model

    rows = []
    for name, path in bundled_manifests().items():
        row = {"name": name, "title": "(not locked)", "device": None, "tree": None, "path": str(path)}
        try:
            lock = lock_model.read(lock_model.lock_path(path))
            row.update(title=lock.title, device=lock.device, tree=lock.tree)
        except LockError:
            pass
        rows.append(row)
    if json:
        print_json(rows)
        return
    for row in rows:
        say(f"{row['name']:<24} {row['device'] or '-':<5} {short(row['tree'] or '-'):<13} {row['title']}")


@examples(
    "npu-rl manifests show deepseek-r1-zero",
    "npu-rl manifests show quickstart --json",
    "npu-rl manifests show ./my-stack.yaml   # with my-stack.lock.json beside it",
)
def show(manifest: NamedManifest, json: Json = False) -> None:
    """Show what a manifest locks.

    Components with their pins, merges and patches, as the lock beside the manifest has them.
    """
    from npu_rl.cli.show import print_json, say, tell
    from npu_rl.lock import lock_model
    from npu_rl.manifest.manifest_kind import find_manifest
    from npu_rl.workspace.lock_summary import manifest_changed, stack_json, stack_lines

    path = find_manifest(manifest)
    lock = lock_model.read(lock_model.lock_path(path))
    if manifest_changed(lock, path):
        tell(f"note: {path.name} has changed since its lock was made; the lock is what is shown.")
    digest = lock_model.digest_of(lock)
    if json:
        print_json(
            {
                "manifest": lock.manifest,
                "title": lock.title,
                "device": lock.device,
                "path": str(path),
                "commit": lock.commit,
                "tree": lock.tree,
                "lock": digest,
                **stack_json(lock, {}),
            }
        )
        return
    say(f"{path}: {lock.manifest} ({lock.title})")
    say(f"  device    {lock.device}")
    say(f"  tree      {lock.tree}")
    say(f"  commit    {lock.commit}")
    say(f"  lock      {digest}")
    for line in stack_lines(lock):
        say(line)


@examples(
    "npu-rl manifests check ./my-stack.yaml",
    "npu-rl manifests check quickstart",
    "npu-rl manifests check ./my-stack.yaml --json",
)
def check(manifest: NamedManifest, json: Json = False) -> None:
    """Check a manifest's keys and environment.

    Nothing is fetched. `npu-rl lock --check` compares a lock with its manifest. Exit 1 if a value is invalid.
    """
    from npu_rl.cli.manifest_environment import notes_and_errors
    from npu_rl.cli.show import print_json, say, tell
    from npu_rl.manifest.load_manifest import load_manifest
    from npu_rl.manifest.manifest_kind import InvalidManifest, find_manifest
    from npu_rl.masking import masked_text

    try:
        loaded = load_manifest(manifest)
    except InvalidManifest as error:
        if not json:
            raise
        found = {"errors": [masked_text(str(problem)) for problem in error.problems], "notes": []}
        print_json({"ok": False, "manifest": manifest, "path": str(find_manifest(manifest)), **found})
        raise SystemExit(1) from None
    notes, errors = notes_and_errors(loaded)
    if json:
        shown = {"errors": list(map(masked_text, errors)), "notes": list(map(masked_text, notes))}
        print_json({"ok": not errors, "manifest": loaded.manifest.name, "path": str(loaded.path), **shown})
    else:
        for line in (*loaded.dropped, *notes):
            tell(f"note: {line}")
        for line in errors:
            say(masked_text(line))
        count = f"{len(errors)} error{'s' * (len(errors) > 1)}" if errors else "no error"
        say(f"{loaded.manifest.name}: {count}, checked against its schema and the known variables")
    if errors:
        raise SystemExit(1)


@examples(
    "npu-rl manifests schema",
    "npu-rl manifests schema > manifest.schema.json",
    "npu-rl manifests schema | head",
)
def schema() -> None:
    """Print the JSON Schema of manifests."""
    import sys

    from npu_rl.config.json_schema import export_schema
    from npu_rl.manifest.schema import Manifest

    sys.stdout.write(export_schema(Manifest, "npu-rl manifest", appends=True))
