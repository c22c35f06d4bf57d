"""The commands `npu-rl manifests`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Jobs, Json, NamedManifest, Offline, Rewrite, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import KEEPS_DOWNLOADS, error_count, if_interrupted, print_json, say, say_table, tell

if TYPE_CHECKING:
    from npu_rl.stack.comparison.stack_differences import StackDifferences
    from npu_rl.stack.lock.verification_record import ListedManifest, VerifiedStep

app = group(
    "List, show, check and compare manifests.",
    {
        "list": "manifests:list_manifests",
        "show": "manifests:show",
        "check": "manifests:check",
        "diff": "manifests:diff",
    },
)

# -- list ---------------------------------------------------------------------------------------------


@examples("npu-rl manifests list --json   # with paths and whole tree ids")
def list_manifests(json: Json = False) -> None:
    """List the bundled manifests.

    Below each are the steps that were verified against its upstreams, and the levels at which its recipes were
    rehearsed.
    """
    from npu_rl.stack.git.objects import short
    from npu_rl.stack.lock.verification_record import listed_manifests

    rows = listed_manifests()
    if json:
        print_json(rows)
        return
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        say(
            f"{row.name:<{width}} {row.device or '-':<5} {short(row.tree or '-'):<13} {row.title or '(not locked)'}"
        )
        for line in _verified_lines(row):
            say(f"  {line}")


def _verified_lines(row: ListedManifest) -> Iterator[str]:
    """Yield the verified steps, with a line for the manifest and one for each recipe."""
    from npu_rl.stack.git.objects import short

    record = row.verified
    if record is None:
        yield "not verified"
    elif record.tree != row.tree:
        yield f"not verified with this tree; with {short(record.tree)} it was"
    else:
        yield f"verified{_steps_line(record.steps)}"
        for name, recipe in record.recipes.items():
            changed = name in row.changed_recipes
            yield f"{name}{': changed since it was verified' if changed else _steps_line(recipe.steps)}"


def _steps_line(steps: Sequence[VerifiedStep]) -> str:
    """Return the last date and the names of the steps that passed, were rehearsed or failed."""
    from npu_rl.stack.lock.verification_record import REHEARSAL

    passed = [step.name for step in steps if step.passed]
    levels = [name.removeprefix(REHEARSAL) for name in passed if name.startswith(REHEARSAL)]
    failed = [
        f"{step.name} ({step.reason})" if step.reason else step.name for step in steps if not step.passed
    ]
    parts = [", ".join(name for name in passed if not name.startswith(REHEARSAL))]
    parts += [f"rehearsed {', '.join(levels)}"] if levels else []
    parts += [f"failed {', '.join(failed)}"] if failed else []
    return f" {max(step.date for step in steps)}: {'; '.join(filter(None, parts))}" if steps else ": nothing"


# -- show ---------------------------------------------------------------------------------------------


@examples("npu-rl manifests show ./my-stack.yaml   # with my-stack.lock.json beside it")
def show(manifest: NamedManifest, json: Json = False) -> None:
    """Show what a manifest locks.

    It prints the lock beside the manifest: requirements on the host, components with their pins, merges and patches,
    required packages, and environment variables. `npu-rl requirements` prints the whole set of packages.
    """
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.folder.lock_summary import ShownLock, manifest_changed, stack_lines

    path = find_manifest(manifest)
    lock = lock_model.read(lock_model.lock_path(path))
    if manifest_changed(lock, path):
        tell(f"note: {path.name} has changed since its lock was made; the lock is what is shown.")
    found = ShownLock(path, lock, lock_model.digest_of(lock))
    if json:
        print_json(found)
        return
    say(f"{path}: {lock.manifest} ({lock.title})")
    rows = {"device": lock.device, "tree": lock.tree, "commit": lock.commit, "lock": found.lock_digest}
    for name, value in rows.items():
        say(f"  {name:<9} {value}")
    for name, version in lock.host.items():
        say(f"  host      {name:<9} {version}")
    for line in stack_lines(lock):
        say(line)
    for text in lock.requirements:
        say(f"  requires  {text}")
    for name, value in lock.env.items():
        say(f"  env       {name}={value}")


# -- check --------------------------------------------------------------------------------------------


@examples("npu-rl manifests check ./my-stack.yaml")
def check(manifest: NamedManifest, json: Json = False) -> None:
    """Check a manifest's keys and versions.

    Its environment variables are checked, too. Versions are compared with the bounds that components declare, as the
    lock beside it has them: nothing is fetched. `npu-rl lock --check` compares that lock with its manifest. The exit
    code is 1 if a value is invalid, two versions conflict, or one breaks a bound that no override names.
    """
    from npu_rl.common.masking import masked_text
    from npu_rl.common.printable import counted
    from npu_rl.common.yaml_documents.document_kind import InvalidManifest, find_manifest
    from npu_rl.recipes.environment.manifest_environment import CheckedManifest, check_manifest
    from npu_rl.stack.manifest.load_manifest import load_manifest

    try:
        loaded = load_manifest(manifest)
    except InvalidManifest as error:
        if not json:
            raise
        print_json(CheckedManifest(manifest, find_manifest(manifest), list(map(str, error.problems)), []))
        raise SystemExit(1) from None
    found = check_manifest(loaded)
    if json:
        print_json(found)
    else:
        for note in (*loaded.dropped, *found.notes):
            for line in f"note: {note}".splitlines():  # a list that drops entries names each on its own
                tell(line)
        for line in found.errors:
            say(masked_text(line))
        against = "its schema and the known variables"
        if found.bounds is not None:
            against = f"its schema, the known variables and {counted(found.bounds, 'declared bound')}"
        say(f"{found.manifest}: {error_count(len(found.errors))}, checked against {against}")
    if not found.ok:
        raise SystemExit(1)


# -- diff ---------------------------------------------------------------------------------------------

Side = "A bundled name, a manifest with its lock, or a lock."


@examples("npu-rl manifests diff old.lock.json mine.yaml --commits")
def diff(
    before: Annotated[str, typer.Argument(metavar="OLD", help=Side)],
    after: Annotated[str, typer.Argument(metavar="NEW", help=Side)],
    commits: Annotated[
        bool,
        typer.Option("--commits", help="List the commits between two pins that touch what is taken."),
    ] = False,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Compare two locks.

    It lists pins with the number of commits between them, paths taken, merges, patches, requirements, environment
    variables and host versions. Only commits are fetched for it.
    """
    from npu_rl.stack.comparison.commits_between import count_commits
    from npu_rl.stack.comparison.stack_differences import compare, moved_components, read_lock_file
    from npu_rl.stack.resolve.upstream_repository import Context
    from npu_rl.stack.store import Store

    if_interrupted(KEEPS_DOWNLOADS)
    old, new = read_lock_file(before, tell), read_lock_file(after, tell)
    moved = moved_components(old.lock, new.lock)
    with Fetches() as shown:
        context = Context(Store(), network(rewrite, offline=offline), shown, tell, new.path.absolute().parent)
        counted = count_commits(context, old.lock, new.lock, moved, subjects=commits, jobs=jobs)
    found = compare(old, new, counted)
    if json:
        print_json(found)
    else:
        _say_differences(found)


def _say_differences(found: StackDifferences) -> None:
    for sign, side in (("from", found.before), ("to", found.after)):
        say(f"{sign:<5}{side.lock.manifest} ({side.path})")
    for head, rows in (
        (("component", "from", "to", "commits"), list(found.pin_rows())),
        (("of", "what", "change", "from", "to"), list(found.value_rows())),
    ):
        if rows:
            say("")
            say_table(head, rows)
    for name, commits in found.commits.items():
        if commits.touching is not None:
            say("")
            say(f"{name}: {len(commits.touching)} of {commits.count} commits touch what is taken")
            for commit in commits.touching:
                say(f"  {commit.id[:12]} {commit.subject}")
    say("")
    say(found.summary())
