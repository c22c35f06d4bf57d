from __future__ import annotations

import atexit
import compileall
import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from tests import hydra_in_process
from tests.support import BYTE_CODE, QUICKSTART, ROOT, index_env, require_untouched, run_cli

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control ignores it for what it starts in the background, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM):
    if (
        signal.getsignal(number) is signal.SIG_IGN
    ):  # as under nohup: a command keeps to it, and its test would wait
        signal.signal(number, signal.SIG_DFL)

# As many test processes as cores: threads of their own would wait for each other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where processes that import whole trees keep byte code: one place for all test processes, made by the first.
if BYTE_CODE not in os.environ:
    os.environ[BYTE_CODE] = tempfile.mkdtemp(prefix="npu-rl-byte-code-")
    atexit.register(shutil.rmtree, os.environ[BYTE_CODE], ignore_errors=True)

# In memory, where it can hold them: disks take milliseconds to remove a file, and the tests make some 100,000.
# Docker's has 64 MB, and nothing in it may be executed.
SHM = "/dev/shm"
if os.path.isdir(SHM) and not os.statvfs(SHM).f_flag & os.ST_NOEXEC and shutil.disk_usage(SHM).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SHM)

# pytest compiles each test file in 20 ms, and keeps that as Python keeps byte code. Only while it collects: a test that
# imports a module of a tree leaves nothing there.
sys.dont_write_bytecode = False

# Some thousand processes start npu-rl, and none of them writes byte code: without this each would compile it anew.
if "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(str(ROOT / "npu_rl"), quiet=2)

# Tests that call npu-rl in this process keep out of the user's own store, byte code and log.
if "NPU_RL_TEST_CACHE" not in os.environ:
    os.environ["NPU_RL_TEST_CACHE"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(
        prefix="npu-rl-test-cache-"
    )
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"]
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

hydra_in_process.install()

# A busy machine is not a fault: an example that takes 0.2 s where others take milliseconds failed its test.
settings.register_profile("npu-rl", deadline=None)
settings.load_profile("npu-rl")


def pytest_collection(session: pytest.Session) -> None:
    """Of two processes that compile all tests the second begins at the end: each does half, and reads the other's."""
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and session.config.args == ["tests"]:
        for file in sorted(ROOT.glob("tests/**/test_*.py"), reverse=True):
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collectstart() -> None:
    gc.disable()  # until all is collected: a quarter of that time went into walks through what stays


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = True
    gc.freeze()  # else each walk goes through 350,000 objects of the collection
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The tests of the long tier run once, where its packages are: in the gate on 3.11."""
    if item.get_closest_marker("rehearsal") and importlib.util.find_spec("torch") is None:
        pytest.skip("the packages of the extra `rehearsal` are not installed")


@pytest.fixture(scope="session")
def quickstart_workspace(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Path]:
    """A workspace of the bundled quickstart, set up once for all test processes. Nobody leaves anything in it."""
    if QUICKSTART in os.environ:
        yield Path(os.environ[QUICKSTART])
        return
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if worker_id != "master" else base) / "quickstart-for-all"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ws" / "code").is_dir():
            folder.mkdir(exist_ok=True)
            env = index_env(folder)
            done = run_cli(
                ["setup", "--manifest", "quickstart", "--workspace", folder / "ws"], env, folder, timeout=300
            )
            if done.returncode and "index" in done.stderr and not os.environ.get("NPU_RL_REQUIRE_PYPI"):
                pytest.skip(f"no PyPI index can be reached: {done.stderr.strip().splitlines()[-1]}")
            assert done.returncode == 0, done.stderr
    yield folder / "ws"
    require_untouched(folder / "ws")


@pytest.fixture(scope="session")
def code_tree(quickstart_workspace: Path) -> Path:
    """The code folder of the quickstart's workspace."""
    return quickstart_workspace / "code"


@pytest.fixture(scope="session")
def upstreams() -> Path:
    """The folder `NPU_RL_UPSTREAMS`: OWNER+NAME/repo, bare. Skips where it is not named."""
    named = os.environ.get("NPU_RL_UPSTREAMS")
    if not named:
        pytest.skip("NPU_RL_UPSTREAMS names no folder with the real upstreams (OWNER+NAME/repo, bare)")
    return Path(named).resolve()
