"""The options and arguments that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def _manifest_names(incomplete: str) -> list[str]:
    from npu_rl.bundled import bundled_manifests

    return [name for name in bundled_manifests() if name.startswith(incomplete)]


def _recipe_names(incomplete: str) -> list[str]:
    from npu_rl.bundled import bundled_recipes

    return [name for name in bundled_recipes() if name.startswith(incomplete)]


_MANIFEST = "A bundled name (see `npu-rl manifests list`) or a path."

# Optional[...] and not `| None`: typer reads these at run time, on 3.10 too.
Manifest = Annotated[
    str,
    typer.Option("--manifest", "-m", metavar="MANIFEST", help=_MANIFEST, autocompletion=_manifest_names),
]
ManifestOrWorkspace = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--manifest",
        "-m",
        metavar="MANIFEST",
        help=_MANIFEST,
        autocompletion=_manifest_names,
        show_default=False,
    ),
]
NamedManifest = Annotated[
    str, typer.Argument(metavar="MANIFEST", help=_MANIFEST, autocompletion=_manifest_names)
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
        help="The interpreter to train in.  [default: the one chosen at setup, else npu-rl's own]",
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=64, metavar="N", help="Components to fetch at once.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the local store only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
