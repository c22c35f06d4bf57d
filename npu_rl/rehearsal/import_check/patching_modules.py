"""The modules of a tree that change other packages when they are imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.rehearsal.tree_modules import modules_of
from npu_rl.workspace.summary.rebindings import rebindings_in_file

# What a trainer or an engine imports to have all of its patching done, read from vllm_ascend/platform.py and
# worker/worker_v1.py, MindSpeed's README (`import mindspeed.megatron_adaptor`) and MindSpeed-LLM's pretrain_gpt.py.
# Of alternatives the first in the tree is taken: MindSpeed-LLM's adaptor does what MindSpeed's does, and refuses both.
_ENTRIES = (
    ("vllm_ascend.patch.platform",),
    ("vllm_ascend.patch.worker",),
    (
        "mindspeed_llm.tasks.megatron_adaptor",
        "mindspeed_llm.megatron_adaptor",
        "mindspeed.megatron_adaptor",
    ),
    ("verl.models.transformers.npu_patch",),
)


def patching_modules(
    code: Path, packages: Collection[str], places: Collection[str], device: str
) -> list[str]:
    """Return the modules whose imports do all patching at import, in a trainer's order.

    Those are the known entries, and each other module whose text assigns to one of the places or to what is around it.

    Args:
        packages: The top-level names of the tree.
        places: Dotted names of what patches change.
        device: The manifest's; the known entries are for NPUs.
    """
    known = _ENTRIES if device == "npu" else ()
    there = ([name for name in alternatives if _is_module(code, name)] for alternatives in known)
    entries = [names[0] for names in there if names]
    covered = tuple(f"{name}." for name in entries)
    around = {name.rsplit(".", count)[0] for name in places for count in (0, 1, 2)} | set(places)
    others = [
        module
        for module, target in _assignments(code, packages)
        if target in around and not f"{module}.".startswith(covered)
    ]
    return [*entries, *dict.fromkeys(others)]


def _is_module(code: Path, name: str) -> bool:
    place = code.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _assignments(code: Path, packages: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each module that assigns to another package on import, with the name it assigns to."""
    for module in modules_of(code, sorted(packages)):
        stem = "/".join(module.split("."))
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            text = read_source(code / file) if (code / file).is_file() else None
            for found in rebindings_in_file(file, text) if text is not None else ():
                if not found.registered:
                    yield module, found.target
