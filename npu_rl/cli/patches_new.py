"""The command `npu-rl patches new`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.show import say_text


@examples(
    "npu-rl patches new verl/kv-cache > message; git commit -a -e -F message",
    'npu-rl patches new verl/kv-cache --subject "Keep the KV cache"',
    'npu-rl patches new verl/kv-cache --why "a second start profiles again"',
)
def new(
    named: Annotated[
        str, typer.Argument(metavar="COMPONENT/SLUG", help="The component, and the name of the patch's file.")
    ],
    subject: Annotated[
        str, typer.Option("--subject", metavar="TEXT", help="The change, in one sentence.")
    ] = "",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The fault without the patch.")] = "",
    how: Annotated[str, typer.Option("--how", metavar="TEXT", help="The new behaviour.")] = "",
    status: Annotated[
        str,
        typer.Option(
            "--upstream-status",
            metavar="TEXT",
            help="State: pending, submitted URL, merged-in VERSION or inappropriate.",
        ),
    ] = "pending",
    verified_by: Annotated[
        str, typer.Option("--verified-by", metavar="TEST", help="The witness or test that fails without it.")
    ] = "",
    needs_npu: Annotated[
        str, typer.Option("--needs-npu", metavar="TEXT", help="Open questions that only an NPU answers.")
    ] = "",
    retire_when: Annotated[
        str, typer.Option("--retire-when", metavar="TEXT", help="The event after which it can be removed.")
    ] = "",
) -> None:
    """Print a new patch's header.

    The header is a commit message. Its trailer `Patch: COMPONENT/SLUG` names the file that
    `npu-rl patches export` writes for the commit.
    """
    from npu_rl.stack.patches import patch_header
    from npu_rl.stack.patches.message_template import message_template

    fields = {
        patch_header.WHY: why,
        patch_header.HOW: how,
        patch_header.STATUS: status,
        patch_header.VERIFIED_BY: verified_by,
        patch_header.NEEDS_NPU: needs_npu,
        patch_header.RETIRE_WHEN: retire_when,
    }
    say_text(message_template(named, subject, fields))
