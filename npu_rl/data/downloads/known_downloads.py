"""Locations of the bundled recipes' datasets and models, as far as upstream documents name them.

No document names a commit, so none is pinned here: `--revision` pins one, and files are verified against the hub's
metadata from the download.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.suggest import did_you_mean

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Download:
    """A dataset or a model.

    Attributes:
        kind: dataset or model.
        source: The documents that name it.
        hub: Its name on the Hugging Face hub; "" if no document names one.
        modelscope: Its name on ModelScope, likewise.
        files: The files that are needed; empty for all.
        then: The command to run next.
    """

    name: str
    kind: str
    source: str
    hub: str = ""
    modelscope: str = ""
    files: tuple[str, ...] = ()
    then: str = ""

    def next_command(self, folder: Path) -> str:
        """Return the command to run next; empty for none."""
        return self.then.format(folder=shlex.quote(str(folder)))


_CANN, _PAI = "cann-recipes-train", "Pai-Megatron-Patch"
_R1_ZERO = "MindSpeed-RL docs/solutions/r1_zero_qwen25_7b.md (hub)"
_EXAMPLES = "verl examples/data_preprocess"
_DEEPSCALER, _MATH = "agentica-org/DeepScaleR-Preview-Dataset", "MATH-lighteval"
_CAST = "npu-rl weights cast {folder} {folder}-bf16"
_PREPARE = "npu-rl data prepare {} --input FILE --test FILE --output DIR"


def _deepseek(name: str, source: str, hub: str = "", modelscope: str = "") -> Download:
    return Download(name, "model", source, hub, modelscope, then=_CAST)


_ALL = (
    Download(
        "deepscaler",
        "dataset",
        f"{_R1_ZERO}, {_CANN} llm_rl/deepseek (ModelScope)",
        _DEEPSCALER,
        _DEEPSCALER,
        ("deepscaler.json",),
        "npu-rl data prepare deepscaler --input {folder}/deepscaler.json --output DIR",
    ),
    Download(
        "gsm8k", "dataset", f"{_EXAMPLES}/gsm8k.py (hub)", "openai/gsm8k", then=_PREPARE.format("gsm8k")
    ),
    Download(
        "math-lighteval",
        "dataset",
        f"{_EXAMPLES}/math_dataset.py (hub), {_PAI} (ModelScope)",
        f"DigitalLearningGmbH/{_MATH}",
        f"AI-ModelScope/{_MATH}",
        then=_PREPARE.format("math-lighteval"),
    ),
    _deepseek("deepseek-v3-base", "DeepSeek-V3's README (hub)", "deepseek-ai/DeepSeek-V3-Base"),
    _deepseek("deepseek-v3", f"{_CANN} (hub and ModelScope)", *2 * ("deepseek-ai/DeepSeek-V3",)),
    _deepseek("deepseek-v3-0324", f"{_PAI} (ModelScope)", modelscope="deepseek-ai/DeepSeek-V3-0324"),
    Download("qwen2.5-7b", "model", _R1_ZERO, "Qwen/Qwen2.5-7B"),
    Download("qwen3-32b", "model", f"{_CANN} (ModelScope)", modelscope="Qwen/Qwen3-32B"),
    Download("qwen3-235b-a22b", "model", f"{_CANN} (ModelScope)", modelscope="Qwen/Qwen3-235B-A22B"),
)
DOWNLOADS = {one.name: one for one in _ALL}


def of_kind(kind: str) -> dict[str, Download]:
    """Return the downloads of a kind by name."""
    return {name: one for name, one in DOWNLOADS.items() if one.kind == kind}


def known_download(kind: str, name: str) -> Download:
    """Return a dataset or a model by name. Raises UsageError for an unknown name."""
    known = of_kind(kind)
    if name in known:
        return known[name]
    near = did_you_mean(name, list(known))
    raise UsageError(f"Unknown {kind} {name!r}{near}", where="NAME", hint=f"Names: {', '.join(known)}")


def require_commit(revision: str | None) -> None:
    """Raise UsageError for a revision that is a branch or a tag, which can move."""
    if revision is not None and not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UsageError(
            f"--revision {revision!r} is not a commit",
            why="A branch or tag can move.",
            hint="Write the 40 characters of a commit of the hub.",
        )


@dataclass(frozen=True)
class DownloadCommands:
    """The result of `data get` and `weights get`.

    Attributes:
        revision: A commit of the hub's repository; ModelScope has commits of its own, so it is not passed there.
        commands: By place (hub, modelscope, mirror); places that no document names are left out.
        named_by: The documents that name it.
        next: The command to run after the download; empty for none.
    """

    name: str
    revision: str | None
    commands: dict[str, str]
    named_by: str
    next: str


def download_commands(one: Download, folder: Path, revision: str | None, mirror: str) -> DownloadCommands:
    """Return the commands of a download into a folder. mirror: URL of a mirror of the hub."""
    found = {}
    if one.hub:
        kind = ["--repo-type", "dataset"] if one.kind == "dataset" else []
        pinned = ["--revision", revision] if revision else []
        words = ["hf", "download", one.hub, *one.files, *kind, *pinned, "--local-dir", str(folder)]
        found["hub"] = shlex.join(words)
    if one.modelscope:
        option = "--dataset" if one.kind == "dataset" else "--model"
        argv = ["modelscope", "download", option, one.modelscope, *one.files, "--local_dir", str(folder)]
        found["modelscope"] = shlex.join(argv)
    if one.hub:
        found["mirror"] = f"HF_ENDPOINT={shlex.quote(mirror)} {found['hub']}"
    return DownloadCommands(one.name, revision, found, one.source, one.next_command(folder))
