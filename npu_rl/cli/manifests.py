"""The command `npu-rl manifests`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json, NamedManifest
from npu_rl.cli.show import error_count, print_json, say, say_entry, say_folded, tell

if TYPE_CHECKING:
    from npu_rl.stack.lock.verification_record import VerificationRecord, VerifiedStep
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

app = group(
    "List, show, check and compare manifests.",
    {
        "list": "manifests:list_manifests",
        "show": "manifests:show",
        "check": "manifests:check",
        "diff": "manifests_diff:diff",
        "schema": "manifests:schema",
    },
    "npu-rl manifests list",
    "npu-rl manifests show quickstart",
    "npu-rl manifests check ./my-stack.yaml",
)


@examples(
    "npu-rl manifests list",
    "npu-rl manifests list --json   # with paths and whole tree ids",
    "npu-rl manifests list | grep cpu",
)
def list_manifests(json: Json = False) -> None:
    """List the bundled manifests.

    Below each are the steps that were verified against its upstreams, and the levels at which its recipes were
    rehearsed.
    """
    from npu_rl.common.bundled import bundled_manifests
    from npu_rl.common.errors import LockError
    from npu_rl.stack.git.objects import short
    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.lock.verification_record import read_record, record_path

    rows = []
    for name, path in bundled_manifests().items():
        row: dict[str, Any] = {
            "name": name, "title": "(not locked)", "device": None, "tree": None, "path": str(path),
        }  # fmt: skip
        try:
            lock = lock_model.read(lock_model.lock_path(path))
            row.update(title=lock.title, device=lock.device, tree=lock.tree)
        except LockError:
            pass
        rows.append((row, read_record(record_path(path))))
    if json:
        print_json([{**row, "verified": record and record.to_json(row["tree"])} for row, record in rows])
        return
    width = max((len(row["name"]) for row, _ in rows), default=0)
    for row, record in rows:
        say_entry(
            f"{row['name']:<{width}} {row['device'] or '-':<5} {short(row['tree'] or '-'):<13}", row["title"]
        )
        for line in _verified_lines(record, row["tree"]):
            say_folded(f"  {line}", "      ")


def _verified_lines(record: VerificationRecord | None, tree: str | None) -> Iterator[str]:
    """Yield the verified steps, with a line for the manifest and one for each recipe."""
    from npu_rl.stack.git.objects import short

    if record is None:
        yield "not verified"
    elif record.tree != tree:
        yield f"not verified with this tree; with {short(record.tree)} it was"
    else:
        yield f"verified{_steps_line(record.steps)}"
        for name, recipe in record.recipes.items():
            yield f"{name}{_steps_line(recipe.steps) if recipe.is_current else ': changed since it was verified'}"


def _steps_line(steps: Sequence[VerifiedStep]) -> str:
    """Return the last date and the names of the steps that passed, were rehearsed or failed."""
    from npu_rl.stack.lock.verification_record import REHEARSAL

    levels = [
        step.name.removeprefix(REHEARSAL) for step in steps if step.passed and step.name.startswith(REHEARSAL)
    ]
    failed = [
        f"{step.name} ({step.reason})" if step.reason else step.name for step in steps if not step.passed
    ]
    parts = [", ".join(step.name for step in steps if step.passed and not step.name.startswith(REHEARSAL))]
    parts += [f"rehearsed {', '.join(levels)}"] if levels else []
    parts += [f"failed {', '.join(failed)}"] if failed else []
    return f" {max(step.date for step in steps)}: {'; '.join(filter(None, parts))}" if steps else ": nothing"


@examples(
    "npu-rl manifests show deepseek-r1-zero",
    "npu-rl manifests show quickstart --json",
    "npu-rl manifests show ./my-stack.yaml   # with my-stack.lock.json beside it",
)
def show(manifest: NamedManifest, json: Json = False) -> None:
    """Show what a manifest locks.

    It prints the lock beside the manifest: requirements on the host, components with their pins, merges and patches,
    required packages, and environment variables. `npu-rl requirements` prints the whole set of packages.
    """
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.folder.lock_summary import manifest_changed, stack_json, stack_lines

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
                "host": dict(lock.host),
                "requirements": list(lock.requirements),
                "env": dict(lock.env),
                **stack_json(lock, {}),
            }
        )
        return
    say(f"{path}: {lock.manifest} ({lock.title})")
    say(f"  device    {lock.device}")
    say(f"  tree      {lock.tree}")
    say(f"  commit    {lock.commit}")
    say(f"  lock      {digest}")
    for name, version in lock.host.items():
        say(f"  host      {name:<9} {version}")
    for line in stack_lines(lock):
        say(line)
    for text in lock.requirements:
        say(f"  requires  {text}")
    for name, value in lock.env.items():
        say(f"  env       {name}={value}")


@examples(
    "npu-rl manifests check ./my-stack.yaml",
    "npu-rl manifests check quickstart",
    "npu-rl manifests check ./my-stack.yaml --json",
)
def check(manifest: NamedManifest, json: Json = False) -> None:
    """Check a manifest's keys and versions.

    Its environment variables are checked, too. Versions are compared with the bounds that components declare, as the
    lock beside it has them: nothing is fetched. `npu-rl lock --check` compares that lock with its manifest. The exit
    code is 1 if a value is invalid, two versions conflict, or one breaks a bound that no override names.
    """
    from npu_rl.cli.manifest_environment import notes_and_errors
    from npu_rl.common.masking import masked_text
    from npu_rl.common.printable import counted
    from npu_rl.common.yaml_documents.document_kind import InvalidManifest, find_manifest
    from npu_rl.stack.manifest.load_manifest import load_manifest

    try:
        loaded = load_manifest(manifest)
    except InvalidManifest as error:
        if not json:
            raise
        found = {"errors": [masked_text(str(problem)) for problem in error.problems], "notes": []}
        print_json({"ok": False, "manifest": manifest, "path": str(find_manifest(manifest)), **found})
        raise SystemExit(1) from None
    notes, errors = notes_and_errors(loaded)
    compared = _compared_bounds(loaded, notes, errors)
    if json:
        shown = {"errors": list(map(masked_text, errors)), "notes": list(map(masked_text, notes))}
        place = {"manifest": loaded.manifest.name, "path": str(loaded.path)}
        print_json({"ok": not errors, **place, **shown, "bounds": compared})
    else:
        for note in (*loaded.dropped, *notes):
            for line in f"note: {note}".splitlines():  # a list that drops entries names each on its own
                tell(line)
        for line in errors:
            say(masked_text(line))
        against = "its schema and the known variables"
        if compared is not None:
            against = f"its schema, the known variables and {counted(compared, 'declared bound')}"
        say(f"{loaded.manifest.name}: {error_count(len(errors))}, checked against {against}")
    if errors:
        raise SystemExit(1)


def _compared_bounds(loaded: LoadedManifest, notes: list[str], errors: list[str]) -> int | None:
    """Add the findings of a comparison with the lock beside a manifest; return the number of compared bounds."""
    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.requirements.bound_check import compare_bounds

    path = lock_model.lock_path(loaded.path)
    if not path.exists():
        notes.append(f"{path.name} does not exist, so nothing was compared with what the components require")
        return None
    comparison = compare_bounds(loaded, lock_model.read(path))
    notes += comparison.notes
    errors += comparison.errors
    return comparison.compared


@examples(
    "npu-rl manifests schema",
    "npu-rl manifests schema > manifest.schema.json",
    "npu-rl manifests schema | head",
)
def schema() -> None:
    """Print the JSON Schema of manifests."""
    import sys

    from npu_rl.common.yaml_documents.json_schema import export_schema
    from npu_rl.stack.manifest.schema import Manifest

    sys.stdout.write(export_schema(Manifest, "npu-rl manifest", appends=True))
