"""Products get in place all or not at all, wherever the process is killed or the disk fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from npu_rl.common.confined_changes import Confined
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.products.built_products import (
    BuiltProduct,
    built_products,
    check_built,
    file_facts,
    state_on_disk,
)
from npu_rl.workspace.products.placed_products import journal_path, place_products, undo_interrupted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
OLD, NEW = (
    {"code/p/a.so": b"old a", "code/gone.so": b"old"},
    {"code/p/a.so": b"new a", "code/q/b.so": b"new b"},
)


class Home:
    """A workspace's folder with the products OLD, and a build's folder with NEW."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / ".npu-rl/build-0123456789ab"
        (root / "code/p").mkdir(parents=True)
        (root / "code/p/locked.py").write_text("")
        for base, files in ((root, OLD), (self.folder, NEW)):
            for path, content in files.items():
                (base / path).parent.mkdir(parents=True, exist_ok=True)
                (base / path).write_bytes(content)
        self.old = [self.product(root, path) for path in OLD]
        self.new = {self.folder / path: self.product(self.folder, path) for path in NEW}
        self.write(self.old)

    def product(self, base: Path, path: str) -> BuiltProduct:
        return BuiltProduct(path, "ext", *file_facts(base / path), "0" * 40, "1" * 64, "3.11.7")

    def write(self, products: list[BuiltProduct]) -> None:
        text = json.dumps({"built": [product.to_json() for product in products]}).encode()
        Confined(self.root).write(self.root / ".npu-rl/receipt.json", text)

    def listed(self) -> dict[str, BuiltProduct]:
        return built_products(json.loads((self.root / ".npu-rl/receipt.json").read_text()))

    def place(self) -> None:
        write: Callable[[], None] = lambda: self.write(list(self.new.values()))  # noqa: E731
        place_products(self.root, self.folder, self.new, self.old, write, self.listed)

    def state(self) -> str:
        """Which products are there; they and the receipt have to agree."""
        files = {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in (self.root / "code").rglob("*.so")
        }
        assert files in (OLD, NEW)
        assert set(self.listed()) == set(files)
        assert (self.root / "code/q").exists() == (files == NEW)
        assert not journal_path(self.root).exists()
        return "old" if files == OLD else "new"


def faults(patch: pytest.MonkeyPatch, at: int, fault: Callable[[], None]) -> None:
    """Have a fault come before the change with this number."""
    count = iter(range(1000))
    for name in ("move", "write", "remove"):
        change = getattr(Confined, name)

        def counted(
            self: Confined, *words: object, change: Callable[..., None] = change, **named: object
        ) -> None:
            if next(count) == at:
                fault()
            change(self, *words, **named)

        patch.setattr(Confined, name, counted)


def test_without_a_fault(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    home.place()
    assert home.state() == "new"


def test_a_kill_at_each_step_is_settled(tmp_path: Path) -> None:
    seen = set()
    for at in range(12):
        home = Home(tmp_path / str(at))
        child = os.fork()
        if child == 0:
            faults(pytest.MonkeyPatch(), at, lambda: os._exit(9))
            home.place()
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        undo_interrupted(home.root, home.listed())
        seen.add((ended, home.state()))
    assert seen == {(9, "old"), (9, "new"), (0, "new")}


def test_a_fault_at_each_step_leaves_the_old_ones(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    for at in range(6):  # the journal, two old ones out, two new ones in, the receipt
        home = Home(tmp_path / str(at))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space"):
            faults(patch, at, full)
            home.place()
        assert home.state() == "old"


def test_what_is_in_a_products_place_is_not_touched(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    (home.root / "code/q").mkdir()
    (home.root / "code/q/b.so").write_text("mine")
    with pytest.raises(WorkspaceError, match="A file is in the way of a product"):
        home.place()
    assert (home.root / "code/q/b.so").read_text() == "mine"
    assert (home.root / "code/p/a.so").read_bytes() == b"old a"


def journals() -> Iterator[str]:
    good = Home.product(None, Path(__file__).parent, "__init__.py").to_json()  # type: ignore[arg-type]
    for path in (
        "../x",
        "code/../../x",
        "/etc/passwd",
        "runs/x",
        "src/../x",
        ".npu-rl/lock.json",
        "code/.git/x",
    ):
        yield json.dumps({"folder": "build-0123456789ab", "new": [{**good, "path": path}], "old": []})
        new = [{**good, "path": "code/x"}]
        yield json.dumps({"folder": "build-0123456789ab", "new": new, "old": [path]})
    for folder in ("../build-0123456789ab", "kept", "build-", 7):
        yield json.dumps({"folder": folder, "new": [{**good, "path": "code/x"}], "old": []})
    yield from ("", "[]", "{", '{"folder": "build-0123456789ab"}', '{"folder": null, "new": [7], "old": []}')


@pytest.mark.parametrize("text", list(journals()))
def test_a_forged_journal_moves_nothing(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path / "w")
    journal_path(home.root).write_text(text)
    with pytest.raises(WorkspaceError, match="can't be read"):
        undo_interrupted(home.root, {})
    assert {path: (home.root / path).read_bytes() for path in OLD} == OLD


def test_a_link_on_the_way_is_not_a_product(tmp_path: Path) -> None:
    home = Home(tmp_path / "w")
    (home.root / "code/p").rename(tmp_path / "elsewhere")
    (home.root / "code/p").symlink_to(tmp_path / "elsewhere")
    assert [state_on_disk(home.root, product) for product in home.old] == ["modified", "built here"]
    (home.root / "code/gone.so").unlink()
    (home.root / "code/gone.so").symlink_to("p/locked.py")
    assert state_on_disk(home.root, home.old[1]) == "modified"


@pytest.mark.parametrize(
    "change",
    [
        {"path": "code/../x"}, {"path": "code"}, {"path": "runs/x"}, {"path": 7}, {"sha256": "0"},
        {"size": "1"}, {"size": True}, {"executable": 1}, {"more": 1}, {"source": None},
    ],
)  # fmt: skip
def test_a_receipt_with_an_invalid_product_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    good = Home(tmp_path / "w").old[0].to_json()
    check_built([good], ["code"])
    for bad in ([{**good, **change}], [good, good], {"code": good}, [7]):
        with pytest.raises(ValueError):
            check_built(bad, ["code"])
