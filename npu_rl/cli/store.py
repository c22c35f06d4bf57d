"""npu-rl store"""

from __future__ import annotations

from npu_rl.cli.show import amount, print_json, say
from npu_rl.store import Store


def gc(days: float, dry_run: bool, as_json: bool) -> None:
    store = Store()
    gone, freed = store.gc(days=days, dry_run=dry_run)
    if as_json:
        print_json(
            {"store": str(store.root), "units": [u.key for u in gone], "bytes": freed, "dry_run": dry_run}
        )
        return
    verb = "Would drop" if dry_run else "Dropped"
    say(f"{verb} {len(gone)} units, {amount(freed)}, from {store.root}")
