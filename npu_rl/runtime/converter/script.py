"""The hooks in verl's script: its arguments, and who converts.

Off (NPU_RL_CONVERTER_EXPERT_PARALLEL=0), the script has no argument more and converts as upstream has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..switches import enabled
from ..used import count
from .architecture import NAME, read_config
from .convert import convert
from .errors import ConversionError

SLUG = "converter-expert-parallel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pp_size, --ep_size and --pp_layers, in the style of the script's own."""
    if not enabled(SLUG):
        return
    parser.add_argument(
        "--pp_size", type=int, help="Pipeline stages; pp_size x ep_size is the number of processes"
    )
    parser.add_argument("--ep_size", type=int, help="Groups that a layer's experts are divided among (1)")
    parser.add_argument(
        "--pp_layers", type=_numbers, help="Layers of each stage, such as 6,8,8,8,8,8,8,7 (even)"
    )


def layout_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked for by those arguments, for `convert_instead`."""
    asked = {name: getattr(arguments, name, None) for name in ("pp_size", "ep_size", "pp_layers")}
    return {name: value for name, value in asked.items() if value is not None}


def convert_instead(
    hf_folder: str, output: str, layout: dict[str, Any] | None = None, check: bool = False
) -> bool:
    """Convert and return True; or return False, and leave it to upstream's code: switched off, or not a DeepSeek-V3.

    Raises ConversionError, also where a layout is asked for that upstream's code can't do.
    """
    if not enabled(SLUG):
        return False
    asked = layout or {}
    names = read_config(Path(hf_folder)).get("architectures")
    if names != [NAME]:
        if asked:
            raise ConversionError(
                f"--{', --'.join(asked)}: only [{NAME!r}] is converted by stages and expert groups; this is {names!r}, "
                "which goes without them"
            )
        return False
    convert(
        hf_folder,
        output,
        pipeline=asked.get("pp_size"),
        expert=asked.get("ep_size", 1),
        layers=asked.get("pp_layers"),
        check=check,
    )
    count(SLUG)
    return True


def _numbers(text: str) -> list[int]:
    """A value for which int() raises is argparse's error."""
    return [int(number) for number in text.split(",")]
