"""`npu-rl requirements --resolve` with the real uv, from indexes that the tests start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.stack.pylocks.uv_program import find_uv
from tests.pylocks.snapshot_index import add, add_snapshot
from tests.sources.package_index import PackageIndex
from tests.support import assert_told, clean_env, ok, run_cli

USER, PASSWORD = "someone", "s3cret-Pa55"
WORDS = ["requirements", "--resolve", "--python-version", "3.11", "--machine", "aarch64"]


@pytest.fixture(autouse=True, scope="module")
def _uv() -> None:
    try:
        find_uv()
    except HostError:
        pytest.skip("needs uv: pip install '.[test]'")


@pytest.fixture
def private() -> Iterator[PackageIndex]:
    """An index that wants a password."""
    with PackageIndex(auth=(USER, PASSWORD)) as index:
        add_snapshot(index)
        yield index


def manifest(folder: Path, *requirements: str, overrides: object = ()) -> Path:
    path = folder / "mine.yaml"
    component = {
        "sources": [{"git": "https://git.example.org/own.git"}],
        "ref": "0" * 40,
        "take": [{"from": "own", "to": "own"}],
        "dist": {"name": "own", "version": "1.0"},
    }
    text = {
        "schema": 1,
        "name": "mine",
        "title": "Mine",
        "device": "npu",
        "host": {"python": "3.11"},
        "components": {"own": component},
        "requirements": list(requirements),
        "overrides": overrides,
    }
    path.write_text(json.dumps(text))
    return path


def environment(folder: Path, index: PackageIndex) -> dict[str, str]:
    url = index.url_with(USER, PASSWORD) if index.auth else index.url
    return clean_env(folder) | {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": url, "PIP_RETRIES": "0"}


def entries(text: str) -> list[str]:
    return [line.removesuffix(" \\") for line in text.splitlines() if "==" in line and line[0] not in "# "]


def texts_below(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


def test_a_private_index_reaches_names_versions_and_hashes_only(
    tmp_path: Path, private: PackageIndex
) -> None:
    """accelerate's torch is the host's; numpy is not the newest, as the manifest says."""
    path = manifest(tmp_path, "accelerate", "numpy<2")
    env = environment(tmp_path, private)
    done = ok(run_cli([*WORDS, "--manifest", path], env, tmp_path))
    assert entries(done.stdout) == ["accelerate==1.15.0", "numpy==1.26.4", "packaging==25.0"]
    for name, version in (("accelerate", "1.15.0"), ("numpy", "1.26.4"), ("packaging", "25.0")):
        listed = next(one for one in private.projects[name] if version in one.filename)
        assert f"{name}=={version} \\\n    --hash=sha256:{listed.hash}\n" in done.stdout
    assert private.authorised
    seen = done.stdout + done.stderr + texts_below(tmp_path)
    assert PASSWORD not in seen and private.host not in seen


def test_no_file_can_name_a_private_index(tmp_path: Path, private: PackageIndex) -> None:
    path = manifest(tmp_path, "numpy<2")
    env = environment(tmp_path, private)
    done = run_cli([*WORDS, "--manifest", path, "--format", "pylock"], env, tmp_path)
    assert_told(done, "not PyPI's", "numpy", "--format pip")
    seen = done.stdout + done.stderr + texts_below(tmp_path)
    assert PASSWORD not in seen and private.host not in seen


def test_a_refused_password_is_not_repeated(tmp_path: Path, private: PackageIndex) -> None:
    env = environment(tmp_path, private)
    private.auth = (USER, "another")
    done = run_cli([*WORDS, "--manifest", manifest(tmp_path, "numpy<2")], env, tmp_path)
    assert done.returncode == 1
    assert_told(done, "numpy", "pip config list", "refuses the user or the password")
    assert PASSWORD not in done.stdout + done.stderr + texts_below(tmp_path)


def test_all_indexes_count_alike(tmp_path: Path) -> None:
    """As for pip: that of torch's CPU builds has old copies of many packages."""
    with PackageIndex() as first, PackageIndex() as extra:
        add(first, "numpy", "1.26.4")
        add(extra, "numpy", "1.24.0")
        add(extra, "only-there", "1.0", ["numpy"])
        env = environment(tmp_path, first) | {"PIP_EXTRA_INDEX_URL": extra.url}
        done = ok(run_cli([*WORDS, "--manifest", manifest(tmp_path, "only-there")], env, tmp_path))
        assert entries(done.stdout) == ["numpy==1.26.4", "only-there==1.0"]


ANTLR = {
    "component": "own",
    "package": "antlr4-python3-runtime",
    "file": "requirements.txt",
    "bound": "==4.9.*",
    "why": "latex2sympy2 wants 4.7.2",
}


def test_a_named_pin_that_fits_no_set_is_installed_alone(tmp_path: Path) -> None:
    with PackageIndex() as index:
        add_snapshot(index)
        names = ("hydra-core==1.3.2", "latex2sympy2==1.9.1", "antlr4-python3-runtime==4.7.2")
        path = manifest(tmp_path, *names, overrides=[ANTLR])
        done = ok(run_cli([*WORDS, "--manifest", path], environment(tmp_path, index), tmp_path))
        found = entries(done.stdout)
        assert found[-1] == "antlr4-python3-runtime==4.7.2" and len(found) == 8
        assert "antlr4-python3-runtime comes last" in done.stdout
        assert "Because" in done.stdout and "unsatisfiable" in done.stdout
