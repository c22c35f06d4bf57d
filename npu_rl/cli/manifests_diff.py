"""The command `npu-rl manifests diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import KEEPS_DOWNLOADS, if_interrupted
from npu_rl.cli.options import Jobs, Json, Offline, Rewrite, network
from npu_rl.cli.show import print_json, say, say_table, tell, watcher

if TYPE_CHECKING:
    from npu_rl.stack.comparison.stack_differences import StackDifferences

_SIDE_HELP = "A bundled name, a manifest with its lock, or a lock."


@examples(
    "npu-rl manifests diff deepseek-r1-zero today",
    "npu-rl manifests diff old.lock.json mine.yaml --commits",
    "npu-rl manifests diff quickstart ./mine.yaml --offline --json",
)
def diff(
    before: Annotated[str, typer.Argument(metavar="OLD", help=_SIDE_HELP)],
    after: Annotated[str, typer.Argument(metavar="NEW", help=_SIDE_HELP)],
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
    from npu_rl.common.masking import masked_data
    from npu_rl.stack.comparison.commits_between import count_commits
    from npu_rl.stack.comparison.stack_differences import compare, moved_components, read_lock_file
    from npu_rl.stack.resolve.upstream_repository import Context
    from npu_rl.stack.store import Store

    if_interrupted(KEEPS_DOWNLOADS)
    old, new = read_lock_file(before, tell), read_lock_file(after, tell)
    moved = moved_components(old.lock, new.lock)
    with watcher() as shown:
        context = Context(Store(), network(rewrite, offline=offline), shown, tell, new.path.absolute().parent)
        counted = count_commits(context, old.lock, new.lock, moved, subjects=commits, jobs=jobs)
    found = compare(old, new, counted)
    if json:
        print_json(masked_data(found.to_json()))
    else:
        _print(found)


def _print(found: StackDifferences) -> None:
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
