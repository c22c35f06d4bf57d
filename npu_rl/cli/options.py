"""The options and arguments that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def _manifest_names(incomplete: str) -> list[str]:
    from npu_rl.common.bundled import bundled_manifests

    return [name for name in bundled_manifests() if name.startswith(incomplete)]


def _recipe_names(incomplete: str) -> list[str]:
    from npu_rl.common.bundled import bundled_recipes

    return [name for name in bundled_recipes() if name.startswith(incomplete)]


def dataset_names(incomplete: str) -> list[str]:
    """Complete the name of a dataset."""
    from npu_rl.data.datasets.known_datasets import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


def _program(given: str | None) -> str | None:
    from npu_rl.common.user_path import program_path

    return None if given is None else program_path(given)


MANIFEST_HELP = "A bundled name (see `npu-rl manifests list`) or a path."

# Optional[...] and not `| None`: typer reads these at run time, on 3.10 too.
Manifest = Annotated[
    str,
    typer.Option("--manifest", "-m", metavar="MANIFEST", help=MANIFEST_HELP, autocompletion=_manifest_names),
]
ManifestOrWorkspace = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--manifest",
        "-m",
        metavar="MANIFEST",
        help=MANIFEST_HELP,
        autocompletion=_manifest_names,
        show_default=False,
    ),
]
NamedManifest = Annotated[
    str, typer.Argument(metavar="MANIFEST", help=MANIFEST_HELP, autocompletion=_manifest_names)
]
Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A bundled name (see `npu-rl recipes list`) or a path.",
        autocompletion=_recipe_names,
    ),
]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Recipe keys to set, such as optimizer.lr=1e-6.", show_default=False
    ),
]
Workspace = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        help="The workspace folder.  [default: the one around this folder, or ./npu-rl-workspace]",
        show_default=False,
    ),
]
Rewrite = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--rewrite",
        metavar="FROM=TO",
        help="Fetch git URLs that begin with FROM from TO instead. May be repeated.",
    ),
]
Expect = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--expect",
        metavar="DIGEST",
        help="Refuse a workspace whose lock has another digest; every byte is read.",
        show_default=False,
    ),
]
Python = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="The interpreter to train in.  [default: the one you chose with setup --python, else npu-rl's own]",
        callback=_program,
        show_default=False,
    ),
]
Tokenizer = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="A model's folder, to count the tokens of prompts with.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=64, metavar="N", help="Components to fetch at once.")
]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--workers",
        min=1,
        max=256,
        metavar="N",
        help="Processes that read and write at once.  [default: one for each CPU, 16 at most]",
        show_default=False,
    ),
]
Config = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--model-config",
        "--config",  # its name until 0.4
        metavar="DIR",
        help="The folder of the model's config.json, where no other folder has one.",
        show_default=False,
    ),
]
ExpertsOverTensor = Annotated[
    bool,
    typer.Option(
        "--moe-tp-extend-ep/--no-moe-tp-extend-ep",
        help="Whether a legacy checkpoint's experts are dealt out to the tensor parallel ranks whole.",
    ),
]
NewFolder = Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is empty or does not exist.")]
DatasetName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="deepscaler, gsm8k or math-lighteval.", autocompletion=dataset_names),
]
Ray = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--ray",
        metavar="HOST:PORT",
        help="Use all hosts of the Ray cluster with this head, or of this host's: auto. The head is trusted: it can "
        "run code here. --workers is for each host.",
        show_default=False,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the local store only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
