"""Changes that stay below one folder: no link is followed, nothing is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npu_rl.common.confined_changes import Confined, LinkOnTheWay
from npu_rl.common.disk import remove_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, and with a link to a folder outside that has one of the same name."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("precious")
    (tmp_path / "root/below").mkdir(parents=True)
    (tmp_path / "root/file").write_text("ours")
    (tmp_path / "root/link").symlink_to("../outside")
    return tmp_path / "root"


def test_every_change_stops_at_a_link(root: Path) -> None:
    inside, beyond = Confined(root), root / "link/file"
    for change in (
        lambda: inside.move(root / "file", beyond),
        lambda: inside.move(root / "file", root / "link/new/file"),
        lambda: inside.move(beyond, root / "stolen"),
        lambda: inside.write(beyond, b"evil"),
        lambda: inside.make(root / "link/new"),
        lambda: inside.make(root / "link"),
        lambda: inside.remove(beyond),
        lambda: inside.read(beyond, 100),
        lambda: inside.handle(beyond, os.O_RDWR | os.O_CREAT),
        lambda: inside.exists(beyond),
    ):
        with pytest.raises(LinkOnTheWay, match="link is a symbolic link"):
            change()
    assert sorted(os.listdir(root)) == ["below", "file", "link"]
    assert [p.read_text() for p in (root.parent / "outside").iterdir()] == ["precious"]


def test_a_link_itself_is_moved_and_removed(root: Path) -> None:
    inside = Confined(root)
    inside.move(root / "link", root / "below/new/link")
    assert (root / "below/new/link").is_symlink()
    inside.remove(root / "below")
    assert (root.parent / "outside/file").read_text() == "precious"


def test_the_folder_itself_may_be_a_link(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    inside = Confined(root.parent / "alias")
    inside.move(inside.root / "file", inside.root / "below/file")
    assert (root / "below/file").read_text() == "ours"


@pytest.mark.parametrize("taken", ["file", "below", "link", "broken"])
def test_nothing_is_renamed_over(root: Path, taken: str) -> None:
    """rename(2) replaces a file, and an empty folder by a folder, without a word."""
    (root / "broken").symlink_to("nowhere")
    (root / "mine").mkdir()
    (root / "new.txt").write_text("")
    for source in ("mine", "new.txt"):
        with pytest.raises(FileExistsError):
            Confined(root).move(root / source, root / taken)
        assert os.path.lexists(root / source)


def test_what_is_not_there_makes_no_folders(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Confined(root).move(root / "nothing", root / "a/b/c")
    assert not (root / "a").exists()


def test_no_path_leaves_the_folder(root: Path) -> None:
    for path in (root / "../outside/file", root.parent / "outside/file", Path("/etc/passwd")):
        with pytest.raises(ValueError, match=r"leaves|subpath"):
            Confined(root).remove(path)
    assert (root.parent / "outside/file").exists()


def test_writing_replaces_whole(root: Path) -> None:
    """Our own records: a link or a pipe under their name is replaced, not written through."""
    inside = Confined(root)
    (root / "record").symlink_to("../outside/file")
    inside.write(root / "record", b"new", sync=True)
    assert (root / "record").read_text() == "new"
    assert not (root / "record").is_symlink()
    assert (root.parent / "outside/file").read_text() == "precious"
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_reading_has_a_bound_and_waits_for_nothing(root: Path) -> None:
    inside = Confined(root)
    os.mkfifo(root / "pipe")
    os.symlink("file", root / "alias")
    with (root / "large").open("wb") as file:
        file.truncate(2**40)
    assert inside.read(root / "file", 4) == b"ours"
    for name, limit in (("file", 3), ("pipe", 9), ("alias", 9), ("below", 9), ("large", 9), ("/dev/zero", 9)):
        with pytest.raises((OSError, ValueError)):
            inside.read(root / name, limit)


def test_an_error_names_the_whole_path(root: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Confined(root).read(root / "below/nothing", 9)
    assert caught.value.filename == str(root / "below/nothing")


def test_folders_without_end_are_removed(root: Path) -> None:
    """No path reaches the innermost, and no recursion either."""
    here = os.open(root / "below", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(root / "below")
    assert not (root / "below").exists()


def test_a_handle_that_is_not_needed_is_closed(root: Path) -> None:
    inside = Confined(root)
    before = len(os.listdir("/dev/fd"))
    for _ in range(50):
        inside.write(root / "below/a/b/record", b"") if (root / "below/a/b").exists() else inside.make(
            root / "below/a/b"
        )
        inside.exists(root / "below/a/b/c")
        with pytest.raises(LinkOnTheWay):
            inside.make(root / "link/x")
        with pytest.raises(OSError, match="regular"):
            inside.read(root / "below", 9)
    assert len(os.listdir("/dev/fd")) == before
