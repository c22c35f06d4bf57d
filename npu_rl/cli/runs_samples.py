"""The command `npu-rl runs samples`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.cli.recorded import Run, read_run
from npu_rl.cli.show import print_json, say_paged


@examples(
    "npu-rl runs samples quickstart                  # of the last step",
    "npu-rl runs samples quickstart --order worst --count 20",
    "npu-rl runs samples quickstart --step 12 --order random --json",
)
def samples(
    run: Run,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, metavar="N",
            help="The samples of this step.  [default: the last; all, with another order than written]",
        ),
    ] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="ORDER", help="Order: written, best, worst (by reward) or random.")
    ] = "written",
    count: Annotated[int, typer.Option("--count", min=1, max=1000, metavar="N", help="Show at most N samples.")] = 10,
    validation: Annotated[
        bool, typer.Option("--validation", help="Print samples of validations, not of training steps.")
    ] = False,
    seed: Annotated[int, typer.Option("--draw", metavar="N", help="Seed of the random samples.")] = 0,
    workspace: Workspace = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Print prompts, responses and rewards.

    On a terminal they open in your pager (PAGER, else less). Control characters in a model's response are printed as
    escapes.
    """
    from npu_rl.training.browse.sample_text import sample_lines, samples_of
    from npu_rl.training.record.run_errors import removal_noticed

    found = read_run(run, workspace)
    with removal_noticed(found.folder):
        chosen = samples_of(found, order, count, step, validation=validation, seed=seed)
    if json:
        print_json(
            {
                "run": found.name,
                "order": order,
                "seen": chosen.seen,
                "skipped": chosen.skipped,
                "samples": [one.to_json() for one in chosen.samples],
            }
        )
        return
    say_paged(sample_lines(found, chosen, order))
