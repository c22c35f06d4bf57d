"""The store: nothing half done is ever seen, nothing damaged is ever used, nothing of the dead stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from npu_rl.common.disk import LockUse, disk_errors
from npu_rl.common.errors import HostError
from npu_rl.stack.git.command import Git
from npu_rl.stack.store import DAY, LOCK, Store, Unit, pack_loose, unit_key
from tests.support import ROOT, assert_told, clean_env, ok, run_cli, run_program, unprivileged

KEY = unit_key("test", ["a"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def fill(quarantine: Path, text: str = "hello\n") -> str:
    """One blob in one pack; its id."""
    repository = Git(quarantine)
    blob = repository.text("hash-object", "-w", "--stdin", input=text.encode())
    pack_loose(repository)
    return blob


def make(store: Store, key: str = KEY, text: str = "hello\n") -> Unit:
    with store.quarantine() as folder:
        fill(folder, text)
        return store.publish(folder, key, {"who": "test"})


def left(store: Store) -> list[str]:
    return sorted(path.name for path in store.temporary.iterdir())


# -- units ---------------------------------------------------------------------------------------------


def test_a_unit_is_found_once_it_is_published_and_lends_its_objects(store: Store, tmp_path: Path) -> None:
    with store.quarantine() as folder:
        blob = fill(folder)
        assert store.find(KEY) is None
        unit = store.publish(folder, KEY, {"who": "test"})
    assert store.find(KEY) == unit
    facts = unit.facts()
    assert facts["who"] == "test"
    assert abs(facts["made"] - time.time()) < 60
    assert unit.size() == sum(p.stat().st_size for p in unit.path.rglob("*.pack")) > 0
    with store.quarantine() as folder:
        assert Git(folder, alternates=(unit.objects,)).text("cat-file", "-p", blob) == "hello"
    assert left(store) == []


def test_a_quarantine_vanishes_whatever_happens(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.quarantine() as folder:
        fill(folder)
        (folder / "objects" / "pack").chmod(0o500)
        raise KeyboardInterrupt
    assert left(store) == []


RACE = """
import sys
from pathlib import Path
from npu_rl.stack.store import Store
from tests.test_store import KEY, fill
store = Store(Path(sys.argv[1]))
for i in range(8):
    with store.quarantine() as folder:
        fill(folder, str(i))
        print(flush=True)
        sys.stdin.readline()
        store.publish(folder, KEY + str(i), {"who": sys.argv[2]})
        assert store.find(KEY + str(i)) is not None
"""


def test_processes_that_publish_the_same_key_at_once_do_not_harm_each_other(
    store: Store, tmp_path: Path
) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RACE, str(store.root), name],
            env=clean_env(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    with start("a") as a, start("b") as b:
        for _ in range(8):
            for process in (a, b):
                assert process.stdout is not None and process.stdin is not None
                process.stdout.readline()
            for process in (a, b):
                assert process.stdin is not None
                process.stdin.write("\n")
        assert a.wait() == b.wait() == 0
    winners = [store.find(f"{KEY}{i}") for i in range(8)]
    assert all(unit is not None and unit.facts()["who"] in "ab" for unit in winners)
    assert left(store) == []


# -- damage --------------------------------------------------------------------------------------------


def _flip(path: Path, at: int) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


def _of(unit: Unit, suffix: str) -> Path:
    return next(unit.objects.glob(f"pack/*{suffix}"))


DAMAGE: dict[str, Callable[[Unit], None]] = {
    "a bit of the pack": lambda unit: _flip(_of(unit, ".pack"), 15),
    "a bit of the index": lambda unit: _flip(_of(unit, ".idx"), 100),
    "the pack's end": lambda unit: _truncate(_of(unit, ".pack")),
    "no index": lambda unit: _of(unit, ".idx").unlink(),
    "no record": lambda unit: (unit.path / "unit.json").unlink(),
    "a record with another digit": lambda unit: _flip(unit.path / "unit.json", -3),
}


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_unit_is_dropped_and_can_be_made_again(harm: Callable[[Unit], None], store: Store) -> None:
    harm(make(store))
    assert store.find(KEY) is None
    assert not (store.units / KEY).exists()
    assert make(store) == store.find(KEY)
    assert left(store) == []


# -- files ---------------------------------------------------------------------------------------------


def test_files_are_kept_by_their_hash_and_a_damaged_one_is_replaced(store: Store) -> None:
    digest = store.keep_file(b"patch\r\n\0")
    assert store.keep_file(b"patch\r\n\0") == digest
    assert store.kept_file(digest) == b"patch\r\n\0"
    assert store.kept_file("0" * 64) is None
    (store.files / digest).write_bytes(b"patCh\r\n\0")
    assert store.kept_file(digest) is None
    assert store.keep_file(b"patch\r\n\0") == digest
    assert store.kept_file(digest) == b"patch\r\n\0"
    assert left(store) == []


# -- sweeping ------------------------------------------------------------------------------------------

GONE, Q_OLD, Q_NEW = "gone-0123456789abcdef", "q-0123456789abcdef", "q-fedcba9876543210"
HALF_WRITTEN = f".{'0' * 60}.0123456789ab"
STRANGERS = ("thesis.txt", "q-new", "gone-1", ".0123.half-written", "mine.lock", "sub/notes.md")

HOLD = """
import sys
from pathlib import Path
from npu_rl.stack.store import Store
store = Store(Path(sys.argv[1]))
with store.quarantine() as folder:
    (folder / "objects" / "pack" / "half.pack").write_bytes(b"PACK")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(store: Store, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that is in the middle of a delivery, and the name of its quarantine."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root)],
        env=clean_env(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_sweep_spares_the_living_and_removes_what_the_killed_left(
    store: Store, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, name = holder
    (store.temporary / GONE).mkdir()  # about to be removed by somebody: nobody needs it
    assert store.sweep() == 1
    os.utime(store.temporary / name, (0, 0))
    assert store.sweep() == 0
    assert left(store) == [name]
    process.kill()
    process.wait()
    (store.temporary / HALF_WRITTEN).write_bytes(b"")
    (store.temporary / Q_NEW).mkdir()
    assert store.sweep() == 3
    assert left(store) == []


def test_sweep_while_others_begin_and_end(store: Store) -> None:
    """A quarantine is never taken for a dead one's, not even at the moment it is made."""
    end = threading.Event()
    wrong: list[BaseException] = []

    def deliver() -> None:
        try:
            while not end.is_set():
                with store.quarantine() as folder:
                    (folder / "objects" / "x").write_bytes(b"")
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=deliver) for _ in range(3)]
    for thread in threads:
        thread.start()
    other = Store(store.root)
    for _ in range(150):
        other.sweep()
    end.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert left(store) == []


def test_neither_sweep_nor_gc_removes_what_npu_rl_did_not_name(store: Store) -> None:
    for folder in (store.root, store.temporary, store.units, store.files):
        for name in STRANGERS:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
            os.utime(path, (0, 0))
    unit = make(store)
    before = {p for p in store.root.rglob("*") if unit.path not in (p, *p.parents)}
    Store(store.root).sweep()
    assert [one.key for one in store.gc(days=0)[0]] == [unit.key]
    assert set(store.root.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    [
        "thesis.txt",
        "objects/pack/mine.part",
    ],
)
def test_a_unit_with_a_file_of_somebody_else_stays(store: Store, name: str) -> None:
    unit = make(store)
    mine = unit.path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    assert store.gc(days=0) == ([], 0, [mine])
    assert store.find(unit.key) == unit
    (unit.path / "unit.json").write_text("damaged")
    with pytest.raises(HostError, match="has a file that npu-rl did not write"):
        store.find(unit.key)
    assert mine.read_text() == "mine"
    mine.unlink()
    assert store.find(unit.key) is None


# -- whose folder --------------------------------------------------------------------------------------


def tree(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_text() if p.is_file() else ""
        for p in root.rglob("*")
    }


@pytest.mark.parametrize(
    "name",
    ["tmp/thesis.txt", "mine"],
)
def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path, name: str) -> None:
    root = tmp_path / "my data"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text("mine")
    before = tree(root)
    for command in (["store", "gc", "--days", "0"], ["store", "gc", "--dry-run"]):
        done = run_cli(command, {**clean_env(tmp_path), "NPU_RL_STORE": str(root)})
        assert_told(
            done,
            "is not a store of npu-rl, and it is not empty",
            f"export NPU_RL_STORE='{root}/npu-rl-store'",
            code=3,
        )
    assert tree(root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_store_is_refused_unless_listed(store: Store, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(store.root), "NPU_RL_CONFIG": str(config)}
    os.chown(store.root, 65534, 65534)
    (store.temporary / Q_OLD).mkdir()
    done = run_cli(["store", "gc"], env)
    assert_told(done, f"The store {store.root} belongs to another user", code=3)
    line = f'safe_folders: ["{store.root}"]'
    assert line in done.stderr
    assert left(store) == [Q_OLD]
    config.write_text(line)
    assert run_cli(["store", "gc"], env).returncode == 0
    assert left(store) == []


# -- garbage -------------------------------------------------------------------------------------------


def _age(unit: Unit, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(unit.path / "unit.json", (then, then))


def test_gc_drops_what_nobody_used_lately(store: Store) -> None:
    old, new = make(store, unit_key("old", [])), make(store, unit_key("new", []))
    _age(old, 31)
    _age(new, 29)
    expected = sum(p.stat().st_size for p in old.path.rglob("*") if p.is_file())
    assert store.gc(days=30, dry_run=True) == ([old], expected, [])
    store.find(old.key)  # a use
    assert store.gc(days=30) == ([], 0, [])
    _age(old, 31)
    assert store.gc(days=30) == ([old], expected, [])
    assert store.find(old.key) is None
    _age(new, -1)  # the clock is behind
    assert store.gc(days=0).units == [new]
    assert left(store) == []


def test_gc_refuses_while_another_process_uses_the_store(
    store: Store, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, _ = holder
    unit = make(store)
    with pytest.raises(HostError, match="using the store") as caught:
        store.gc(days=0)
    assert caught.value.exit_code == 3
    assert store.gc(days=0, dry_run=True)[0] == [unit]
    assert store.find(KEY) == unit
    process.kill()
    process.wait()
    assert store.gc(days=0)[0] == [unit]


def test_every_thread_waits_while_another_process_has_the_store_alone(tmp_path: Path) -> None:
    """The second thread of a delivery went on while the first waited, and `gc` removed its units."""
    lock = tmp_path / LOCK
    holding = (
        f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True)"
    )
    words = [sys.executable, "-c", f"{holding}; time.sleep(60)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        use = LockUse(lock)
        threads = [threading.Thread(target=use.begin) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join(0.2)
        assert [thread.is_alive() for thread in threads] == [True] * 3
        other.kill()
    for thread in threads:
        thread.join(10)
    assert use.begun and not any(thread.is_alive() for thread in threads)


# -- what a disk can say -------------------------------------------------------------------------------

WHAT = {
    errno.ENOSPC: "The disk is full",
    errno.EACCES: "No permission",
    errno.ENOTDIR: "A file exists where a folder is needed",
}


@pytest.mark.parametrize(("number", "what"), WHAT.items(), ids=[errno.errorcode[n] for n in WHAT])
def test_disk_errors_are_for_people(number: int, what: str) -> None:
    with pytest.raises(HostError, match=what) as caught, disk_errors(Path("/store")):
        raise OSError(number, os.strerror(number), "/store/file")
    assert (caught.value.where, caught.value.why) == ("/store/file", os.strerror(number))
    assert caught.value.hint
    assert caught.value.exit_code == 3


READ_ONLY = """
from pathlib import Path
from npu_rl.common.errors import HostError
from npu_rl.stack.store import Store
import sys
store = Store(Path(sys.argv[1]))
unit = store.find(sys.argv[2])
print(unit is not None and len(unit.packs()))
print(store.kept_file(store.keep_file(b"kept")))
print(store.sweep())
try:
    with store.quarantine():
        pass
except HostError as error:
    print(error.what)
"""


def test_a_read_only_store_still_serves(store: Store, tmp_path: Path) -> None:
    make(store)
    store.keep_file(b"kept")
    stray = store.temporary / "gone-stray"
    (stray / "x").mkdir(parents=True)
    folders = [p for p in (store.root, *store.root.rglob("*")) if p.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        words = unprivileged([sys.executable, "-c", READ_ONLY, store.root, KEY])
        done = run_program(words, env=clean_env(tmp_path), cwd=ROOT)
    finally:
        for folder in folders:
            if folder.exists():
                folder.chmod(0o755)
    assert done.stdout.splitlines() == ["1", "b'kept'", "0", "No permission"], done.stderr


# -- removing ------------------------------------------------------------------------------------------


def test_remove_tree_removes_whatever_its_permissions(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").write_bytes(b"")
    (deep / "link").symlink_to(outside)
    for folder in (deep, deep.parent, deep.parent.parent):
        folder.chmod(0)
    before = tmp_path.stat().st_mode
    code = "import sys; from pathlib import Path; from npu_rl.common.disk import remove_tree; "
    code += "remove_tree(Path(sys.argv[1]))"
    words = unprivileged([sys.executable, "-c", code, tmp_path / "a"])
    ok(run_program(words, env=clean_env(tmp_path), cwd=ROOT))
    assert not (tmp_path / "a").exists()
    assert (outside / "file").exists(), "a link was followed"
    assert tmp_path.stat().st_mode == before, "a folder beside was opened"
    assert outside.stat().st_mode & 0o777 == 0o750
