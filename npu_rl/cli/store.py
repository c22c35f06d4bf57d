"""The command `npu-rl store`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json

app = group("Free space in the store.", {"gc": "store:gc"})


@examples("npu-rl store gc --days 0 --dry-run   # all that no command uses now")
def gc(
    days: Annotated[
        float, typer.Option("--days", min=0.0, metavar="N", help="Drop units unused for N days.")
    ] = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be dropped, and drop nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Drop unused parts of the store.

    Workspaces do not need it: what is dropped is fetched again when a setup or lock asks for it.
    """
    from npu_rl.cli.show import amount, print_json, say
    from npu_rl.stack.store import Store

    store = Store()
    gone, freed, foreign = store.gc(days=days, dry_run=dry_run)
    if json:
        print_json(
            {
                "store": str(store.root),
                "units": [u.key for u in gone],
                "bytes": freed,
                "foreign": [str(path) for path in foreign],
                "dry_run": dry_run,
            }
        )
        return
    verb = "Would drop" if dry_run else "Dropped"
    say(f"{verb} {len(gone)} units, {amount(freed)}, from {store.root}")
    for path in foreign:
        say(f"Left a unit, since npu-rl did not write {path}")
