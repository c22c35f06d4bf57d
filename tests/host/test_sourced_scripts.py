"""Which set_env.sh a shell is compared with, and what counts as not sourced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.host.made_host import ASCEND, MadeHost

A3 = "deepseek-v3-cann-256die"
NNAL = f"{ASCEND}/nnal/atb/set_env.sh"


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    return MadeHost(tmp_path, A3)


def move(host: MadeHost, part: str, folder: str, *, keep: bool = False) -> None:
    """Have a part of CANN below another folder, whose set_env.sh the shell has sourced."""
    old, new = f"/{ASCEND}/{part}", f"/{folder}/{part}"
    source, target = host.root / old[1:], host.root / new[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    if keep:
        shutil.copytree(source, target, symlinks=True)
    else:
        source.rename(target)
    latest = target / "latest"
    if latest.is_symlink():
        to = str(latest.readlink()).replace(old, new)
        latest.unlink()
        latest.symlink_to(to)
    for script in target.rglob("set_env.sh"):
        host.write(str(script.relative_to(host.root)), script.read_text().replace(old, new))
    host.environ = {name: value.replace(old, new) for name, value in host.environ.items()}


def test_an_installation_in_a_users_home_is_healthy(host: MadeHost) -> None:
    move(host, "ascend-toolkit", "home/someone/Ascend")
    move(host, "nnal", "home/someone/Ascend")
    report = host.report()
    assert report.red == ()
    lines = {line.id: line for line in report.lines}
    assert lines["set-env-nnal"].found == "/home/someone/Ascend/nnal/atb/set_env.sh is sourced"


def test_of_two_toolkits_the_sourced_one_counts(host: MadeHost) -> None:
    move(host, "ascend-toolkit", "opt/newer", keep=True)
    assert host.report().red == ()


def test_a_switch_that_the_user_has_set_otherwise_is_sourced(host: MadeHost) -> None:
    switch = "ATB_WORKSPACE_MEM_ALLOC_ALG_TYPE"
    host.replace(NNAL, "export ATB_HOME_PATH", f"export {switch}=1\nexport ATB_HOME_PATH")
    assert switch in {line.id: line for line in host.report().red}["set-env-nnal"].found
    host.environ[switch] = "0"
    assert host.report().red == ()
