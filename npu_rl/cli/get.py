"""The commands `npu-rl data get` and `npu-rl weights get`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import DatasetName, Json
from npu_rl.cli.progress import Bars
from npu_rl.cli.show import STARTS_OVER, amount, error_count, if_interrupted, print_json, say, tell, tell_last
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


@examples("npu-rl data get deepscaler --to /data/deepscaler --verify")
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
    _get("data", dataset, to, revision, mirror, verify, json)


@examples("npu-rl weights get deepseek-v3-base --to /data/V3-Base --verify")
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
    _get("weights", model, to, revision, mirror, verify, json)


def _get(
    group: str, name: str, to: Path | None, revision: str | None, mirror: str, verify: bool, json: bool
) -> None:
    from npu_rl.common.user_path import user_path
    from npu_rl.data.downloads.known_downloads import known_download, require_commit

    one = known_download("dataset" if group == "data" else "model", name)
    require_commit(revision)
    folder = user_path(to, "--to") if to else Path(name)
    if verify:
        _verify(group, one, folder, revision, json)
    else:
        _say_commands(group, one, folder, revision, mirror, json)


def _say_commands(
    group: str, one: Download, folder: Path, revision: str | None, mirror: str, json: bool
) -> None:
    from npu_rl.data.downloads.known_downloads import download_commands

    found = download_commands(one, folder, revision, mirror)
    if json:
        print_json(found)
        return
    for place, command in found.commands.items():
        say(f"{place + ':':<12}{command}")
    for place, there in (("hub", one.hub), ("modelscope", one.modelscope)):
        if not there:
            say(f"{place + ':':<12}(no document says where it is there)")
    say(f"named by:   {one.source}")
    if not revision:
        say("revision:   not pinned: no document names a commit. --revision COMMIT pins one of the hub's.")
    say(f"then:       npu-rl {group} get {one.name} --to {shlex.quote(str(folder))} --verify")
    if found.next:
        say(f"            {found.next}")


def _verify(group: str, one: Download, folder: Path, revision: str | None, json: bool) -> None:
    from npu_rl.common.user_path import existing_folder
    from npu_rl.data.downloads.verify_download import verify_download

    existing_folder(folder, f"Download into it; these are the commands: npu-rl {group} get {one.name}")
    if_interrupted(STARTS_OVER)
    tell(f"{one.name}: hashing the files in {folder}")
    with Bars() as bars:
        found = verify_download(
            folder,
            one.files,
            revision,
            lambda done, total: bars.move(one.name, f"{done / 1e9:.1f} GB hashed", done / total),
        )
    if json:
        print_json(found)
    else:
        _say_verified(found)
    if not found.ok:
        raise SystemExit(1)
    if one.then and not json:
        tell_last(f"Next: {one.next_command(folder)}")


def _say_verified(found: VerifiedDownload) -> None:
    for fault in found.faults:
        say(f"error: {fault}")
    for how, names in (
        ("with the hash that the hub stated", found.hashed),
        ("as long as their header states, no hash known", found.whole),
        ("nothing known to compare with", found.unknown),
    ):
        if names:
            more = f" and {len(names) - 3} more" if names[3:] else ""
            say(f"{how}: {counted(len(names), 'file')} ({', '.join(names[:3])}{more})")
    if found.commits:
        say(f"from commit {', '.join(found.commits)}")
    say(f"{found.folder}: {amount(found.size)}, {error_count(len(found.faults))}")
