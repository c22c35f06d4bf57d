"""`npu-rl weights audit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_next
from npu_rl.cli.options import Config, ExpertsOverTensor, Json, Python, Workers, Workspace
from npu_rl.cli.weights import checkpoint_folder, interpreter

_SHOWN = 5  # differences and names in the text; --json has more
_STATES = {
    "equal": "equal, bit for bit (or in value where the dtypes differ)",
    "cast": "equal after the cast from FP8",
    "rounded": "equal after rounding to the narrower dtype",
    "different": "different",
    "shape": "of another shape",
    "copies": "further copies, equal",
    "different_copies": "further copies, different",
}
_SIDES = {
    "only_in_a": "tensors only in A",
    "only_in_b": "tensors only in B",
    "unknown_in_a": "tensors of A that the model does not have",
    "unknown_in_b": "tensors of B that the model does not have",
    "mtp_only_in_a": "tensors of multi-token prediction, only in A",
    "mtp_only_in_b": "tensors of multi-token prediction, only in B",
}


@examples(
    "npu-rl weights audit DeepSeek-V3-Base V3-BF16            # what a cast made",
    "npu-rl weights audit V3-BF16 V3-mcore --json >audit.json",
    "npu-rl weights audit V3-mcore V3-legacy --model-config V3-BF16",
)
def audit(
    a: Annotated[Path, typer.Argument(metavar="FIRST", help="The folder of a checkpoint.")],
    b: Annotated[Path, typer.Argument(metavar="SECOND", help="The folder of what was made of it.")],
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Compare two checkpoints, value by value.

    Each may be a Hugging Face folder (FP8 too), Megatron's torch_dist or its
    legacy format. Fails if any value of the first (A) is not accounted for in
    the second (B), or B has more, or any value is NaN or infinite.
    """
    import sys

    from npu_rl.cli.show import print_report
    from npu_rl.cli.weights_progress import watching
    from npu_rl.common.user_path import user_path
    from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    options = AuditOptions(
        checkpoint_folder(a),
        checkpoint_folder(b),
        None if config is None else user_path(config).absolute(),
        extend,
        shlex.join(["npu-rl", *sys.argv[1:]]),
    )
    if_interrupted(STARTS_OVER)
    with watching("comparing", "groups of tensors", "to compare") as watch:
        report = audit_weights(options, pool_of(interpreter(python, workspace), workers), watch)
    print_report(report, audit_text(report), as_json=json)
    if report["result"] != "equal":
        raise typer.Exit(1)
    if not json:
        tell_next("weights", "check", b, "--write-hashes", workspace=workspace)


def audit_text(content: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [f"{side.upper()}: {_side(content[side])}" for side in ("a", "b")]
    for state, text in _STATES.items():
        if state in content["counts"]:
            of = content["counts"][state]
            lines.append(f"  {of['tensors']:>8,} tensors, {of['values']:>15,} values: {text}")
    for difference in content["differences"][:_SHOWN]:
        lines.append(_difference(difference))
    if content["differences_in_all"] > _SHOWN:
        lines.append(f"  and {content['differences_in_all'] - _SHOWN} more tensors that differ (--json)")
    for odd in content["not_finite"][:_SHOWN]:
        lines.append(_not_finite(odd))
    if content["not_finite_in_all"]["tensors"] > _SHOWN:
        more = content["not_finite_in_all"]["tensors"] - _SHOWN
        lines.append(f"  and {more} more tensors with NaN or infinity (--json)")
    for name, text in _SIDES.items():
        if content[name]:
            count, shown = content["one_sided_in_all"][name], content[name][:_SHOWN]
            more = f" and {count - len(shown)} more" if count > len(shown) else ""
            lines.append(f"  {count} {text}: {', '.join(shown)}{more}")
    compared, seconds = content["compared"], content["seconds"]
    lines.append(
        f"{content['result'].capitalize()}: {compared['tensors']:,} tensors, {compared['values']:,} values compared in "
        f"{seconds:.1f} s."
    )
    return "\n".join(lines) + "\n"


def _side(of: dict[str, Any]) -> str:
    fp8 = f", {of['fp8_tensors']:,} of them in FP8" if of["fp8_tensors"] else ""
    return f"{of['path']} ({of['format']}): {of['tensors']:,} tensors{fp8}, {of['values']:,} values"


def _not_finite(of: dict[str, Any]) -> str:
    index = ", ".join(map(str, of["index"]))
    return (
        f"  {of['tensor']}[{index}]: {of['side'].upper()} has {of['value']} ({of['where']}); {of['values']:,} values "
        f"are NaN or infinite"
    )


def _difference(of: dict[str, Any]) -> str:
    a, b = of["a"], of["b"]
    if "value" not in a:
        return f"  {of['tensor']}: A is {a['shape']}, B is {b['shape']}"
    index = ", ".join(map(str, of["index"]))
    return f"  {of['tensor']}[{index}]: A has {a['value']}, B has {b['value']}; {of['different']:,} values differ"
