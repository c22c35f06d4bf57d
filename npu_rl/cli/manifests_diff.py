"""The command `npu-rl manifests diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import KEEPS_DOWNLOADS, if_interrupted
from npu_rl.cli.options import Jobs, Json, Offline, Rewrite, network
from npu_rl.cli.show import print_json, say, say_table, tell, watcher

if TYPE_CHECKING:
    from npu_rl.stack.comparison.compared_stack import ComparedStack
    from npu_rl.stack.comparison.stack_differences import StackDifferences

_SIDE_HELP = "A bundled name, a manifest, or a lock."


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
    """Compare two manifests or locks.

    It lists pins with the number of commits between them, paths taken, merges, patches, requirements, environment
    variables and host versions. Only commits are fetched for it.
    """
    from npu_rl.common.masking import masked_data
    from npu_rl.stack.comparison.compared_stack import read_stack
    from npu_rl.stack.comparison.stack_differences import compare_stacks, moved_components

    if_interrupted(KEEPS_DOWNLOADS)

    sides = read_stack(before, tell), read_stack(after, tell)
    moved = moved_components(*sides)
    with watcher() as shown:
        from npu_rl.stack.comparison.commits_between import count_commits
        from npu_rl.stack.resolve.upstream_repository import Context
        from npu_rl.stack.store import Store

        context = Context(Store(), network(rewrite, offline=offline), shown, tell, sides[1].folder)
        counted = count_commits(context, *sides, moved, subjects=commits, jobs=jobs) if moved else {}
    found = compare_stacks(*sides, counted)
    if json:
        print_json(masked_data(found.to_json()))
    else:
        _print(found)


def _print(found: StackDifferences) -> None:
    from npu_rl.stack.comparison.difference_rows import component_rows, value_rows
    from npu_rl.stack.comparison.stack_differences import summary_line

    for sign, side in (("from", found.before), ("to", found.after)):
        say(f"{sign:<5}{_named(side)}")
    rows = list(component_rows(found))
    if rows:
        say("")
        say_table(("component", "from", "to", "commits"), rows)
    values = list(value_rows(found))
    if values:
        say("")
        say_table(("of", "what", "change", "from", "to"), values)
    for one in found.components:
        if one.commits is None or one.commits.touching is None:
            continue
        say("")
        touching = len(one.commits.touching)
        say(f"{one.name}: {touching} of {one.commits.count} commits touch what is taken")
        for commit in one.commits.touching:
            say(f"  {commit.id[:12]} {commit.subject}")
    say("")
    say(summary_line(found))


def _named(side: ComparedStack) -> str:
    return f"{side.name} ({side.path})"
