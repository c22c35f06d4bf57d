"""The commands `npu-rl data get` and `npu-rl weights get`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_last
from npu_rl.cli.options import DatasetName, Json
from npu_rl.cli.show import LiveWatcher, amount, error_count, print_json, say, tell
from npu_rl.common.printable import counted

if TYPE_CHECKING:
    from npu_rl.data.downloads.known_downloads import Download
    from npu_rl.data.downloads.verify_download import VerifiedDownload

_MIRROR = "https://hf-mirror.com"

Folder = Annotated[
    Path | None, typer.Option("--to", metavar="DIR", help="Folder of the download.  [default: NAME]")
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="COMMIT", help="Pin a commit of the hub.")
]
Mirror = Annotated[str, typer.Option("--mirror", metavar="URL", help="A mirror of the hub.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Verify what was downloaded, in place of printing commands.")
]


@examples(
    "npu-rl data get deepscaler",
    "npu-rl data get deepscaler --to /data/deepscaler --verify",
    "npu-rl data get gsm8k --mirror https://hub.example.com --json",
)
def data(
    dataset: DatasetName,
    to: Folder = None,
    revision: Revision = None,
    mirror: Mirror = _MIRROR,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Print how to download a dataset.

    Nothing is downloaded. --verify compares each file with the hash that the hub stated, or with what else is known.
    """
    _get("dataset", dataset, to, revision, mirror, verify, json)


@examples(
    "npu-rl weights get deepseek-v3-base",
    "npu-rl weights get deepseek-v3-base --to /data/V3-Base --verify",
    "npu-rl weights get qwen2.5-7b --json",
)
def weights(
    model: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model, such as deepseek-v3-base; an unknown name lists all."),
    ],
    to: Folder = None,
    revision: Revision = None,
    mirror: Mirror = _MIRROR,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Print how to download weights.

    Nothing is downloaded. --verify compares each file with the hash that the hub stated, or with what else is known.
    """
    _get("model", model, to, revision, mirror, verify, json)


def _get(
    kind: str, name: str, to: Path | None, revision: str | None, mirror: str, verify: bool, json: bool
) -> None:
    import re

    from npu_rl.common.errors import UsageError
    from npu_rl.common.user_path import user_path
    from npu_rl.common.yaml_documents.suggest import did_you_mean
    from npu_rl.data.downloads.known_downloads import of_kind

    known = of_kind(kind)
    if name not in known:
        near = did_you_mean(name, list(known))
        raise UsageError(f"Unknown {kind} {name!r}{near}", where="NAME", hint=f"Names: {', '.join(known)}")
    if revision is not None and not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UsageError(
            f"--revision {revision!r} is not a commit",
            why="A branch or tag can move.",
            hint="Write the 40 characters of a commit of the hub.",
        )
    one = known[name]
    folder = user_path(to, "--to") if to else Path(name)
    if verify:
        _verify(one, folder, revision, json)
    else:
        _print_commands(one, folder, revision, mirror, json)


def _print_commands(one: Download, folder: Path, revision: str | None, mirror: str, json: bool) -> None:
    import shlex

    from npu_rl.data.downloads.known_downloads import commands

    listed = dict(commands(one, folder, revision, mirror))
    then = one.then.format(folder=shlex.quote(str(folder)))
    if json:
        print_json(
            {
                "name": one.name,
                "revision": revision,
                "commands": listed,
                "named_by": one.source,
                "next": then or None,
            }
        )
        return
    for place, command in listed.items():
        say(f"{place + ':':<12}{command}", whole=True)
    for place, there in (("hub", one.hub), ("modelscope", one.modelscope)):
        if not there:
            say(f"{place + ':':<12}(no document of the stacks names it there)")
    say(f"named by:   {one.source}")
    if not revision:
        say("revision:   not pinned: no document names a commit. --revision COMMIT pins one of the hub's.")
    kind = "data" if one.kind == "dataset" else "weights"
    say(f"then:       npu-rl {kind} get {one.name} --to {shlex.quote(str(folder))} --verify")
    if then:
        say(f"            {then}", whole=True)


def _verify(one: Download, folder: Path, revision: str | None, json: bool) -> None:
    import shlex
    import sys

    from npu_rl.common.user_path import existing_folder
    from npu_rl.data.downloads.verify_download import verify_download

    kind = "data" if one.kind == "dataset" else "weights"
    existing_folder(folder, f"Download into it; these are the commands: npu-rl {kind} get {one.name}")
    then = one.then.format(folder=shlex.quote(str(folder)))
    if_interrupted(STARTS_OVER)
    if sys.stderr.isatty():
        with LiveWatcher() as watching:
            watching.begin(one.name, str(folder))
            found = verify_download(
                folder,
                one.files,
                revision,
                lambda done, total: watching.advance(one.name, f"{done / 1e9:.1f} GB hashed", done / total),
            )
    else:
        tell(f"{one.name}: hashing the files in {folder}")
        found = verify_download(folder, one.files, revision, lambda _done, _total: None)
    if json:
        print_json(
            {
                "ok": not found.faults,
                "name": one.name,
                "folder": str(folder),
                "commits": found.commits,
                "bytes": found.size,
                "hashed": found.hashed,
                "whole": found.whole,
                "unknown": found.unknown,
                "faults": found.faults,
            }
        )
    else:
        _say_verified(found)
    if found.faults:
        raise SystemExit(1)
    if then and not json:
        tell_last(f"Next: {then}")


def _say_verified(found: VerifiedDownload) -> None:

    for fault in found.faults:
        say(f"error: {fault}")
    if found.hashed:
        say(f"with the hash that the hub stated: {_files(found.hashed)}")
    if found.whole:
        say(f"as long as their header states, no hash known: {_files(found.whole)}")
    if found.unknown:
        say(f"nothing known to compare with: {_files(found.unknown)}")
    if found.commits:
        say(f"from commit {', '.join(found.commits)}")
    say(f"{found.folder}: {amount(found.size)}, {error_count(len(found.faults))}")


def _files(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return f"{counted(len(names), 'file')} ({', '.join(names[:3])}{more})"
