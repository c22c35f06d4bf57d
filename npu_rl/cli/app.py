"""The commands and their common options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

import npu_rl

app = typer.Typer(
    name="npu-rl",
    help="Pinned, merged, patched and proven source trees for RL post-training on Ascend NPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
store_app = typer.Typer(help="The local object database.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(store_app, name="store")
recipes_app = typer.Typer(
    help="Recipes: list, show, copy and check them.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(recipes_app, name="recipes")

# Optional[...] and not `| None`: typer reads these at run time, on 3.10 too.
Manifest = Annotated[
    str, typer.Option("--manifest", "-m", metavar="M", help="A bundled name (see `npu-rl list`) or a path.")
]
Workspace = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--workspace", "-w", metavar="DIR", help="The workspace folder.", show_default=False),
]
Rewrite = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--rewrite", metavar="FROM=TO", help="Ask TO... instead of FROM... for git URLs. May be repeated."
    ),
]
Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A bundled name (see `npu-rl recipes list`) or a path.")
]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Keys to set, such as optimizer.lr=1e-6.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]
Expect = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--expect",
        metavar="ID",
        help="Refuse a workspace whose lock has another digest; every byte is read.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=64, metavar="N", help="Components to fetch at once.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the local store only.")]


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"npu-rl {npu_rl.__version__}")
        raise typer.Exit


@app.command("setup")
def setup(
    manifest: Manifest,
    workspace: Workspace = None,
    lock: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--lock",
            metavar="F",
            help="The lock to use.  [default: NAME.lock.json beside the manifest]",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Move local edits to .npu-rl/kept/TIME.")
    ] = False,
    python: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--python",
            metavar="P",
            help="The interpreter `train` is to use.  [default: the one npu-rl runs in]",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Lay the locked stack into a workspace (./npu-rl-workspace unless --workspace says otherwise)."""
    from npu_rl.cli.setup import run

    run(manifest, workspace, lock, jobs, offline, rewrite or [], discard, python, json)


@app.command("verify")
def verify(
    workspace: Workspace = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte instead of trusting times and sizes.")
    ] = False,
    expect: Expect = None,
    json: Json = False,
) -> None:
    """Prove that the workspace equals its lock, down to the hunk. Exit 3 if it doesn't."""
    from npu_rl.cli.verify import run

    run(workspace, deep, expect, json)


@app.command("train")
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A bundled name (see `npu-rl recipes list`) or a path.")
    ],
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Keys of the recipe to say otherwise.", show_default=False
        ),
    ] = None,
    workspace: Workspace = None,
    python: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--python",
            metavar="P",
            help="The interpreter to train in.  [default: the one that set the workspace up]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write the resolved recipe and scripts, print the command, stop."),
    ] = False,
    rehearse: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--rehearse",
            metavar="LEVEL",
            help="Rehearse on this CPU: imports, layout, train, rollout, or all that apply.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Run a recipe that is for timing and trains nothing.")
    ] = False,
    expect: Expect = None,
    allow_drift: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--allow-drift",
            metavar="REASON",
            help="Run a workspace that is not as locked: its changes are recorded, and the run is marked unproven.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a recipe in the workspace: through Ray on NPUs, or as a rehearsal on a CPU."""
    from npu_rl.cli.train import run

    run(
        recipe,
        overrides or [],
        workspace,
        python,
        dry_run,
        rehearse,
        resume,
        benchmark,
        expect,
        allow_drift,
        json,
    )


@app.command("plan")
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    workspace: Workspace = None,
    die_memory: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--die-memory-gb",
            metavar="GB",
            help="Memory of a die, in 10^9 bytes, in place of the recipe's cluster.die_memory_gb.",
            show_default=False,
        ),
    ] = None,
    host_memory: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--host-memory-gb",
            metavar="GB",
            help="Memory of a node for what is offloaded; not judged if left out.",
            show_default=False,
        ),
    ] = None,
    disk: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--disk-gb",
            metavar="GB",
            help="Free space where checkpoints are written; not judged if left out.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--storage-gbs",
            metavar="GB/S",
            help="Speed of the storage the weights are loaded from.",
            show_default=False,
        ),
    ] = None,
    every_rule: Annotated[
        bool, typer.Option("--all", help="List every rule that holds, and why others don't apply.")
    ] = False,
    json: Json = False,
) -> None:
    """Say whether a recipe fits: rules, layout, memory, disk, load time, tokens. Exit 1 if it doesn't."""
    from npu_rl.cli.plan import run

    run(recipe, overrides or [], workspace, die_memory, host_memory, disk, storage, every_rule, json)


@app.command("status")
def status(workspace: Workspace = None, json: Json = False) -> None:
    """Say what the workspace is: manifest, ids, components, patches, local changes."""
    from npu_rl.cli.status import run

    run(workspace, json)


@app.command("diff")
def diff(
    workspace: Workspace = None,
    component: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--component",
            metavar="NAME",
            help="Only the changes of NAME, in its own paths: a patch for its `patches:`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show local changes as a patch against the locked tree."""
    from npu_rl.cli.diff import run

    run(workspace, component)


@app.command("list")
def list_manifests(
    patches: Annotated[
        bool,
        typer.Option("--patches", help="Instead: every bundled patch, what proves it, what only an NPU can."),
    ] = False,
    json: Json = False,
) -> None:
    """List the bundled manifests, or the bundled patches."""
    from npu_rl.cli.list import run

    run(json, patches)


@app.command("lock")
def lock(
    manifest: Manifest,
    update: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--update", metavar="COMPONENT", help="Resolve only this one anew; the others keep their ids."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the lock is not up to date.")
    ] = False,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--output",
            "-o",
            metavar="F",
            help="Where to write.  [default: beside the manifest]",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
) -> None:
    """Resolve a manifest: every ref, pull request, merge, patch and tree, to full ids."""
    from npu_rl.cli.lock import run

    run(manifest, update or [], check, output, jobs, offline, rewrite or [])


@app.command("schema")
def schema(
    recipe: Annotated[bool, typer.Option("--recipe", help="The schema of recipes instead.")] = False,
) -> None:
    """Print the JSON Schema of manifests or recipes, for editors."""
    from npu_rl.cli.schema import run

    run(recipe)


@recipes_app.command("list")
def recipes_list(json: Json = False) -> None:
    """List the bundled recipes."""
    from npu_rl.cli.recipes import list_bundled

    list_bundled(json)


@recipes_app.command("show")
def recipes_show(recipe: Recipe, overrides: Overrides = None, json: Json = False) -> None:
    """Print a recipe as one YAML file: what it extends and KEY=VALUE resolved, and where each line is from."""
    from npu_rl.cli.recipes import show

    show(recipe, overrides or [], json)


@recipes_app.command("copy")
def recipes_copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled recipe.")],
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="FILE", help="Where to.  [default: NAME.yaml in this folder]", show_default=False
        ),
    ] = None,
) -> None:
    """Copy a bundled recipe beside you, to change it. Nothing is overwritten."""
    from npu_rl.cli.recipes import copy

    copy(name, file)


@recipes_app.command("check")
def recipes_check(
    recipe: Recipe, overrides: Overrides = None, workspace: Workspace = None, json: Json = False
) -> None:
    """Check a recipe: its own keys, and each key of the trainer against the workspace's code. Exit 1 if wrong."""
    from npu_rl.cli.recipes import check

    check(recipe, overrides or [], workspace, json)


@store_app.command("gc")
def store_gc(
    days: Annotated[
        float, typer.Option("--days", min=0.0, metavar="N", help="Drop what nobody used for N days.")
    ] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Drop what was not used lately from the store. Workspaces do not need it."""
    from npu_rl.cli.store import gc

    gc(days, dry_run, json)
