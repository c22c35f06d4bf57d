"""Locations of the bundled recipes' datasets and models, as far as upstream documents name them.

No document names a commit, so none is pinned here: `--revision` pins one, and files are verified against the hub's
metadata from the download.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Download:
    """A dataset or a model.

    Attributes:
        kind: dataset or model.
        hub: Its name on the Hugging Face hub.
        modelscope: Its name on ModelScope; "" if no document names one.
        files: The files that are needed; empty for all.
        source: The documents that name it.
        then: The command to run next.
    """

    name: str
    kind: str
    hub: str
    modelscope: str
    source: str
    files: tuple[str, ...] = ()
    then: str = ""


_DEEPSEEK = "npu-rl weights cast {folder} {folder}-bf16"

DOWNLOADS = {
    one.name: one
    for one in (
        Download(
            "deepscaler",
            "dataset",
            "agentica-org/DeepScaleR-Preview-Dataset",
            "agentica-org/DeepScaleR-Preview-Dataset",
            "MindSpeed-RL docs/solutions/r1_zero_qwen25_7b.md (hub), cann-recipes-train llm_rl/deepseek (ModelScope)",
            ("deepscaler.json",),
            "npu-rl data prepare deepscaler --input {folder}/deepscaler.json --output DIR",
        ),
        Download(
            "gsm8k",
            "dataset",
            "openai/gsm8k",
            "",
            "verl examples/data_preprocess/gsm8k.py (hub)",
            then="npu-rl data prepare gsm8k --input FILE --test FILE --output DIR",
        ),
        Download(
            "math-lighteval",
            "dataset",
            "DigitalLearningGmbH/MATH-lighteval",
            "AI-ModelScope/MATH-lighteval",
            "verl examples/data_preprocess/math_dataset.py (hub), Pai-Megatron-Patch (ModelScope)",
            then="npu-rl data prepare math-lighteval --input FILE --test FILE --output DIR",
        ),
        Download(
            "deepseek-v3-base",
            "model",
            "deepseek-ai/DeepSeek-V3-Base",
            "",
            "DeepSeek-V3's README (hub)",
            then=_DEEPSEEK,
        ),
        Download(
            "deepseek-v3",
            "model",
            "deepseek-ai/DeepSeek-V3",
            "deepseek-ai/DeepSeek-V3",
            "cann-recipes-train (hub and ModelScope)",
            then=_DEEPSEEK,
        ),
        Download(
            "deepseek-v3-0324",
            "model",
            "",
            "deepseek-ai/DeepSeek-V3-0324",
            "Pai-Megatron-Patch (ModelScope)",
            then=_DEEPSEEK,
        ),
        Download(
            "qwen2.5-7b",
            "model",
            "Qwen/Qwen2.5-7B",
            "",
            "MindSpeed-RL docs/solutions/r1_zero_qwen25_7b.md (hub)",
        ),
        Download("qwen3-32b", "model", "", "Qwen/Qwen3-32B", "cann-recipes-train (ModelScope)"),
        Download("qwen3-235b-a22b", "model", "", "Qwen/Qwen3-235B-A22B", "cann-recipes-train (ModelScope)"),
    )
}


def of_kind(kind: str) -> dict[str, Download]:
    """Return the downloads of a kind by name."""
    return {name: one for name, one in DOWNLOADS.items() if one.kind == kind}


def commands(one: Download, folder: Path, revision: str | None, mirror: str) -> Iterator[tuple[str, str]]:
    """Yield a place (hub, modelscope, mirror) and the command for it; unnamed places are left out.

    Args:
        revision: A commit of the hub's repository; ModelScope has commits of its own, so it is not passed there.
        mirror: URL of a mirror of the hub.
    """
    files = list(one.files)
    target = str(folder)
    if one.hub:
        kind = ["--repo-type", "dataset"] if one.kind == "dataset" else []
        pinned = ["--revision", revision] if revision else []
        from_hub = shlex.join(["hf", "download", one.hub, *files, *kind, *pinned, "--local-dir", target])
        yield "hub", from_hub
    if one.modelscope:
        option = "--dataset" if one.kind == "dataset" else "--model"
        argv = ["modelscope", "download", option, one.modelscope, *files, "--local_dir", target]
        yield "modelscope", shlex.join(argv)
    if one.hub:
        yield "mirror", f"HF_ENDPOINT={shlex.quote(mirror)} {from_hub}"
