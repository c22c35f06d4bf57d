from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.stack.sources.pip_config import PipSettings, read_pip_settings
from tests.support import ok, run_program


class Machine:
    """A made-up machine: its system folder, its user, its Python environment."""

    def __init__(self, root: Path) -> None:
        self.root = root / "system"
        self.home = root / "home"
        self.prefix = root / "venv"
        self.environ = {"HOME": str(self.home)}
        for folder in (self.root, self.home, self.prefix):
            folder.mkdir()

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, **environ: str) -> PipSettings:
        return read_pip_settings({**self.environ, **environ}, prefix=self.prefix, system=self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_file_beats_the_one_before(machine: Machine) -> None:
    order = [
        machine.root / "etc/xdg/pip/pip.conf",
        machine.root / "etc/pip.conf",
        machine.home / ".pip/pip.conf",
        machine.home / ".config/pip/pip.conf",
        machine.prefix / "pip.conf",
    ]
    for number, path in enumerate(order):
        machine.write(path, f"[global]\nindex-url = https://host{number}/simple\n")
        settings = machine.read()
        assert settings.index_url == f"https://host{number}/simple"
    assert machine.read(PIP_INDEX_URL="https://env/simple").index_url == "https://env/simple"


def test_a_chosen_file_stands_in_for_the_users_and_beats_all(machine: Machine, tmp_path: Path) -> None:
    assert machine.read() == PipSettings()
    machine.write(machine.root / "etc/pip.conf", "[global]\nretries = 1\nproxy = http://p:1\n")
    machine.write(machine.home / ".config/pip/pip.conf", "[global]\ntimeout = 1\n")
    machine.write(machine.prefix / "pip.conf", "[global]\nretries = 2\n")
    chosen = machine.write(tmp_path / "mine.conf", "[global]\nretries = 7\n")
    for place, expected in (
        (str(chosen), (7, 15.0, "http://p:1")),
        (str(tmp_path / "missing.conf"), (2, 1.0, "http://p:1")),
        (os.devnull, (5, 15.0, None)),
    ):
        settings = machine.read(PIP_CONFIG_FILE=place)
        assert (settings.retries, settings.timeout, settings.proxy) == expected


def test_names_and_values(machine: Machine) -> None:
    machine.write(
        machine.root / "etc/pip.conf",
        "[global]\nextra_index_url =\n    https://a/simple\n    https://b/simple\nPYPI_URL = https://i/simple\n"
        "find-links = /wheels ~/more\ntrusted-host = a b:8080\n--retries = 2\n",
    )
    settings = machine.read(PIP_DEFAULT_TIMEOUT="180", PIP_INDEX_URL="")
    assert settings.index_urls == ("https://i/simple", "https://a/simple", "https://b/simple")
    assert settings.find_links == ("/wheels", str(machine.home / "more"))
    assert settings.trusted_hosts == ("a", "b:8080")
    assert (settings.retries, settings.timeout) == (2, 180.0)
    assert machine.read(PIP_EXTRA_INDEX_URL="https://c/simple").extra_index_urls == ("https://c/simple",)
    for text, expected in (("yes", True), ("1", True), ("off", False), ("False", False)):
        settings = machine.read(PIP_NO_INDEX=text)
        assert settings.no_index is expected and bool(settings.index_urls) is not expected


def test_certificates(machine: Machine) -> None:
    settings = machine.read(PIP_CERT="~/ca.pem", PIP_CLIENT_CERT="/c.pem", REQUESTS_CA_BUNDLE="/other.pem")
    assert (settings.cert, settings.client_cert) == (machine.home / "ca.pem", Path("/c.pem"))
    assert machine.read(REQUESTS_CA_BUNDLE="/other.pem").cert == Path("/other.pem")
    assert machine.read(CURL_CA_BUNDLE="/third.pem").cert == Path("/third.pem")


@pytest.mark.parametrize(
    ("name", "text"),
    [("TIMEOUT", "soon"), ("TIMEOUT", "-1"), ("TIMEOUT", "nan"), ("RETRIES", "1.5"), ("NO_INDEX", "maybe")],
)
def test_a_value_of_the_wrong_kind(machine: Machine, name: str, text: str) -> None:
    with pytest.raises(HostError, match="Invalid value") as caught:
        machine.read(**{f"PIP_{name}": text})
    assert f"{name.lower().replace('_', '-')} = {text}" in str(caught.value)


def test_pip_itself_agrees(machine: Machine, tmp_path: Path) -> None:
    """The real pip, run on a real set of files, names the same values."""
    pytest.importorskip("pip")
    machine.write(machine.home / ".pip/pip.conf", "[global]\nretries = 1\ntimeout = 5\n")
    machine.write(
        machine.home / ".config/pip/pip.conf",
        "[global]\nretries = 2\nfind_links = /a\n  /b\n[install]\nproxy = http://p:1\n",
    )
    probe = (
        "import json\nfrom pip._internal.commands import create_command\n"
        "o, _ = create_command('install').parser.parse_args(['x'])\n"
        "found = [o.extra_index_urls, o.find_links, o.retries, o.timeout, o.proxy, o.trusted_hosts]\n"
        "print(json.dumps(found))"
    )
    environ = {**machine.environ, "PIP_TRUSTED_HOST": "a b", "PIP_EXTRA_INDEX_URL": "https://x/s https://y/s"}
    told = ok(run_program([sys.executable, "-c", probe], env=environ, cwd=tmp_path)).stdout
    ours = read_pip_settings(environ)
    assert json.loads(told) == [
        list(ours.extra_index_urls),
        list(ours.find_links),
        ours.retries,
        ours.timeout,
        ours.proxy or "",
        list(ours.trusted_hosts),
    ]
