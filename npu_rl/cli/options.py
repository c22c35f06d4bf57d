"""The options and arguments shared by several commands, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from npu_rl.stack.sources.git_remote import Network


# Names to complete; typer keeps those that begin as the word does.
def manifest_names() -> list[str]:
    """Return the names of the bundled manifests."""
    from npu_rl.common.bundled import bundled_manifests

    return list(bundled_manifests())


def _recipe_names() -> list[str]:
    from npu_rl.common.bundled import bundled_recipes

    return list(bundled_recipes())


def _recipe_keys() -> list[str]:
    from npu_rl.recipes.recipe.key_map import dotted_keys

    return [f"{key}=" for key in dotted_keys()]


def rehearsal_levels() -> list[str]:
    """Return the values of --rehearse."""
    from npu_rl.cli import REHEARSAL_LEVELS

    return list(REHEARSAL_LEVELS)


def _run_names() -> list[str]:
    from npu_rl.cli.runs import runs_root

    root = runs_root(None)
    return [] if root is None else sorted(path.parent.name for path in root.glob("*/run.json"))


def _program(given: str | None) -> str | None:
    from npu_rl.common.user_path import program_path

    return None if given is None else program_path(given)


def gigabytes(given: float | None) -> float | None:
    """Return the value of an option for a size, in 10^9 bytes. Raises UsageError for one that is not above 0."""
    import math

    from npu_rl.common.errors import UsageError

    if given is not None and not (math.isfinite(given) and given > 0):
        raise UsageError(f"Invalid size {given:g}: must be above 0", hint="Pass a number above 0.")
    return given


MANIFEST_HELP = "A bundled name (see `npu-rl manifests list`) or a path."

_MANIFEST = typer.Option(
    "--manifest", "-m", metavar="MANIFEST", help=MANIFEST_HELP, autocompletion=manifest_names
)
Manifest = Annotated[str, _MANIFEST]
ManifestOrWorkspace = Annotated[str | None, _MANIFEST]
NamedManifest = Annotated[
    str, typer.Argument(metavar="MANIFEST", help=MANIFEST_HELP, autocompletion=manifest_names)
]
_RECIPE_HELP = "A bundled name (see `npu-rl recipes list`) or a path."
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help=_RECIPE_HELP, autocompletion=_recipe_names)]
_RECIPE = typer.Option("--recipe", metavar="RECIPE", help=_RECIPE_HELP, autocompletion=_recipe_names)
RecipeIfNamed = Annotated[str | None, _RECIPE]
NamedRecipe = Annotated[str, _RECIPE]
RUN_HELP = "A run's name, or the folder of its record."
Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=_run_names)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Recipe keys to set, such as optimizer.lr=1e-6.",
        autocompletion=_recipe_keys,
    ),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="DIR",
        help="The workspace folder.  [default: the one around this folder, or ./npu-rl-workspace]",
    ),
]
Rewrite = Annotated[
    list[str] | None,
    typer.Option(
        "--rewrite",
        metavar="FROM=TO",
        help="Fetch git URLs that begin with FROM from TO instead. May be repeated.",
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        metavar="DIGEST|env:HEX",
        help="Refuse a workspace whose lock has another digest, or whose environment another id; every byte is read.",
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="The interpreter to train in.  [default: the one you chose with setup --python, else npu-rl's own]",
        callback=_program,
    ),
]
PythonVersion = Annotated[
    str | None,
    typer.Option(
        "--python-version",
        metavar="VERSION",
        help="A version, such as 3.11.  [default: the manifest's only one, else this one]",
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="DIR", help="A model's folder, to count the tokens of prompts with."),
]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=64, metavar="N", help="Components to fetch at once.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=256,
        metavar="N",
        help="Processes that read and write at once.  [default: one for each CPU, 16 at most]",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--model-config",
        metavar="DIR",
        help="The folder of the model's config.json, where no other folder has one.",
    ),
]
ExpertsOverTensor = Annotated[
    bool,
    typer.Option(
        "--moe-tp-extend-ep/--no-moe-tp-extend-ep",
        help="In a legacy checkpoint, each tensor parallel rank has whole experts.",
    ),
]
NewFolder = Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is empty or does not exist.")]
DatasetName = Annotated[
    Literal["deepscaler", "gsm8k", "math-lighteval"], typer.Argument(metavar="DATASET", help="The dataset.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the local store only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]


def network(rewrite: list[str] | None = None, *, offline: bool) -> Network:
    """Return the network settings from --rewrite, --offline and the environment."""
    from npu_rl.stack.sources.git_remote import Network
    from npu_rl.stack.sources.url_rewriting import load_rewrites

    return Network.from_environment(load_rewrites(rewrite or []), offline=offline)
